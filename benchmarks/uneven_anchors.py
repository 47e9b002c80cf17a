"""Trains where ranks hold unequal numbers of anchors, or none, and compares every gradient with that of one process.

    python benchmarks/uneven_anchors.py --n 50 --json uneven.json

A world in memory, in which two rows in five have no label, and some steps none at all: ranks have unequal numbers of anchors, and
by turns one rank or all of them have none. In 2 and 3 drafter ranks, whole (ddp) and sharded (fsdp2): each step's gradient is
compared as relative L2 over all parameters with that of one process, and no run may hang. Exit status 0 means that none
differs by more than 1e-4.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import memory_world
import numpy as np
import torch
from forked_ranks import on_ranks
from memory_world import MemoryWorld
from results import leave

from dflash_core.distributed.gradients import full
from dflash_core.distributed.world import join_processes, make_world
from dflash_core.stages.train_ranks import join_ranks
from dflash_core.training.batches import collated_steps, with_features
from dflash_core.training.optimizer import make_optimizer
from dflash_core.training.schedule import learning_rate
from dflash_core.training.step import train_step

LIMIT = 1e-4
ROWS = 40
SIZES = (2, 3)
WAYS = ("ddp", "fsdp2")


@dataclass
class Witness:
    """What one rank has seen, step by step: the whole gradient, the loss, and its own number of valid blocks."""

    gradients: list[np.ndarray] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    anchors: list[int] = field(default_factory=list)


def main(arguments: list[str] | None = None) -> int:
    """Run the campaign; see the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=50, help="optimizer steps")
    parser.add_argument("--json", type=Path, help="file to write; default: print it")
    options = parser.parse_args(arguments)
    result = campaign(options.n, SIZES, WAYS)
    return leave(result, options.json, result["holds"])


def campaign(steps: int, sizes: Sequence[int], ways: Sequence[str]) -> dict[str, Any]:
    """One process, then every world."""
    (alone,) = on_ranks(1, train_uneven, steps, "ddp")
    worlds = {f"{size} {way}": compare(steps, size, way, alone) for size in sizes for way in ways}
    return {"steps": steps, "worlds": worlds, "holds": all(figures["holds"] for figures in worlds.values())}


def compare(steps: int, size: int, way: str, alone: Witness) -> dict[str, Any]:
    """How far gradients and losses of a world are from those of one process."""
    began = time.perf_counter()
    found = on_ranks(size, train_uneven, steps, way)
    per_step = list(zip(*(witness.anchors for witness in found), strict=True))
    apart = [relative(a, b) for a, b in zip(found[0].gradients, alone.gradients, strict=True)]
    loss = max(abs(a - b) / (abs(b) or 1.0) for a, b in zip(found[0].losses, alone.losses, strict=True))
    seen = {
        "largest_gradient_difference": max(apart),
        "largest_loss_difference": loss,
        "steps_uneven": sum(0 < min(anchors) < max(anchors) for anchors in per_step),
        "steps_with_an_empty_rank": sum(min(anchors) == 0 < max(anchors) for anchors in per_step),
        "steps_without_any": sum(max(anchors) == 0 for anchors in per_step),
        "most_uneven": max(per_step, key=lambda anchors: max(anchors) - min(anchors)),
        "seconds": round(time.perf_counter() - began, 1),
    }
    print(f"{size} {way}: {seen}", file=sys.stderr, flush=True)
    tested = all(seen[kind] > 0 for kind in ("steps_uneven", "steps_with_an_empty_rank", "steps_without_any"))
    return seen | {"holds": tested and max(apart) <= LIMIT and loss <= LIMIT}


def relative(mine: np.ndarray, theirs: np.ndarray) -> float:
    """L2 of the difference over L2 of `theirs`; both are zero where a step has no label."""
    return float(np.linalg.norm(mine - theirs) / (np.linalg.norm(theirs) or 1.0))


def uneven_world(steps: int, way: str) -> MemoryWorld:
    """Steps of one to six rows, two rows in five without labels; in every seventh step no row has one."""
    world = memory_world.make_world(
        ROWS, training={"epochs": steps, "max_steps": steps}, distributed={"parallel": way, "timeout_s": 60.0}, tokens_per_step=96
    )
    silent = {row for row in range(ROWS) if row % 5 in (1, 3)}
    for number in range(0, world.plan.steps_per_epoch, 7):
        silent |= {row for micro in world.plan.step_number(number).micro_batches for row in micro.rows}
    return memory_world.without_supervision(world, sorted(silent))


def train_uneven(steps: int, way: str) -> Witness:
    """As one rank."""
    here, witness = uneven_world(steps, way), Witness()
    config, drafter = here.config, here.trainee.drafter
    with join_processes(config.distributed) as (rank, size):
        ranks = join_ranks(drafter, config, make_world(config.distributed, rank, size))
        optimizer = make_optimizer(drafter, config.training)
        share = collated_steps(here.plan, here.dataset, config, next_sample=0, rank=rank, num_ranks=size)
        for batch in with_features(share, here.source, config):
            seen: list[np.ndarray] = []
            note = optimizer.register_step_pre_hook(lambda *_, seen=seen: seen.append(whole_gradient(drafter)))
            rate = learning_rate(batch.outline.step, steps, config.training)
            result = train_step(here.trainee, optimizer, batch, rate, config.training, ranks)
            note.remove()
            witness.gradients.append(seen[0] if seen else np.zeros(1))
            witness.losses.append(result.loss)
            witness.anchors.append(sum(int(micro.mask_BAS.any(-1).sum()) for micro in batch.micro_batches))
    return witness


def whole_gradient(drafter: torch.nn.Module) -> np.ndarray:
    """All gradients after clipping, gathered where they are sharded, as one vector."""
    return torch.cat([full(parameter.grad).flatten() for parameter in drafter.parameters()]).numpy().copy()


if __name__ == "__main__":
    sys.exit(main())
