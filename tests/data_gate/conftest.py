"""The small data set of benchmarks/bad_data.py, prepared and planned."""

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


@pytest.fixture
def planned(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """The working directory holds what prepare and bucket leave."""
    monkeypatch.chdir(tmp_path)
    trial = Trial(conversations(SEED))
    trial.write()
    config = configuration(target, trial)
    prepare.run(config)
    bucket.run(config)
    return config


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All in one worker: importing Great Expectations takes as long as most of these tests."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.xdist_group("data_gate"))
