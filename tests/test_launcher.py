"""The launch: what the ranks get, how a run is stopped, and what ends it; ranks are small scripts."""

import multiprocessing
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from torch.distributed import PrefixStore, TCPStore
from torch.distributed.run import config_from_args, parse_args

from dflash_core import cli
from dflash_core.errors import ConfigError, Stopped
from dflash_core.launcher import peers, rank_side, supervision
from dflash_core.launcher.failure import Failure, RunFailed
from dflash_core.launcher.launch import launch
from dflash_core.launcher.meeting import Meeting
from dflash_core.launcher.options import LaunchOptions
from dflash_core.launcher.output import RankOutput
from dflash_core.launcher.signals import StopSignals
from dflash_core.stages import train_launch

PROJECT = Path(__file__).resolve().parent.parent
# What a script starts with; `asked` lists the signals that came, as training's StopRequest would have them.
PREAMBLE = """
import os, signal, sys, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
asked = []
def listen():
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda n, frame: asked.append(signal.Signals(n).name))
    print("ready", flush=True)
def wait(seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end and not asked:
        time.sleep(0.01)
"""
# A launcher in a process of its own: node 1 of 2, or one that is killed. Forked from a server that has torch, which costs 2 s.
NODE = """
from dflash_core.errors import DflashError
from dflash_core.launcher import supervision
from dflash_core.launcher.launch import launch
from dflash_core.launcher.options import LaunchOptions
supervision.SETTLE_S = 0.5
try:
    launch({worker!r}, LaunchOptions(**{options!r}), {logs!r})
except DflashError as error:
    {said!r}.write_text(str(error))
    raise SystemExit(error.exit_code)
"""
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["dflash_core.launcher.launch"])


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "SETTLE_S", 0.5)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], list[str]]:
    def write(body: str) -> list[str]:
        path = tmp_path / "script.py"
        path.write_text(PREAMBLE + body)
        return [str(path)]

    return write


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[Callable[..., multiprocessing.Process]]:
    started: list[multiprocessing.Process] = []

    def start(worker: list[str], **options) -> multiprocessing.Process:
        program = tmp_path / "node.py"
        source = NODE.format(worker=worker, options={"nproc": 1} | options, logs=tmp_path / "ranks", said=tmp_path / "said")
        program.write_text("from pathlib import Path, PosixPath\n" + source)
        started.append(FORKED.Process(target=runpy.run_path, args=(str(program),)))
        started[-1].start()
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.join()


def lines(directory: Path, rank: int) -> list[str]:
    """What a rank wrote, without the launcher's heading."""
    path = directory / f"rank-{rank}.log"
    return [line for line in path.read_text().splitlines() if not line.startswith("===")] if path.exists() else []


def when(condition: Callable[[], bool], then: Callable[[], None]) -> threading.Thread:
    """Do something once a condition holds; `launch` has the main thread."""

    def watch() -> None:
        until(condition)
        then()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def all_ready(directory: Path, ranks: int = 2) -> Callable[[], bool]:
    return lambda: all("ready" in lines(directory, rank) for rank in range(ranks))


def interrupt_us(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def free_endpoint() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def test_ranks_get_what_torchrun_sets(script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "TORCHELASTIC_USE_AGENT_STORE", "OMP_NUM_THREADS")
    launch(script(f"print(rank, size, *(os.environ[n] for n in {names}))"), LaunchOptions(nproc=2), tmp_path)
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    assert [lines(tmp_path, rank) for rank in (0, 1)] == [[f"{r} 2 {r} 2 0 127.0.0.1 True {threads}"] for r in (0, 1)]


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


def test_a_log_directory_that_is_none_is_refused(script, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="can't be written: File exists"):
        launch(script(""), LaunchOptions(nproc=1), tmp_path / "file")


def test_a_port_in_use_is_refused(script, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"can't listen at {endpoint}"):
            launch(script(""), LaunchOptions(nproc=1, nnodes=2, rdzv_endpoint=endpoint), tmp_path)


@pytest.mark.parametrize(
    "options, complaint",
    [
        ({"nproc": 0}, "at least one"),
        ({"nproc": 1, "nnodes": 2}, "needs the address of node 0"),
        ({"nproc": 1, "nnodes": 2, "node_rank": 2, "rdzv_endpoint": "a:1"}, r"not in 0\.\.1"),
        ({"nproc": 1, "nnodes": 2, "rdzv_endpoint": "host"}, "not HOST:PORT"),
        ({"nproc": 1, "nnodes": 2, "rdzv_endpoint": "host:0"}, "not HOST:PORT"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_wrong_options_are_refused(options: dict, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        LaunchOptions(**options)


def test_the_command_by_hand_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    options = LaunchOptions(nproc=4, nnodes=2, node_rank=1, rdzv_endpoint="node-a:29400", rdzv_id="r", grace_s=45)
    threads, torchrun, *arguments = options.torchrun_command(["-m", "dflash_core", "train"]).split()
    assert (threads, torchrun) == ("OMP_NUM_THREADS=1", "torchrun")
    config, command, rest = config_from_args(parse_args(arguments))
    assert (config.min_nodes, config.max_nodes, config.nproc_per_node, config.max_restarts) == (2, 2, 4, 0)
    assert (config.rdzv_backend, config.rdzv_endpoint, config.run_id, config.rdzv_configs["rank"]) == (
        "static",
        "node-a:29400",
        "r",
        1,
    )
    assert config.shutdown_timeout == 45
    assert (command, rest) == (sys.executable, ["-u", "-m", "dflash_core", "train"])


CONFIG = "run: r\ntarget: {{path: nowhere}}\ndata: {{conversations: [nothing.jsonl]}}\ndistributed: {{nproc: {nproc}}}\n"


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """Calls of `launch` by the command line, run in a directory with a configuration."""
    calls: list[tuple] = []
    monkeypatch.setattr("dflash_core.launcher.launch.launch", lambda *arguments: calls.append(arguments))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(CONFIG.format(nproc="null"))
    return calls


@pytest.mark.parametrize("command", ["train", "resume"])
def test_the_command_line_launches_itself(command: str, asked: list[tuple], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "--nproc", "3", "--debug", "--grace", "45"]) == 0
    worker, options, log_dir = asked[0]
    assert worker == ["-m", "dflash_core", command, "--params", "params.yaml", "--debug"]
    assert (options, log_dir) == (LaunchOptions(nproc=3, rdzv_id="r", grace_s=45), Path("runs/r/ranks"))
    assert "runs/r/ranks" in capsys.readouterr().out


def test_what_may_differ_at_a_resume_is_told_to_every_rank(asked: list[tuple]) -> None:
    assert cli.main(["resume", "--nproc", "2", "--force-changed", "training.seed", "--force-changed", "bucket"]) == 0
    assert asked[0][0] == [
        *("-m", "dflash_core", "resume", "--params", "params.yaml"), *("--force-changed", "training.seed", "--force-changed", "bucket"),
    ]  # fmt: skip


def test_the_configuration_launches_and_the_command_line_wins(asked: list[tuple], tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(CONFIG.format(nproc=2))
    several = ["--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint", "a:1", "--rdzv-id", "x"]
    assert cli.main(["train"]) == cli.main(["train", "--nproc", "4", *several]) == 0
    assert asked[0][1].nproc == 2
    assert asked[1][1] == LaunchOptions(nproc=4, nnodes=2, node_rank=1, rdzv_endpoint="a:1", rdzv_id="x")


def test_the_plan_counts_the_ranks_of_all_nodes(asked: list[tuple], monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[int | None] = []
    plan = SimpleNamespace(print_plan=lambda config, num_ranks: planned.append(num_ranks))
    monkeypatch.setitem(sys.modules, "dflash_core.plan_estimate", plan)  # the real one takes seconds to load
    for arguments in ([], ["--nproc", "8"], ["--nproc", "8", "--nnodes", "2"]):
        assert cli.main(["train", "--plan", *arguments]) == 0
    assert (planned, asked) == ([None, 8, 16], [])


def test_a_rank_trains_instead_of_launching(asked: list[tuple], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "params.yaml").write_text(CONFIG.format(nproc=2))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(train_launch, "_train_here", lambda *_: "")
    assert cli.main(["train"]) == 0
    assert cli.main(["train", "--nproc", "2"]) == 2
    assert not asked


def test_nodes_need_a_number_of_processes(asked: list[tuple], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--nnodes", "2", "--rdzv-endpoint", "a:1"]) == 2
    assert "add --nproc" in capsys.readouterr().err


def test_the_last_line_is_the_root_cause(
    script, asked: list[tuple], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    worker = script("print('Error: held-out rows are missing; run prepare.', file=sys.stderr); sys.exit(3)")
    monkeypatch.setattr("dflash_core.launcher.launch.launch", lambda _, options, logs: launch(worker, options, logs))
    assert cli.main(["train", "--nproc", "1"]) == 3
    said = capfd.readouterr().err.splitlines()
    assert re.match(
        r"Error: rank 0 \(pid .*\) ended with exit code 3: held-out rows are missing; run prepare\. Its whole", said[-1]
    )
    assert said[-2] == "[rank 0] Error: held-out rows are missing; run prepare."
