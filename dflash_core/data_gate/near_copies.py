"""Finds texts that nearly copy one another: candidates by MinHash, each confirmed by the exact Jaccard similarity.

A text is the set of its runs of SHINGLE characters. Its signature keeps the smallest hash in each of BINS parts of
the hash space (one-permutation MinHash: one pass over the text, where a permutation for each value would take BINS).
Two texts of similarity 0.9 agree in all of at least one band with probability 0.9999, of 0.5 with 0.06.

N texts.
"""

import re
from collections.abc import Sequence

import numpy as np

SHINGLE = 8
BINS = 128
BANDS = 16
# The estimate from 128 bins has a standard deviation of 0.027 at 0.9; what is nearer than this is measured exactly.
MARGIN = 0.06
# Of a bucket with thousands of texts only neighbours are compared, which bounds the work; near-copies share 14 of the 16 buckets.
NEIGHBOURS = 16
PAIRS_AT_ONCE = 8192  # 4 MB of signatures
EMPTY = np.uint32(0xFFFFFFFF)
# Odd, of full width: any such numbers do.
_STEPS = ((1, np.uint64(0x9E3779B97F4A7C15)), (2, np.uint64(0xC2B2AE3D27D4EB4F)), (4, np.uint64(0x165667B19E3779F9)))
_MIX = np.uint64(0xFF51AFD7ED558CCD)
_BAND_KEYS = np.array([0x9E3779B97F4A7C15 * (2 * n + 1) % 2**64 for n in range(BINS // BANDS)], dtype=np.uint64)
_NOT_TEXT = re.compile(r"[\W_]+")


def fold(text: str) -> str:
    """Letters and digits alone, without case: what is left when two people write the same thing differently."""
    return _NOT_TEXT.sub("", text.casefold())


def near_pairs(texts: Sequence[str], similarity: float) -> list[tuple[int, int]]:
    """Pairs (i, j), i < j, of different folded texts with at least this Jaccard similarity.

    In a very large bucket of look-alikes not every pair is found, but each text that has near-copies is in some pair.
    """
    signatures = np.stack([_signature(text) for text in texts]) if texts else np.zeros((0, BINS), np.uint32)
    pairs = _candidates(signatures)
    likely = pairs[_estimates(signatures, pairs) >= similarity - MARGIN]
    return [(i, j) for i, j in likely.tolist() if jaccard(texts[i], texts[j]) >= similarity]


def jaccard(first: str, second: str) -> float:
    """Common shingles over all shingles."""
    one, two = np.unique(_shingles(first)), np.unique(_shingles(second))
    common = len(np.intersect1d(one, two, assume_unique=True))
    return common / (len(one) + len(two) - common)


def _shingles(text: str) -> np.ndarray:
    """Hashes of all runs of SHINGLE characters, uint64; a shorter text is one run, filled up."""
    run = np.frombuffer(text.ljust(SHINGLE, "\0").encode("utf-32-le"), dtype="<u4").astype(np.uint64)
    for width, odd in _STEPS:  # runs of 2 from those of 1, of 4 from 2, of 8 from 4
        run = run[:-width] * odd + run[width:]
    run = (run ^ (run >> np.uint64(33))) * _MIX
    return run ^ (run >> np.uint64(33))


def _signature(text: str) -> np.ndarray:
    """uint32 [BINS]: the smallest of the hashes in each bin, EMPTY where there is none."""
    hashes = _shingles(text)
    signature = np.full(BINS, EMPTY, dtype=np.uint32)
    # The top 7 bits are the bin, the next 32 the value.
    np.minimum.at(signature, (hashes >> np.uint64(57)).astype(np.int64), (hashes >> np.uint64(25)).astype(np.uint32))
    return signature


def _candidates(signatures: np.ndarray) -> np.ndarray:
    """int64 [*, 2]: pairs that agree in a whole band, each once, the smaller number first."""
    pairs = [np.zeros((0, 2), dtype=np.int64)]
    for band in np.split(signatures, BANDS, axis=1):
        key_N = (band.astype(np.uint64) * _BAND_KEYS).sum(axis=1)
        order = np.argsort(key_N, kind="stable")
        order = order[(band[order] != EMPTY).any(axis=1)]  # an empty band says nothing
        for shift in range(1, NEIGHBOURS + 1):
            i, j = order[:-shift], order[shift:]
            alike = key_N[i] == key_N[j]
            if not alike.any():
                break
            pairs.append(np.stack([i[alike], j[alike]], axis=1))
    return np.unique(np.concatenate(pairs), axis=0)


def _estimates(signatures: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Share of equal bins of each pair, of those that either has a value in: an unbiased estimate of the similarity."""
    shares = [np.zeros(0)]
    for first in range(0, len(pairs), PAIRS_AT_ONCE):
        one, two = (signatures[rows] for rows in pairs[first : first + PAIRS_AT_ONCE].T)
        occupied = (one != EMPTY) | (two != EMPTY)
        shares.append(((one == two) & occupied).sum(axis=1) / occupied.sum(axis=1))
    return np.concatenate(shares)
