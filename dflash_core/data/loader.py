"""Samples to the tensors of one micro-batch.

B rows, T padded tokens, A anchors per row (the most any row of the batch has, at least 1).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dflash_core.config import TrainingConfig
from dflash_core.data.anchors import draw_anchors
from dflash_core.data.dataset import Sample


@dataclass(frozen=True)
class Batch:
    """One micro-batch on the CPU.

    input_ids_BT int64, right-padded; loss_mask_BT bool, False on padding; lengths_B int64; anchors_BA int64, sorted,
    filled up with the row's last anchor (or 0); keep_BA bool, False on that filling.
    """

    sample_ids: tuple[str, ...]
    input_ids_BT: Tensor
    loss_mask_BT: Tensor
    lengths_B: Tensor
    anchors_BA: Tensor
    keep_BA: Tensor


def collate(samples: Sequence[Sample], padded_length: int, epoch: int, training: TrainingConfig, pad_id: int) -> Batch:
    """The batch of these samples in this order; each row's anchors depend on nothing but seed, epoch and sample id."""
    longest = max(len(sample.input_ids) for sample in samples)
    assert longest <= padded_length, f"a row of {longest} tokens in a micro-batch padded to {padded_length}"
    input_ids_BT = np.full((len(samples), padded_length), pad_id, dtype=np.int64)
    loss_mask_BT = np.zeros((len(samples), padded_length), dtype=np.bool_)
    for row, sample in enumerate(samples):
        input_ids_BT[row, : len(sample.input_ids)] = sample.input_ids
        loss_mask_BT[row, : len(sample.loss_mask)] = sample.loss_mask
    anchors = [draw_anchors(s.loss_mask, training.num_anchors, training.seed, epoch, s.sample_id) for s in samples]
    anchors_BA, keep_BA = _pad_anchors(anchors)
    return Batch(
        sample_ids=tuple(sample.sample_id for sample in samples),
        input_ids_BT=torch.from_numpy(input_ids_BT),
        loss_mask_BT=torch.from_numpy(loss_mask_BT),
        lengths_B=torch.tensor([len(sample.input_ids) for sample in samples], dtype=torch.int64),
        anchors_BA=torch.from_numpy(anchors_BA),
        keep_BA=torch.from_numpy(keep_BA),
    )


def _pad_anchors(anchors: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Anchors of all rows side by side. The filling repeats the last anchor, so that rows stay sorted."""
    width = max(1, *(len(row) for row in anchors))
    anchors_BA = np.zeros((len(anchors), width), dtype=np.int64)
    keep_BA = np.zeros((len(anchors), width), dtype=np.bool_)
    for row, positions in enumerate(anchors):
        if len(positions):
            anchors_BA[row] = positions[-1]
            anchors_BA[row, : len(positions)] = positions
            keep_BA[row, : len(positions)] = True
    return anchors_BA, keep_BA
