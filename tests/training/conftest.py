"""What the tests of training share: a world in memory, and the place of a run."""

from collections.abc import Callable
from pathlib import Path

import pytest
from memory_world import MemoryWorld, make_world, without_supervision


@pytest.fixture
def world() -> Callable[..., MemoryWorld]:
    return make_world


@pytest.fixture
def unsupervised() -> Callable[..., MemoryWorld]:
    return without_supervision


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "tiny"
