"""The number of target ranks: chosen from what a step costs, the same in all ranks, written down, without a trace in the run."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dflash_core.checkpoint.resume import RunDirectory
from dflash_core.config import Config, load_config, parse_config
from dflash_core.stages.calibrate import Calibration, calibrate, choose_target_ranks
from dflash_core.stages.train import train
from dflash_core.training.log_reader import read_log
from dflash_core.training.records import CheckpointRecord, StartRecord

SECONDS = st.floats(1e-3, 1e3)


@pytest.mark.parametrize(
    ("target_s", "drafter_s", "size", "chosen"),
    [(1.0, 1.0, 3, 1), (1.0, 1.0, 4, 2), (9.0, 1.0, 4, 3), (1.0, 9.0, 4, 1), (3.0, 1.0, 8, 6), (100.0, 1e-3, 8, 7), (2.0, 1.0, 2, 1)],
)
def test_the_slower_side_is_made_as_fast_as_it_can_be(target_s: float, drafter_s: float, size: int, chosen: int) -> None:
    assert choose_target_ranks(target_s, drafter_s, size) == chosen


@given(target_s=SECONDS, drafter_s=SECONDS, size=st.integers(2, 32))
def test_no_other_choice_is_faster(target_s: float, drafter_s: float, size: int) -> None:
    def step_s(targets: int) -> float:
        return max(target_s / targets, drafter_s / (size - targets))

    chosen = choose_target_ranks(target_s, drafter_s, size)
    assert 1 <= chosen < size and step_s(chosen) == min(map(step_s, range(1, size)))


@pytest.mark.parametrize(
    ("settings", "size"), [({}, 4), ({"placement": "split"}, 2), ({"placement": "split", "target_ranks": 2}, 4)]
)
def test_nothing_is_measured_where_there_is_nothing_to_choose(settings: dict[str, Any], size: int) -> None:
    tree = {"target": {"path": "nowhere"}, "data": {"conversations": ["c.jsonl"]}, "distributed": settings}
    assert calibrate(parse_config(tree, "test"), Path("nowhere"), 0, size) is None


def test_a_person_reads_what_was_seen_and_what_was_chosen() -> None:
    assert Calibration(1.2345, 0.4, 3).sentence(4) == (
        "measured: a step takes one rank 1.23 s of target and 0.4 s of drafter, so 3 of 4 ranks run the target; "
        "distributed.target_ranks would fix it"
    )


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared data, plan and target of a run of three steps."""
    from kill_campaign import make_workspace

    return make_workspace(tmp_path_factory.mktemp("calibrate") / "workspace", 3)


def configured(prepared: Path, directory: Path, settings: dict[str, Any]) -> Path:
    shutil.copytree(prepared, directory)
    tree = yaml.safe_load((directory / "params.yaml").read_text(encoding="utf-8"))
    (directory / "params.yaml").write_text(yaml.safe_dump(tree | {"distributed": {"timeout_s": 60.0} | settings}), encoding="utf-8")
    return directory


def train_in(workspace: Path) -> None:
    train(load_config(workspace / "params.yaml"), workspace, resume="auto")


def records_of(workspace: Path, kind: type) -> list[Any]:
    config: Config = load_config(workspace / "params.yaml")
    return [record for record in read_log(RunDirectory(workspace / config.run_dir).log_path) if isinstance(record, kind)]


@pytest.mark.distributed
def test_three_ranks_measure_agree_and_train_as_if_they_had_been_told(
    workspace: Path, tmp_path: Path, forked: Callable[..., list], capfd: pytest.CaptureFixture[str]
) -> None:
    measured = configured(workspace, tmp_path / "measured", {"placement": "split"})
    forked(3, train_in, measured)
    (start,) = records_of(measured, StartRecord)
    calibration = start.world["calibration"]
    chosen = calibration["target_ranks"]
    assert calibration["target_s"] > 0 and calibration["drafter_s"] > 0
    assert chosen == choose_target_ranks(calibration["target_s"], calibration["drafter_s"], 3)
    assert start.world["target_teams"] == [[rank] for rank in range(3 - chosen, 3)] and start.world["size"] == 3
    assert capfd.readouterr().err.count("measured: a step takes one rank") == 1, "the writer says it, once"

    told = configured(workspace, tmp_path / "told", {"placement": "split", "target_ranks": chosen})
    forked(3, train_in, told)
    assert "calibration" not in records_of(told, StartRecord)[0].world
    digests = [[record.weights_digest for record in records_of(where, CheckpointRecord)] for where in (measured, told)]
    assert digests[0] == digests[1] and digests[0], "measuring draws no number of the run"
