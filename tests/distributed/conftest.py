"""What the tests of several ranks share: a world in memory, and forks of this process as ranks."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from forked_ranks import on_ranks
from memory_world import MemoryWorld, make_world

from dflash_core.config import DistributedConfig
from dflash_core.distributed.world import World, join_processes
from dflash_core.distributed.world import make_world as make_ranks

TIMEOUT_S = 60.0


@pytest.fixture
def memory_world() -> Callable[..., MemoryWorld]:
    """Dataset, plan and drafter without a file."""
    return make_world


@pytest.fixture
def in_ranks() -> Callable[..., list[Any]]:
    """in_ranks(size, settings, function, *arguments): function(world, *arguments) of each rank of a world on gloo.

    `settings` are those of the section `distributed` that differ from the defaults.
    """

    def run(size: int, settings: Mapping[str, Any], function: Callable[..., Any], *arguments: Any) -> list[Any]:
        config = DistributedConfig(**{"timeout_s": TIMEOUT_S} | dict(settings))
        return on_ranks(size, as_rank, config, function, *arguments, timeout_s=2 * TIMEOUT_S)

    return run


def as_rank(config: DistributedConfig, function: Callable[..., Any], *arguments: Any) -> Any:
    """In a rank of its own process."""
    with join_processes(config) as (rank, size):
        return function(make_ranks(config, rank, size), *arguments)


@pytest.fixture
def split_world() -> Callable[..., World]:
    """The roles of a world of placement split, without a process; `rank` is whose view it is."""

    def make(num_drafters: int, num_teams: int, width: int = 1, rank: int = 0) -> World:
        starts = range(num_drafters, num_drafters + num_teams * width, width)
        teams = tuple(tuple(range(start, start + width)) for start in starts)
        return World(rank=rank, size=num_drafters + num_teams * width, drafter_ranks=tuple(range(num_drafters)), teams=teams)

    return make


@pytest.fixture
def forked() -> Callable[..., list[Any]]:
    """forked(size, function, *arguments): function(*arguments) in processes that have torchrun's variables."""
    return on_ranks
