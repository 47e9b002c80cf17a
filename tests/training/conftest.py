"""What the tests of training share: a world in memory, the kill campaign, places and ports."""

import importlib
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))  # scripts, no package
from memory_world import MemoryWorld, make_world, without_supervision


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads cost more than they save at these shapes: 1.3 s a step instead of 0.05 on two busy cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def world() -> Callable[..., MemoryWorld]:
    return make_world


@pytest.fixture
def unsupervised() -> Callable[..., MemoryWorld]:
    return without_supervision


@pytest.fixture(scope="session")
def kill_campaign() -> ModuleType:
    """benchmarks/kill_campaign.py."""
    return importlib.import_module("kill_campaign")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "tiny"


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
