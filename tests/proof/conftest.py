"""A recorded run of the world in memory, with noise that is still warming up, for all tests of proofs."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from memory_proofs import AT, EVERY, STEPS, make_setting
from recorded_sessions import begin_run
from resume_faults import Bench

from dflash_core.checkpoint.resume import RunDirectory
from dflash_core.proof.recorded import RecordedRun
from dflash_core.proof.replay import Setting


@pytest.fixture(autouse=True, scope="session")
def own_generators() -> Iterator[None]:
    """A proof restores the global generators."""
    states = (torch.get_rng_state(), np.random.get_state(), random.getstate())
    yield
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])


@pytest.fixture(scope="session")
def setting() -> Setting:
    return make_setting()


@pytest.fixture(scope="session")
def recorded(setting: Setting, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A right run; copy it before changing anything."""
    run_dir = tmp_path_factory.mktemp("recorded") / "runs" / "right"
    begin_run(setting, run_dir, STEPS, EVERY)
    return run_dir


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> RecordedRun:
    """A copy of the right run."""
    return RecordedRun(Path(shutil.copytree(recorded, tmp_path / "runs" / "copy")))


@pytest.fixture(scope="session")
def bench(setting: Setting, recorded: Path) -> Bench:
    """The run and its checkpoint in the middle."""
    store = RunDirectory(recorded).store
    history = {int(name.removeprefix("step-")): store.load(name)[1] for name in store.names()}
    return Bench(setting, history[AT], history)
