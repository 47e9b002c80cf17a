"""Rows of several texts, each with its own length, in buffers that all of them share.

Dims: B texts, Q new rows each, T rows, H heads, d head width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


class RaggedRows:
    """How long each text is, and where new rows of all of them go. Every buffer of `capacity` rows follows it."""

    def __init__(self, num_texts: int, capacity: int, device: torch.device) -> None:
        self.lengths = [0] * num_texts
        self.capacity, self._device = capacity, device

    def positions(self, num_new: int) -> Tensor:
        """int64 [B, Q] of the next `num_new` tokens of each text."""
        return torch.tensor(self.lengths, device=self._device)[:, None] + torch.arange(num_new, device=self._device)

    def end(self, num_new: int) -> int:
        """T: rows that the longest text has after `num_new` more."""
        return max(self.lengths) + num_new

    def write(self, buffer_BHTd: Tensor, new_BHQd: Tensor) -> None:
        """Put rows behind each text; they count once `advance` says so."""
        texts_B1 = torch.arange(len(self.lengths), device=self._device)[:, None]
        buffer_BHTd[texts_B1, :, self.positions(new_BHQd.shape[2])] = new_BHQd.transpose(1, 2)

    def advance(self, counts: Sequence[int]) -> None:
        """Keep so many of the rows that were written last, of each text; the next ones overwrite the others."""
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]

    def select(self, texts: Sequence[int]) -> None:
        """Go on with these texts only."""
        self.lengths = [self.lengths[text] for text in texts]
