"""Where blocks start and what noise their features get: functions of (seed, epoch, sample id) alone.

A counter-based generator keyed by these makes both independent of rank, batch shape and resume.

B rows, T padded tokens, A anchors per row, S = block_size - 1 label slots.
"""

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


def _generator(seed: int, epoch: int, sample_id: str, purpose: str) -> np.random.Philox:
    key = hashlib.blake2b(f"{seed}\0{epoch}\0{sample_id}\0{purpose}".encode(), digest_size=16).digest()
    return np.random.Philox(key=int.from_bytes(key, "little"))


def draw_anchors(loss_mask: np.ndarray, num_anchors: int, seed: int, epoch: int, sample_id: str) -> np.ndarray:
    """Anchor positions of one row: sorted int32, at most `num_anchors`, uniform without repeats.

    A position counts if it and the next are supervised (dflash_spec 2.1), so a block has at least one label.
    Drawn as the positions with the smallest raw words: NumPy keeps a bit generator's words the same between
    versions, which it doesn't promise of `Generator.choice`.
    """
    valid = np.flatnonzero(loss_mask[:-1] & loss_mask[1:])
    if len(valid) > num_anchors:
        words = _generator(seed, epoch, sample_id, "anchors").random_raw(len(valid))
        valid = np.sort(valid[np.argsort(words, kind="stable")[:num_anchors]])
    return valid.astype(np.int32)


def feature_noise(shape: tuple[int, ...], seed: int, epoch: int, sample_id: str, std: float) -> np.ndarray:
    """Uniform noise 2 (u - 0.5) std in [-std, std): float32 of `shape` (`std` is a half-width, as in speculators)."""
    uniform = np.random.Generator(_generator(seed, epoch, sample_id, "noise")).random(shape, dtype=np.float32)
    return (uniform - np.float32(0.5)) * np.float32(2.0 * std)


def block_labels(
    input_ids_BT: "Tensor",
    loss_mask_BT: "Tensor",
    lengths_B: "Tensor",
    anchors_BA: "Tensor",
    keep_BA: "Tensor",
    block_size: int,
) -> tuple["Tensor", "Tensor"]:
    """Labels of the slots after the anchor: (labels_BAS int64, mask_BAS bool).

    Slot k = 1..S of anchor a is token a + k (same position, no shift). The mask is False outside the row, where the
    token isn't supervised, and for anchors that only fill the row up; a hole in the supervised text masks the slots
    in it alone (the gather rule of dflash_spec 2.1). Masked labels are some token id of the row, never read.
    """
    batch, length = input_ids_BT.shape
    offsets_S = anchors_BA.new_tensor(range(1, block_size))
    positions_BAS = anchors_BA[:, :, None] + offsets_S
    flat = positions_BAS.clamp(max=length - 1).view(batch, -1)
    labels_BAS = input_ids_BT.gather(1, flat).view_as(positions_BAS)
    supervised_BAS = loss_mask_BT.gather(1, flat).view_as(positions_BAS)
    inside_BAS = positions_BAS < lengths_B[:, None, None]
    return labels_BAS, supervised_BAS & inside_BAS & keep_BA[:, :, None]
