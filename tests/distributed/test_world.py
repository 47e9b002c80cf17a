"""Who does what in a world, and what is refused or said when that can't be."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dflash_core.config import DistributedConfig, parse_config
from dflash_core.distributed.world import World, make_world, naming_lost_ranks, split_ranks
from dflash_core.errors import ConfigError, PipelineError

TREE = {"target": {"path": "target"}, "data": {"conversations": ["c.jsonl"]}}
SPLIT = {"placement": "split"}


def split(size: int, chosen: int | None = None, **settings: Any) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    return split_ranks(DistributedConfig(**SPLIT | settings), size, chosen)


def test_drafter_ranks_come_first_and_teams_share_the_rest() -> None:
    assert split_ranks(DistributedConfig(), 3) == ((0, 1, 2), ())
    assert split(2) == ((0,), ((1,),))
    assert split(5, target_ranks=2) == ((0, 1, 2), ((3,), (4,)))
    assert split(6, target_ranks=4, tensor_parallel=2) == ((0, 1), ((2, 3), (4, 5)))
    assert split(5, 3) == ((0, 1), ((2,), (3,), (4,))), "what a calibration chose"
    assert split(5, 3, target_ranks=1) == ((0, 1, 2, 3), ((4,),)), "a person's choice wins"


@pytest.mark.parametrize(("size", "settings"), [(1, {}), (2, {"target_ranks": 2}), (2, {"target_ranks": 2, "tensor_parallel": 2})])
def test_a_world_without_a_rank_for_each_side_is_refused(size: int, settings: dict[str, int]) -> None:
    targets = settings.get("target_ranks", 1)
    with pytest.raises(ConfigError, match=f"{targets} target ranks in a world of {size} processes.*Start at least {targets + 1}"):
        make_world(DistributedConfig(**SPLIT | settings), 0, size)


def test_roles(split_world: Callable[..., World]) -> None:
    worlds = [split_world(2, 2, width=2, rank=rank) for rank in range(6)]
    assert [w.role for w in worlds] == ["drafter"] * 2 + ["target"] * 4
    assert [w.leads_team for w in worlds] == [False, False, True, False, True, False]
    assert [w.serves_writer for w in worlds] == [False, False, True, True, False, False]
    assert worlds[3].team == (2, 3) and worlds[5].team == (4, 5) and worlds[0].target_leader == 2
    assert World().serves_writer and World().trains and World().is_writer and not World().is_split


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"distributed": {"target_ranks": 1}}, "need placement split"),
        ({"distributed": {"tensor_parallel": 2}}, "need placement split"),
        ({"distributed": SPLIT | {"target_ranks": 3, "tensor_parallel": 2}}, "target_ranks 3 is no multiple of tensor_parallel 2"),
        ({"distributed": SPLIT | {"tensor_parallel": 2}}, "tensor_parallel 2 leaves target_ranks open.*set target_ranks"),
        ({"distributed": SPLIT, "training": {"feature_source": "cached"}}, "feature_source cached needs none"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(TREE | sections, "test")


def hand_around(world: World) -> Any:
    handed = world.hand_over({"from": world.rank} if world.rank == 2 else None, 2, 0)
    kept = world.hand_over("own", 1, 1) if world.rank == 1 else world.hand_over(None, 1, 1)
    return handed, kept, world.tell("all" if world.is_writer else None), world.gather(world.rank * 10)


@pytest.mark.distributed
def test_objects_reach_whom_they_are_for(in_ranks: Callable[..., list]) -> None:
    found = in_ranks(3, SPLIT | {"target_ranks": 1}, hand_around)
    assert [handed for handed, *_ in found] == [{"from": 2}, None, None]
    assert [kept for _, kept, *_ in found] == [None, "own", None]
    assert all(rest == ["all", [0, 10, 20]] for _, _, *rest in found)


def lose_a_rank(world: World) -> str:
    if world.rank == 1:
        return "left"
    try:
        with naming_lost_ranks(world.rank):
            world.gather(1)
    except PipelineError as error:
        return str(error)
    return "nothing was raised"


@pytest.mark.distributed
def test_a_rank_that_is_gone_is_an_error_in_words(in_ranks: Callable[..., list]) -> None:
    told, _ = in_ranks(2, {}, lose_a_rank)
    assert told.startswith("rank 0 waited for the other ranks, and one of them is gone (") and "Look at the log" in told


def test_only_what_a_communication_library_says_is_taken_for_a_lost_rank() -> None:
    with pytest.raises(RuntimeError, match="shapes"), naming_lost_ranks(0):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    with pytest.raises(PipelineError, match="rank 4 .* is stuck"), naming_lost_ranks(4):
        raise torch.distributed.DistBackendError("NCCL watchdog: collective timed out")
