"""The small data set of benchmarks/bad_data.py, prepared and planned."""

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from bad_data import configuration, conversations, make_target, run_case
from bad_data_cases import Case, Trial

from dflash_core.config import Config
from dflash_core.stages import bucket, prepare

SEED = 0


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("gate-target")
    make_target(directory)
    return directory


@pytest.fixture
def run(target: Path, tmp_path: Path) -> Callable[[Case], dict]:
    """Run one case of the campaign."""
    return lambda case: run_case(tmp_path / "case", target, case, SEED)


@pytest.fixture(scope="session")
def planned_once(target: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Config]:
    """A directory that holds what prepare and bucket leave."""
    directory, trial = tmp_path_factory.mktemp("planned"), Trial(conversations(SEED))
    config = configuration(target, trial)
    with contextlib.chdir(directory):
        trial.write()
        prepare.run(config)
        bucket.run(config)
    return directory, config


@pytest.fixture
def planned(planned_once: tuple[Path, Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A copy of it is the working directory."""
    directory, config = planned_once
    shutil.copytree(directory, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    return config


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All in one worker: importing Great Expectations takes as long as most of these tests."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.xdist_group("data_gate"))
