"""Replays optimizer steps from a checkpoint's contents in this process, with the code that trains.

The ranks of the run are replayed one after another: each one's micro-batches are run as it ran them, and their
gradients are added up. Only the order of the additions is another.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from dflash_core.checkpoint.contents import Contents
from dflash_core.checkpoint.snapshot import restore
from dflash_core.config import Config
from dflash_core.data.plan import BatchPlan
from dflash_core.errors import NonFiniteError
from dflash_core.proof.variation import AS_STORED, Variation
from dflash_core.training.batches import CollatedStep, FeatureSource, StepBatch, collated_steps, total_steps, with_features
from dflash_core.training.loop import Timing, step_record
from dflash_core.training.optimizer import make_optimizer
from dflash_core.training.records import SilentLog, StepRecord
from dflash_core.training.schedule import learning_rate
from dflash_core.training.step import Trainee, train_step

_NO_TIME = Timing(1.0, 0.0, 0.0, 0.0, 0.0)  # times are not compared; a rate is divided by the first
_SILENT = SilentLog()


@dataclass(frozen=True)
class Setting:
    """What stays the same for every replay of a run. `initial` are the weights that it began with."""

    config: Config
    plan: BatchPlan
    dataset: Any  # data.dataset.Dataset
    source: FeatureSource
    trainee: Trainee
    initial: Mapping[str, Tensor]
    identity: Mapping[str, Any]
    conditions: Mapping[str, Any]

    @property
    def total_steps(self) -> int:
        """Length of the run, which its schedule follows."""
        return total_steps(self.plan, self.config)


def replay(
    setting: Setting,
    contents: Contents,
    num_steps: int,
    variation: Variation = AS_STORED,
    *,
    num_ranks: int = 1,
) -> tuple[StepRecord, ...]:
    """The records of the next `num_steps` steps; fewer if a loss is not finite.

    Args:
        setting: the run.
        contents: where it stood.
        variation: what is done otherwise.
        num_ranks: drafter ranks whose micro-batches are run.
    """
    return _run(setting, contents, num_steps, variation, num_ranks)[0]


def advance(setting: Setting, contents: Contents, num_steps: int, *, num_ranks: int = 1) -> Contents:
    """The state after `num_steps` replayed steps, as a checkpoint would hold it."""
    records, optimizer = _run(setting, contents, num_steps, AS_STORED, num_ranks)
    drafter = setting.trainee.drafter
    moments = {
        f"{name}.{key}": value.detach().cpu().clone()
        for name, parameter in drafter.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }
    weights = {name: tensor.detach().cpu().clone() for name, tensor in drafter.state_dict().items()}
    step, next_sample = records[-1].step, records[-1].last_sample + 1
    return Contents(step, weights, moments, {**contents.state, "step": step, "next_sample": next_sample})


def _run(
    setting: Setting, contents: Contents, num_steps: int, variation: Variation, num_ranks: int
) -> tuple[tuple[StepRecord, ...], torch.optim.Optimizer]:
    drafter, training = setting.trainee.drafter, setting.config.training
    optimizer = make_optimizer(drafter, training)
    restore(variation.contents(contents), drafter, optimizer)
    drafter.train()
    drafter.zero_grad(set_to_none=True)
    ranks, handles = variation.ranks(drafter), variation.watch(optimizer, drafter)
    records: list[StepRecord] = []
    try:
        for batch in islice(step_batches(setting, contents.state["next_sample"], variation, num_ranks), num_steps):
            planned = learning_rate(batch.outline.step, setting.total_steps, training)
            rate = variation.rate(len(records) + 1, planned)
            result = train_step(setting.trainee, optimizer, batch, rate, training, ranks)
            records.append(step_record(_SILENT, batch, replace(result, learning_rate=planned), _NO_TIME, (0, 0)))
    except NonFiniteError:
        pass
    finally:
        for handle in handles:
            handle.remove()
    return tuple(records), optimizer


def step_batches(setting: Setting, next_sample: int, variation: Variation, num_ranks: int) -> Iterator[StepBatch]:
    """Step batches of all ranks, one after another in each, without an end: also past that of the run."""
    training = setting.config.training.model_copy(update={"epochs": 1 << 40, "max_steps": None})
    endless = setting.config.model_copy(update={"training": training})
    streams = [
        with_features(_collated(setting, endless, next_sample, variation, rank, num_ranks), setting.source, setting.config)
        for rank in range(num_ranks)
    ]
    for parts in zip(*streams, strict=True):
        outline = replace(parts[0].outline, checksum=sum(part.checksum for part in parts))
        yield replace(parts[0], outline=outline, micro_batches=tuple(micro for part in parts for micro in part.micro_batches))


def _collated(
    setting: Setting, endless: Config, next_sample: int, variation: Variation, rank: int, num_ranks: int
) -> Iterator[CollatedStep]:
    """The claimed steps, the first `shift_for` of them holding the data of those `shift` steps on."""

    def stream(start: int) -> Iterator[CollatedStep]:
        return collated_steps(setting.plan, setting.dataset, endless, next_sample=start, rank=rank, num_ranks=num_ranks)

    if not variation.shift:
        yield from map(variation.collated, stream(next_sample))
        return
    planned = setting.plan.step_at(next_sample)
    number = planned.epoch * setting.plan.steps_per_epoch + planned.index_in_epoch + variation.shift
    other = stream(setting.plan.step_number(number).first_sample)
    for offset, (claimed, held) in enumerate(zip(stream(next_sample), other, strict=True)):
        yield replace(held, outline=replace(held.outline, step=claimed.outline.step)) if offset < variation.shift_for else claimed

