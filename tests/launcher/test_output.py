"""What the ranks get from the launcher, and what becomes of their lines."""

import os
import re
from pathlib import Path

import pytest

from dflash_core.launcher.launch import launch
from dflash_core.launcher.options import LaunchOptions

from .ranks import lines


def test_ranks_get_what_torchrun_sets(script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "TORCHELASTIC_USE_AGENT_STORE", "OMP_NUM_THREADS", "RES_OPTIONS")
    launch(script(f"print(rank, size, *(os.environ[n] for n in {names}))"), LaunchOptions(nproc=2), tmp_path)
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    assert [lines(tmp_path, rank) for rank in (0, 1)] == [[f"{r} 2 {r} 2 0 127.0.0.1 True {threads} attempts:0"] for r in (0, 1)]


def test_a_persons_number_of_threads_stays(script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    launch(script("print(os.environ['OMP_NUM_THREADS'])"), LaunchOptions(nproc=1), tmp_path)
    assert lines(tmp_path, 0) == ["7"]


def test_lines_are_whole_once_and_prefixed(script, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    body = """
for n in range(200):
    out = sys.stdout if n % 2 else sys.stderr
    out.write(f"{rank} half "); out.flush(); out.write(f"{n}\\n"); out.flush()
sys.stdout.write(f"{rank} no newline")
"""
    launch(script(body), LaunchOptions(nproc=2), tmp_path / "ranks")
    shown = capfd.readouterr().err.splitlines()
    assert re.match(
        r"\[launcher\] the same by hand: OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 .* --standalone \S+script.py$", shown[0]
    )
    for rank in (0, 1):
        mine = [line for line in shown if line.startswith(f"[rank {rank}] ")]
        assert mine == [f"[rank {rank}] {rank} half {n}" for n in range(200)] + [f"[rank {rank}] {rank} no newline"]
    assert len(shown) == 1 + 2 * 201


def test_a_second_launch_appends(script, tmp_path: Path) -> None:
    for word in ("first", "second"):
        launch(script(f"print('{word}')"), LaunchOptions(nproc=1), tmp_path)
    assert lines(tmp_path, 0) == ["first", "second"]


def test_ranks_can_reduce(script, tmp_path: Path) -> None:
    body = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([rank + 1.0])
dist.all_reduce(total)
print(total.item())
dist.destroy_process_group()
"""
    launch(script(body), LaunchOptions(nproc=2), tmp_path)
    assert [lines(tmp_path, rank)[-1] for rank in (0, 1)] == ["3.0", "3.0"]
