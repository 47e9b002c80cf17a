"""Saves of real ranks: of shards each writes its own, of a whole drafter the writer all; all ranks begin and fail together."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dflash_core.checkpoint.contents import Share
from dflash_core.checkpoint.manifest import read_manifest
from dflash_core.checkpoint.saves import Saves
from dflash_core.checkpoint.snapshot import gathered, restore, state_tensors, take_share
from dflash_core.checkpoint.staging import HostBuffers
from dflash_core.checkpoint.store import CheckpointStore
from dflash_core.distributed.gradients import DataParallel, FullyShard
from dflash_core.distributed.world import World
from dflash_core.errors import CheckpointError
from dflash_core.training.batches import collated_steps, with_features
from dflash_core.training.loop import Position
from dflash_core.training.optimizer import make_optimizer
from dflash_core.training.records import SilentLog
from dflash_core.training.step import train_step

pytestmark = pytest.mark.distributed


def save_two(world: World, make_memory_world: Callable[..., Any], root: Path, way: str, failing: int | None) -> Any:
    """Two steps, a save after each; the second fails in rank `failing`. Gives the gathered weights, or the error's text."""
    here = make_memory_world()
    drafter = here.trainee.drafter
    ranks = (FullyShard if way == "fsdp2" else DataParallel)(drafter, world.device_group, world.drafters)
    optimizer = make_optimizer(drafter, here.config.training)
    count = world.size if way == "fsdp2" else 1

    def share(at: Position) -> Share | None:
        if at.step == 2 and world.rank == failing:
            store.root = root / "gone"
        if count == 1 and not world.is_writer:
            return None
        own = {"index": world.rank, "count": count} if count > 1 else {}
        return take_share(drafter, optimizer, step=at.step, next_sample=at.next_sample, run_id="r", identity={}, **own)

    store = CheckpointStore(root)
    saves = Saves(share, HostBuffers(), store, ranks, SilentLog(), here.config, {}, "0123abcd")
    steps = collated_steps(here.plan, here.dataset, here.config, next_sample=0, rank=world.rank, num_ranks=world.size)
    try:
        for batch, _ in zip(with_features(steps, here.source, here.config), range(2), strict=False):
            train_step(here.trainee, optimizer, batch, 1e-2, here.config.training, ranks)
            at = Position(batch.outline.step, batch.outline.next_sample)
            saves.boundary(at, True, ranks.sum(saves.news()))
        weights, moments = (gathered(part, True) for part in state_tensors(drafter, optimizer))
        return {name: tensor.numpy().copy() for name, tensor in (weights | moments).items()}
    except CheckpointError as error:
        with suppress(CheckpointError):
            saves.rescue()
        return str(error)
    finally:
        saves.close()


def go_on(world: World, make_memory_world: Callable[..., Any], root: Path) -> Any:
    """What ranks hold that were given the newest checkpoint."""
    here = make_memory_world()
    FullyShard(here.trainee.drafter, world.device_group, world.drafters)
    optimizer = make_optimizer(here.trainee.drafter, here.config.training)
    restore(CheckpointStore(root).load_newest().contents, here.trainee.drafter, optimizer)
    weights, moments = (gathered(part, True) for part in state_tensors(here.trainee.drafter, optimizer))
    return {name: tensor.numpy().copy() for name, tensor in (weights | moments).items()}


@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
def test_what_the_ranks_held_is_on_disk(in_ranks: Callable[..., list], memory_world: Callable[..., Any], tmp_path: Path, way: str) -> None:
    held = in_ranks(2, {}, save_two, memory_world, tmp_path, way, None)[0]
    loaded = CheckpointStore(tmp_path).load_newest()
    files = [name for name in read_manifest(loaded.committed.path)["files"] if name.startswith("model")]
    assert len(files) == (2 if way == "fsdp2" else 1) and loaded.committed.step == 2
    found = {**loaded.contents.weights, **loaded.contents.moments}
    assert found.keys() == held.keys()
    for name, tensor in found.items():
        np.testing.assert_array_equal(tensor.numpy(), held[name], err_msg=name)
    if way == "fsdp2":  # three ranks cut the rows otherwise
        for name, array in in_ranks(3, {}, go_on, memory_world, tmp_path)[0].items():
            np.testing.assert_array_equal(array, held[name], err_msg=name)


def test_a_rank_that_cannot_write_stops_all_and_the_checkpoint_before_stays(
    in_ranks: Callable[..., list], memory_world: Callable[..., Any], tmp_path: Path
) -> None:
    writer, other = in_ranks(2, {}, save_two, memory_world, tmp_path, "fsdp2", 1)
    assert "No such file or directory" in other and "failed in another rank" in writer
    assert CheckpointStore(tmp_path).load_newest().committed.step == 1
