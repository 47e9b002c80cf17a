"""What the tests of saving share: a world in memory."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # scripts, no package
from memory_world import MemoryWorld, make_world


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads cost more than they save at these shapes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def world() -> Callable[..., MemoryWorld]:
    return make_world
