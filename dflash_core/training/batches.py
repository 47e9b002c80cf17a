"""Turns the plan into step batches: collated tokens, labels and target features, from one progress integer.

Two streams, one over the other: `collated_steps` reads data, `with_features` adds what the target says of them. Each
may run ahead in a thread of its own; neither knows.

Dims: B batch rows, T tokens (padded), A anchors per row, K block slots incl. anchor, S = K-1 label slots,
F features width.
"""

import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dflash_core.config import Config
from dflash_core.data.anchors import block_labels, feature_noise
from dflash_core.data.dataset import Dataset
from dflash_core.data.loader import Batch, collate
from dflash_core.data.plan import BatchPlan, PlannedStep, joined
from dflash_core.data.plan import MicroBatch as PlannedMicroBatch
from dflash_core.training.schedule import noise_std
from dflash_core.training.side_stream import NOW, Ready, SideStream

_PAD_ID = 0  # any row of the embedding: padding is on the right, so causal attention never lets a real token see it


class FeatureSource(Protocol):
    """Where the target's hidden states come from: a forward in the loop, or a cache on disk."""

    def __call__(self, rows: Sequence[int], input_ids_BT: Tensor) -> Tensor:
        """features_BTF of dataset rows, padded on the right to the width of `input_ids_BT`."""
        ...


@dataclass(frozen=True)
class MicroBatch:
    """One forward and backward."""

    batch: Batch
    features_BTF: Tensor
    labels_BAS: Tensor  # int64
    mask_BAS: Tensor  # bool: slots that count


@dataclass(frozen=True)
class StepOutline:
    """What all ranks together do in one step; samples first_sample..next_sample-1 of the run are consumed by it."""

    step: int  # 1-based number of the update
    epoch: int
    first_sample: int
    next_sample: int
    sample_ids: tuple[str, ...]
    checksum: int  # of the samples; what the ranks have trained on must add up to it
    tokens: int  # real ones
    padded_tokens: int
    buckets: tuple[int, ...]  # padded length of each micro-batch, rank after rank
    micro_batches: tuple[int, ...]  # of each rank
    imbalance: float  # padded tokens of the busiest rank over those of the average one


@dataclass(frozen=True)
class CollatedStep:
    """One rank's share of a step, before its features."""

    outline: StepOutline
    noise_std: float
    rows: tuple[tuple[int, ...], ...]
    batches: tuple[Batch, ...]


@dataclass(frozen=True)
class StepBatch:
    """One rank's share of an optimizer step's input."""

    outline: StepOutline
    micro_batches: tuple[MicroBatch, ...]
    noise_std: float
    target_s: float = 0.0  # seconds of the target's work, in parts that add up over ranks
    target_idle_s: float = 0.0  # seconds that it was held back before, likewise
    ready: Ready = NOW

    @property
    def sample_ids(self) -> tuple[str, ...]:
        """Ids in the order of the micro-batches."""
        return tuple(i for micro in self.micro_batches for i in micro.batch.sample_ids)

    @property
    def checksum(self) -> int:
        """Of the samples in the micro-batches."""
        return checksum(self.sample_ids)


def total_steps(plan: BatchPlan, config: Config) -> int:
    """Optimizer steps of the whole run."""
    full = plan.num_steps(config.training.epochs)
    return min(full, config.training.max_steps or full)


def stream_steps(plan: BatchPlan, config: Config) -> int:
    """Steps that data and features are made for: the run's, and those past its end that prove the last checkpoint."""
    return total_steps(plan, config) + config.checkpoint.proof_steps


def batches(plan: BatchPlan, dataset: Dataset, source: FeatureSource, config: Config, *, next_sample: int) -> Iterator[StepBatch]:
    """Step batches from the one that begins at sample `next_sample` to the stream's end, in this thread."""
    return with_features(collated_steps(plan, dataset, config, next_sample=next_sample), source, config)


def collated_steps(
    plan: BatchPlan, dataset: Dataset, config: Config, *, next_sample: int, rank: int = 0, num_ranks: int = 1
) -> Iterator[CollatedStep]:
    """The share of drafter rank `rank` of each step from the one that begins at sample `next_sample` to the stream's end."""
    last = stream_steps(plan, config)
    while True:
        planned = plan.step_at(next_sample)
        step = planned.epoch * plan.steps_per_epoch + planned.index_in_epoch + 1
        if step > last:
            return
        shares = plan.shares(planned, num_ranks)
        if config.training.feature_source == "cached":
            shares = tuple(joined(share, config.bucket.tokens_per_microbatch) for share in shares)
        collated = [
            collate([dataset.sample(row) for row in micro.rows], micro.padded_length, planned.epoch, config.training, _PAD_ID)
            for micro in shares[rank]
        ]
        yield CollatedStep(
            outline=outline(planned, step, shares, dataset),
            noise_std=noise_std(step, config.training.feature_noise),
            rows=tuple(micro.rows for micro in shares[rank]),
            batches=tuple(collated),
        )
        next_sample = planned.next_sample


def with_features(
    steps: Iterable[CollatedStep],
    source: FeatureSource,
    config: Config,
    stream: SideStream | None = None,
    busy: Callable[[], float] = time.perf_counter,
    idle: Callable[[], float] = lambda: 0.0,
) -> Iterator[StepBatch]:
    """The same steps with their features, computed on `stream`.

    `busy` and `idle` are running totals of the seconds that the target works and is held back; where `source` only
    receives, they are what the sender says.
    """
    stream = stream or SideStream(torch.device("cpu"))
    idle_before = idle()
    for collated in steps:
        busy_before = busy()
        micro_batches, ready = stream.run(lambda collated=collated: _micro_batches(collated, source, config))
        idle_now = idle()
        yield StepBatch(collated.outline, micro_batches, collated.noise_std, busy() - busy_before, idle_now - idle_before, ready)
        idle_before = idle_now


def outline(planned: PlannedStep, step: int, shares: Sequence[Sequence[PlannedMicroBatch]], dataset: Dataset) -> StepOutline:
    """What all ranks together do in the step."""
    everyone = [micro for share in shares for micro in share]
    rows = [row for micro in everyone for row in micro.rows]
    loads = [sum(micro.padded_length * len(micro.rows) for micro in share) for share in shares]
    sample_ids = tuple(dataset.sample_id(row) for micro in planned.micro_batches for row in micro.rows)
    return StepOutline(
        step=step,
        epoch=planned.epoch,
        first_sample=planned.first_sample,
        next_sample=planned.next_sample,
        sample_ids=sample_ids,
        checksum=checksum(sample_ids),
        tokens=int(sum(int(dataset.lengths[row]) for row in rows)),
        padded_tokens=sum(loads),
        buckets=tuple(micro.padded_length for micro in everyone),
        micro_batches=tuple(map(len, shares)),
        imbalance=max(loads) * len(loads) / sum(loads),
    )


def pad_ids(rows: Sequence[np.ndarray], padded_length: int) -> Tensor:
    """input_ids_BT int64, padded on the right as in the batches of `collated_steps`."""
    ids_BT = np.full((len(rows), padded_length), _PAD_ID, dtype=np.int64)
    for place, ids in enumerate(rows):
        ids_BT[place, : len(ids)] = ids
    return torch.from_numpy(ids_BT)


def checksum(sample_ids: Iterable[str]) -> int:
    """Sum of crc32s: ranks can add theirs up in any order, and 2 million samples stay exact in float64."""
    return sum(zlib.crc32(sample_id.encode()) for sample_id in sample_ids)


def _micro_batches(collated: CollatedStep, source: FeatureSource, config: Config) -> tuple[MicroBatch, ...]:
    made = []
    for rows, batch in zip(collated.rows, collated.batches, strict=True):
        features_BTF = source(rows, batch.input_ids_BT)
        if collated.noise_std > 0:
            features_BTF = add_noise(features_BTF, batch, collated.outline.epoch, config.training.seed, collated.noise_std)
        labels_BAS, mask_BAS = block_labels(
            batch.input_ids_BT, batch.loss_mask_BT, batch.lengths_B, batch.anchors_BA, batch.keep_BA, config.drafter.block_size
        )
        made.append(MicroBatch(batch, features_BTF, labels_BAS, mask_BAS))
    return tuple(made)


def add_noise(features_BTF: Tensor, batch: Batch, epoch: int, seed: int, std: float) -> Tensor:
    """Uniform noise of the step's level on the real rows, drawn per sample: batch shape and padding don't change it.

    The sum is float32, because bfloat16 keeps 8 bits: noise of 0.05 on a feature of 20 would be rounded away.
    """
    noisy_BTF = features_BTF.float().clone()
    for row, (sample_id, length) in enumerate(zip(batch.sample_ids, batch.lengths_B.tolist(), strict=True)):
        noise = feature_noise((length, features_BTF.shape[-1]), seed, epoch, sample_id, std)
        noisy_BTF[row, :length] += torch.from_numpy(noise).to(noisy_BTF.device)
    return noisy_BTF
