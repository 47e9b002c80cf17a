"""Chooses how many ranks run the target in placement `split`: measures one step of either side, and balances the two.

A step's work is the same whatever number of ranks shares it, so the slower side of T target ranks and N - T drafter ranks
takes max(target_s / T, drafter_s / (N - T)). It runs before the ranks have roles, and leaves nothing in memory.
"""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dflash_core.config import Config
from dflash_core.data.dataset import Dataset
from dflash_core.data.plan_manifest import open_plan
from dflash_core.distributed.world import LEADER
from dflash_core.drafter.model import Drafter
from dflash_core.drafter.objectives import make_objective
from dflash_core.stages import layout
from dflash_core.stages.train_inputs import in_workdir, make_spec
from dflash_core.target.ends import load_ends
from dflash_core.target.model import Target
from dflash_core.training.batches import CollatedStep, collated_steps, with_features
from dflash_core.training.determinism import make_repeatable
from dflash_core.training.optimizer import make_optimizer
from dflash_core.training.step import Trainee, train_step

_REPEATS = 2  # the first one warms up: kernels are loaded, memory is taken


@dataclass(frozen=True)
class Calibration:
    """Seconds of one step's work on one rank, by side, and the number of target ranks chosen from them."""

    target_s: float
    drafter_s: float
    target_ranks: int

    def describe(self) -> dict[str, Any]:
        """For the log."""
        return asdict(self)

    def sentence(self, size: int) -> str:
        """For a person."""
        return (
            f"measured: a step takes one rank {self.target_s:.3g} s of target and {self.drafter_s:.3g} s of drafter, so {self.target_ranks} "
            f"of {size} ranks run the target; distributed.target_ranks would fix it"
        )


def calibrate(config: Config, workdir: Path, rank: int, size: int) -> Calibration | None:
    """Measure and choose, where the configuration leaves it open and there is a choice. Every rank calls it; all get the same.

    Target and drafter are measured at the same time, on the last rank and on the first: the roles that these have anyway.

    Raises:
        ConfigError, DataError, IdentityError: as `open_inputs`, from the rank that measures.
    """
    settings = config.distributed
    if settings.placement != "split" or settings.target_ranks is not None or size < 3:
        return None
    make_repeatable(config.training.deterministic, config.training.seed)
    mine = {LEADER: drafter_seconds, size - 1: target_seconds}.get(rank, lambda config, workdir: None)(config, workdir)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    told: list[Any] = [None] * size
    dist.all_gather_object(told, mine)
    target_s, drafter_s = told[size - 1], told[LEADER]
    return Calibration(target_s, drafter_s, choose_target_ranks(target_s, drafter_s, size))


def choose_target_ranks(target_s: float, drafter_s: float, size: int) -> int:
    """The number of target ranks, of `size` in all, with which the slower side is fastest; the smaller of two that tie."""
    return min(range(1, size), key=lambda targets: max(target_s / targets, drafter_s / (size - targets)))


def target_seconds(config: Config, workdir: Path) -> float:
    """Seconds of the target's features for the run's first step."""
    config, dataset, step = _first_step(config, workdir)
    target = Target.load(config.target)
    layer_ids = make_spec(config, target, dataset).target_layer_ids

    def work() -> None:
        for batch in step.batches:
            target.features(batch.input_ids_BT.to(target.device), layer_ids)

    return _seconds(work)


def drafter_seconds(config: Config, workdir: Path) -> float:
    """Seconds of the first step's forward, backward and update, of a drafter of its own with random features."""
    config, dataset, step = _first_step(config, workdir)
    ends = load_ends(config.target)
    spec = make_spec(config, ends, dataset)
    drafter = Drafter(spec).to(ends.device)
    trainee = Trainee(drafter, ends, make_objective(config.objective, spec.block_size), config.training.precision, config.drafter.attention)
    optimizer = make_optimizer(drafter, config.training)

    def features(rows: Sequence[int], input_ids_BT: Tensor) -> Tensor:
        return torch.randn(*input_ids_BT.shape, spec.features_size, dtype=ends.dtype, device=ends.device)

    (batch,) = with_features([step], features, config)
    return _seconds(lambda: train_step(trainee, optimizer, batch, config.training.learning_rate, config.training))


def _first_step(config: Config, workdir: Path) -> tuple[Config, Dataset, CollatedStep]:
    config = in_workdir(config, workdir)
    dataset = Dataset.open(workdir / layout.PREPARED, "train")
    plan = open_plan(config, dataset, workdir / layout.PLAN)
    return config, dataset, next(collated_steps(plan, dataset, config, next_sample=0))


def _seconds(work: Callable[[], object]) -> float:
    """Of the fastest of a few repeats."""
    taken = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return min(taken)
