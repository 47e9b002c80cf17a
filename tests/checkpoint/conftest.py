"""What the tests of saving share: a world in memory."""

from collections.abc import Callable
from pathlib import Path

import pytest
from memory_world import MemoryWorld, make_world

from dflash_core.checkpoint.resume import RunDirectory
from dflash_core.checkpoint.store import CheckpointStore


@pytest.fixture
def world() -> Callable[..., MemoryWorld]:
    return make_world


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints")


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDirectory:
    (tmp_path / "run").mkdir()
    return RunDirectory(tmp_path / "run")
