"""Length buckets, and what their padding costs.

N samples.
"""

from dataclasses import dataclass

import numpy as np


def bucket_length(length: int, multiple: int) -> int:
    """The bucket of a row of `length` tokens: the next multiple of `multiple`, in tokens."""
    return -(-length // multiple) * multiple


def bucket_lengths(lengths_N: np.ndarray, multiple: int) -> np.ndarray:
    """`bucket_length` of every row: int64 [N]."""
    return -(-lengths_N.astype(np.int64) // multiple) * multiple


@dataclass(frozen=True)
class PaddingStats:
    """Tokens with and without padding; `histogram` has (bucket length, rows) in ascending order."""

    tokens: int
    padded_tokens: int
    histogram: tuple[tuple[int, int], ...]

    @property
    def waste(self) -> float:
        """Share of the padded tokens that is padding."""
        return 1.0 - self.tokens / self.padded_tokens if self.padded_tokens else 0.0


def padding_stats(lengths_N: np.ndarray, multiple: int) -> PaddingStats:
    """What buckets at multiples of `multiple` do to these rows."""
    padded_N = bucket_lengths(lengths_N, multiple)
    buckets, counts = np.unique(padded_N, return_counts=True)
    return PaddingStats(
        tokens=int(lengths_N.sum(dtype=np.int64)),
        padded_tokens=int(padded_N.sum()),
        histogram=tuple(zip(buckets.tolist(), counts.tolist(), strict=True)),
    )
