"""How a run is stopped, and what a rank's end means for the others."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from dflash_core.errors import Stopped
from dflash_core.launcher import rank_side
from dflash_core.launcher.failure import Failure, RunFailed
from dflash_core.launcher.launch import launch
from dflash_core.launcher.options import LaunchOptions

from .ranks import PROJECT, all_ready, free_endpoint, interrupt_us, lines, until, when


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_a_signal_is_passed_on_once_and_the_slowest_save_is_waited_for(number: int, script, tmp_path: Path) -> None:
    body = """
listen(); wait()
time.sleep(1.0 if rank == 0 else 0.0)
print("had", *asked); print("Error: stopped at step 7, saved.", file=sys.stderr)
sys.exit(4)
"""
    before = signal.getsignal(number)
    when(all_ready(tmp_path), interrupt_us(number))
    with pytest.raises(Stopped, match=r"^stopped at step 7, saved\.$"):
        launch(script(body), LaunchOptions(nproc=2), tmp_path)
    assert [lines(tmp_path, rank)[1] for rank in (0, 1)] == [f"had {number.name}"] * 2
    assert signal.getsignal(number) is before


def test_ranks_that_stop_by_themselves_are_let_be(script, tmp_path: Path) -> None:
    body = "listen(); wait(1.0 if rank == 0 else 0); print('had', *asked); sys.exit(4)"
    with pytest.raises(Stopped):
        launch(script(body), LaunchOptions(nproc=2), tmp_path)
    assert lines(tmp_path, 0) == ["ready", "had"]


def test_a_rank_that_does_not_listen_yet_counts_as_stopped(script, tmp_path: Path) -> None:
    when(all_ready(tmp_path), interrupt_us(signal.SIGTERM))
    with pytest.raises(Stopped):
        launch(script("print('ready', flush=True); wait()"), LaunchOptions(nproc=2), tmp_path)


def test_who_does_not_stop_is_killed_and_named(script, tmp_path: Path) -> None:
    when(all_ready(tmp_path), interrupt_us(signal.SIGTERM))
    with pytest.raises(RunFailed, match=r"^ranks 1 on \S+ did not stop within 1 s") as caught:
        launch(
            script("listen(); wait(60 if rank == 0 else 0); time.sleep(60 * rank); sys.exit(4)"),
            LaunchOptions(nproc=2, grace_s=1),
            tmp_path,
        )
    assert caught.value.exit_code == 1


def test_ranks_killed_on_another_node_are_named_here(script, tmp_path: Path, start_node) -> None:
    worker = script("listen(); wait(60 if rank == 1 else 0); time.sleep(60 * rank); sys.exit(4)")
    endpoint = free_endpoint()
    start_node(worker, nnodes=2, node_rank=1, rdzv_endpoint=endpoint, grace_s=1)
    with pytest.raises(RunFailed, match=r"^ranks 1 on \S+ did not stop within 1 s"):
        launch(worker, LaunchOptions(nproc=1, nnodes=2, rdzv_endpoint=endpoint), tmp_path / "ranks")


def test_a_second_interrupt_kills(script, tmp_path: Path) -> None:
    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        until(lambda: "asked" in lines(tmp_path, 0))
        os.kill(os.getpid(), signal.SIGINT)

    when(all_ready(tmp_path, 1), twice)
    began = time.monotonic()
    with pytest.raises(RunFailed):
        launch(script("listen(); wait(); print('asked', flush=True); time.sleep(60)"), LaunchOptions(nproc=1), tmp_path)
    assert time.monotonic() - began < 30


def test_a_killed_rank_ends_all_and_is_named(script, tmp_path: Path) -> None:
    body = "listen(); os.kill(os.getpid(), signal.SIGKILL) if rank == 1 else wait(); sys.exit(1)"
    began = time.monotonic()
    with pytest.raises(RunFailed, match=rf"^rank 1 \(pid \d+ on {socket.gethostname()}\) was killed by SIGKILL") as caught:
        launch(script(body), LaunchOptions(nproc=3), tmp_path)
    assert caught.value.exit_code == 1
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("code", [1, 2, 3])
def test_the_earliest_failure_is_the_root_cause(code: int, script, tmp_path: Path) -> None:
    body = f"""
if rank == 1:
    print("Error: row 7 is broken; correct it.", file=sys.stderr, flush=True); print("[W] a library's last warning")
    os._exit({code})
time.sleep(0.3); print("Fault: connection closed by peer"); sys.exit(1)
"""
    expected = (
        rf"^rank 1 \(.*\) ended with exit code {code}: row 7 is broken; correct it\. Its whole output is in .*rank-1\.log\.$"
    )
    with pytest.raises(RunFailed, match=expected) as caught:
        launch(script(body), LaunchOptions(nproc=3), tmp_path)
    assert caught.value.exit_code == code


def test_a_killed_rank_is_the_cause_though_its_peers_end_first(script, tmp_path: Path) -> None:
    body = "time.sleep(0.3 * rank); os.kill(os.getpid(), signal.SIGKILL) if rank == 1 else sys.exit(1)"
    with pytest.raises(RunFailed, match="^rank 1 .* SIGKILL"):
        launch(script(body), LaunchOptions(nproc=2), tmp_path)


def test_an_abort_is_a_consequence() -> None:
    aborted = Failure(sentence="aborted", exit_code=1, at=2.0)
    assert min([aborted, Failure(sentence="bad data", exit_code=2, at=1.0)], key=lambda f: f.order).exit_code == 2
    assert Failure.from_json(aborted.to_json()) == aborted


def test_ranks_do_not_outlive_a_killed_launcher(script, tmp_path: Path, start_node) -> None:
    launcher = start_node(script("print(os.getpid(), flush=True); print('ready', flush=True); time.sleep(60)"))
    until(all_ready(tmp_path / "ranks", 1))
    rank = psutil.Process(int(lines(tmp_path / "ranks", 0)[0]))
    launcher.kill()
    rank.wait(30)


def test_an_orphan_that_hangs_is_killed(tmp_path: Path) -> None:
    hanging = (
        "import signal, time; from dflash_core.launcher import rank_side as rank; rank.GRACE_S = 0.2; rank._POLL_S = 0.1;"
        "rank.obey_launcher(); signal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True)); print('ready', flush=True);"
        "[time.sleep(0.1) for _ in range(600)]"
    )
    parent = "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', sys.argv[1]]); print(child.pid, flush=True); time.sleep(60)"
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    with subprocess.Popen([sys.executable, "-c", parent, hanging], env=environment, stdout=subprocess.PIPE, text=True) as process:
        child = psutil.Process(int(process.stdout.readline()))
        assert process.stdout.readline() == "ready\n"
        process.kill()
        assert process.stdout.read() == "asked\n"  # once, to the child's end
        child.wait(30)


def test_is_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not rank_side.is_rank()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert rank_side.is_rank()
