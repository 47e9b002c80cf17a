"""`train` and `resume` launch ranks, and ranks train."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dflash_core import cli
from dflash_core.launcher.launch import launch
from dflash_core.launcher.options import LaunchOptions
from dflash_core.stages import train_launch

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
