"""The processes that generate: none outlives its parent, and one that fails is noticed."""

import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import pytest

from dflash_core.target import part_files


def test_a_worker_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import multiprocessing, os, sys, time\n"
        "from dflash_core.target.orphan import exit_with_parent\n"
        "def work():\n"
        "    exit_with_parent()\n"
        "    print(os.getpid(), flush=True)\n"
        "    time.sleep(300)\n"
        "if __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('spawn').Process(target=work, daemon=True)\n"
        "    child.start()\n"
        "    child.join()\n"
    )
    root = str(Path(part_files.__file__).parents[2])
    parent = subprocess.Popen([sys.executable, script], env=os.environ | {"PYTHONPATH": root}, stdout=subprocess.PIPE, text=True)
    worker = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 20
    while (alive := _runs(worker)) and time.monotonic() < deadline:
        time.sleep(0.01)
    if alive:
        os.kill(worker, signal.SIGKILL)
    assert not alive


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_generation_workers_watch_their_parent_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = []
    monkeypatch.setattr(part_files, "exit_with_parent", lambda: calls.append("watch"))
    monkeypatch.setattr(part_files, "_compute", lambda *_: iter(calls.append("compute") or ()))
    part_files._worker([], None, None, tmp_path, tmp_path, None)
    assert calls == ["watch", "compute"]


def test_a_worker_that_failed_last_is_noticed() -> None:
    """It may end between two looks at the others, so that none is alive when the loop comes round."""

    class Ended:
        exitcode, sentinel = 1, 0

        def is_alive(self) -> bool:
            return False

    with pytest.raises(RuntimeError, match="a generation worker ended with 1"):
        part_files._watch([Ended()], [], 0.0, SimpleQueue(ctx=multiprocessing.get_context()))


def test_a_full_disk_is_told_in_a_sentence(tiny_dir: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands for it."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"id": n, "prompt": f"Tell me about {n}."}) + "\n" for n in range(2)))
    command = [sys.executable, "-m", "dflash_core", "regenerate", prompts, "--target", tiny_dir, "--out", tmp_path / "out.jsonl.gz"]
    done = subprocess.run(
        [*command, "--batch-size", "1", "--max-new-tokens", "8"],
        env=os.environ | {"PYTHONPATH": str(Path(part_files.__file__).parents[2])},
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)),
        check=False,
    )
    assert done.returncode == 2 and "Error: File too large. Free space" in done.stderr and "Traceback" not in done.stderr
