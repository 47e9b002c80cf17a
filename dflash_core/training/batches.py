"""Turns the plan into step batches: collated tokens, labels and target features, from one progress integer.

This iterator is the seam between target and drafter: today it runs in the loop's own thread, one step
ahead of nothing; a channel with a producer can take its place without the loop knowing.

Dims: B batch rows, T tokens (padded), A anchors per row, K block slots incl. anchor, S = K-1 label slots,
F features width.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dflash_core.config import Config
from dflash_core.data.anchors import block_labels, feature_noise
from dflash_core.data.dataset import Dataset
from dflash_core.data.loader import Batch, collate
from dflash_core.data.plan import BatchPlan, PlannedStep
from dflash_core.training.schedule import noise_std

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
class StepBatch:
    """One optimizer step's input; samples first_sample..next_sample-1 of the run are consumed by it."""

    step: int  # 1-based number of the update
    epoch: int
    first_sample: int
    next_sample: int
    micro_batches: tuple[MicroBatch, ...]
    noise_std: float
    target_s: float

    @property
    def sample_ids(self) -> tuple[str, ...]:
        """Ids in the order of the micro-batches."""
        return tuple(i for micro in self.micro_batches for i in micro.batch.sample_ids)

    @property
    def tokens(self) -> int:
        """Real tokens."""
        return sum(int(micro.batch.lengths_B.sum()) for micro in self.micro_batches)

    @property
    def padded_tokens(self) -> int:
        """Tokens with padding."""
        return sum(micro.batch.input_ids_BT.numel() for micro in self.micro_batches)

    @property
    def buckets(self) -> tuple[int, ...]:
        """Padded length of each micro-batch."""
        return tuple(micro.batch.input_ids_BT.shape[1] for micro in self.micro_batches)


def total_steps(plan: BatchPlan, config: Config) -> int:
    """Optimizer steps of the whole run."""
    full = plan.num_steps(config.training.epochs)
    return min(full, config.training.max_steps or full)


def batches(plan: BatchPlan, dataset: Dataset, source: FeatureSource, config: Config, *, next_sample: int) -> Iterator[StepBatch]:
    """Step batches from the one that begins at sample `next_sample` to the end of the run."""
    last = total_steps(plan, config)
    while True:
        planned = plan.step_at(next_sample)
        step = planned.epoch * plan.steps_per_epoch + planned.index_in_epoch + 1
        if step > last:
            return
        yield make_step_batch(planned, step, dataset, source, config)
        next_sample = planned.next_sample


def make_step_batch(planned: PlannedStep, step: int, dataset: Dataset, source: FeatureSource, config: Config) -> StepBatch:
    """Collate one planned step and take its features."""
    level = noise_std(step, config.training.feature_noise)
    micro_batches, target_s = [], 0.0
    for planned_micro in planned.micro_batches:
        samples = [dataset.sample(row) for row in planned_micro.rows]
        batch = collate(samples, planned_micro.padded_length, planned.epoch, config.training, _PAD_ID)
        began = time.perf_counter()
        features_BTF = source(planned_micro.rows, batch.input_ids_BT)
        target_s += time.perf_counter() - began
        if level > 0:
            features_BTF = add_noise(features_BTF, batch, planned.epoch, config.training.seed, level)
        labels_BAS, mask_BAS = block_labels(
            batch.input_ids_BT, batch.loss_mask_BT, batch.lengths_B, batch.anchors_BA, batch.keep_BA, config.drafter.block_size
        )
        micro_batches.append(MicroBatch(batch, features_BTF, labels_BAS, mask_BAS))
    return StepBatch(step, planned.epoch, planned.first_sample, planned.next_sample, tuple(micro_batches), level, target_s)


def add_noise(features_BTF: Tensor, batch: Batch, epoch: int, seed: int, std: float) -> Tensor:
    """Uniform noise of the step's level on the real rows, drawn per sample: batch shape and padding don't change it.

    The sum is float32, because bfloat16 keeps 8 bits: noise of 0.05 on a feature of 20 would be rounded away.
    """
    noisy_BTF = features_BTF.float().clone()
    for row, (sample_id, length) in enumerate(zip(batch.sample_ids, batch.lengths_B.tolist(), strict=True)):
        noise = feature_noise((length, features_BTF.shape[-1]), seed, epoch, sample_id, std)
        noisy_BTF[row, :length] += torch.from_numpy(noise).to(noisy_BTF.device)
    return noisy_BTF
