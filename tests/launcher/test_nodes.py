"""A launch on two nodes: it meets, stops and fails as one."""

import signal
import threading
from pathlib import Path

import pytest
from torch.distributed import PrefixStore, TCPStore

from dflash_core.errors import ConfigError, Stopped
from dflash_core.launcher import peers
from dflash_core.launcher.failure import RunFailed
from dflash_core.launcher.launch import launch
from dflash_core.launcher.meeting import Meeting
from dflash_core.launcher.options import LaunchOptions
from dflash_core.launcher.output import RankOutput
from dflash_core.launcher.signals import StopSignals

from .ranks import all_ready, free_endpoint, interrupt_us, lines, when


def test_two_nodes_reduce(script, tmp_path: Path, start_node) -> None:
    worker = script("""
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([rank + 1.0])
dist.all_reduce(total)
print(total.item(), os.environ["LOCAL_RANK"], os.environ["GROUP_RANK"])
dist.destroy_process_group()
""")
    endpoint = free_endpoint()
    other = start_node(worker, nnodes=2, node_rank=1, rdzv_endpoint=endpoint)
    launch(worker, LaunchOptions(nproc=1, nnodes=2, node_rank=0, rdzv_endpoint=endpoint), tmp_path / "ranks")
    other.join(30)
    assert other.exitcode == 0
    assert [lines(tmp_path / "ranks", rank)[-1] for rank in (0, 1)] == ["3.0 0 0", "3.0 0 1"]


@pytest.mark.parametrize("dead", [0, 1])
def test_a_rank_killed_on_one_node_ends_both(dead: int, script, tmp_path: Path, start_node) -> None:
    worker = script(f"print('ready', flush=True); wait(0.5); rank == {dead} and os.kill(os.getpid(), signal.SIGKILL); wait()")
    endpoint = free_endpoint()
    other = start_node(worker, nnodes=2, node_rank=1, rdzv_endpoint=endpoint)
    with pytest.raises(RunFailed, match=f"^rank {dead} .* SIGKILL"):
        launch(worker, LaunchOptions(nproc=1, nnodes=2, node_rank=0, rdzv_endpoint=endpoint), tmp_path / "ranks")
    other.join(30)
    assert other.exitcode == 1
    assert (tmp_path / "said").read_text().startswith(f"rank {dead} (pid ")


def test_a_stop_on_one_node_stops_both(script, tmp_path: Path, start_node) -> None:
    """The ranks agree among each other; here, on a file."""
    flag = tmp_path / "asked"
    worker = script(f"""
listen()
flag = {str(flag)!r}
while not (asked or os.path.exists(flag)):
    time.sleep(0.01)
open(flag, "w").close(); time.sleep(rank); sys.exit(4)
""")
    endpoint = free_endpoint()
    other = start_node(worker, nnodes=2, node_rank=1, rdzv_endpoint=endpoint)
    when(all_ready(tmp_path / "ranks"), interrupt_us(signal.SIGTERM))
    with pytest.raises(Stopped):
        launch(worker, LaunchOptions(nproc=1, nnodes=2, node_rank=0, rdzv_endpoint=endpoint), tmp_path / "ranks")
    other.join(30)
    assert other.exitcode == 4


@pytest.mark.parametrize("killed", [0, 1])
def test_a_node_without_its_launcher_is_noticed(
    killed: int, script, tmp_path: Path, start_node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "LOST_S", 3.0)
    worker = script("print('ready', flush=True); wait()")
    endpoint = free_endpoint()
    other = start_node(worker, nnodes=2, node_rank=killed, rdzv_endpoint=endpoint)
    when(all_ready(tmp_path / "ranks"), other.kill)
    with pytest.raises(RunFailed, match=f"^node {killed} has "):
        launch(worker, LaunchOptions(nproc=1, nnodes=2, node_rank=1 - killed, rdzv_endpoint=endpoint), tmp_path / "ranks")


def test_a_signal_ends_the_wait_for_other_nodes(script, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    endpoint = free_endpoint()
    threading.Timer(1.0, interrupt_us(signal.SIGTERM)).start()
    with pytest.raises(Stopped, match="before any rank"):
        launch(script(""), LaunchOptions(nproc=1, nnodes=2, node_rank=1, rdzv_endpoint=endpoint), tmp_path)
    assert f"waiting: node 0 does not answer at {endpoint}" in capfd.readouterr().err


def test_a_node_that_does_not_come_is_named(tmp_path: Path) -> None:
    options = LaunchOptions(nproc=1, nnodes=2, rdzv_endpoint=free_endpoint())
    with StopSignals() as signals, pytest.raises(ConfigError, match=r"^node 1 of 2 has not come to .*, waited 0\.1 s"):
        Meeting(options, RankOutput(tmp_path), signals, meeting_s=0.1).next_rendezvous()


def test_a_node_rank_can_be_had_once(tmp_path: Path) -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    PrefixStore("dflash", server).add("arrived/1", 1)
    options = LaunchOptions(nproc=1, nnodes=2, node_rank=1, rdzv_endpoint=f"127.0.0.1:{server.port}")
    with StopSignals() as signals, pytest.raises(ConfigError, match="^--node-rank 1 is taken"):
        Meeting(options, RankOutput(tmp_path), signals).next_rendezvous()
