"""The processes that generate: none outlives its parent, and one that fails is noticed."""

import os
import signal
import subprocess
import sys
import time
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
    part_files._worker([], None, None, tmp_path, tmp_path)
    assert calls == ["watch", "compute"]


def test_a_worker_that_failed_last_is_noticed() -> None:
    """It may end between two looks at the others, so that none is alive when the loop comes round."""

    class Ended:
        exitcode, sentinel = 1, 0

        def is_alive(self) -> bool:
            return False

    with pytest.raises(RuntimeError, match="a generation worker ended with 1"):
        part_files._watch([Ended()], [], 0.0)
