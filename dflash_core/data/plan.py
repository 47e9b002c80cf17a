"""The batch plan: which rows make up which optimizer step, as a pure function of (lengths, bucket settings, seed).

One integer of progress: `next_sample`, the samples consumed since the run's start. Epoch, step and place in the
epoch follow from it.

Steps are dealt like cards. The epoch's rows, shuffled within their buckets, are laid out from the longest bucket to
the shortest, and row i goes to hand i mod S of the S steps. Rows of a bucket are neighbours, so every step gets
floor(n / S) or ceil(n / S) of each bucket's n rows; steps that are homogeneous in length were a fault of the incident
run. The padded tokens of two steps differ by at most one row of the longest bucket plus one row.

N rows, S optimizer steps of an epoch.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dflash_core.config_data import BucketConfig
from dflash_core.data.buckets import bucket_lengths
from dflash_core.errors import DataError, IdentityError


@dataclass(frozen=True)
class MicroBatch:
    """Rows of one bucket, padded to `padded_length` tokens."""

    rows: tuple[int, ...]
    padded_length: int


@dataclass(frozen=True)
class PlannedStep:
    """One optimizer step: samples [first_sample, first_sample + num_samples) of the run, in micro-batches."""

    epoch: int
    index_in_epoch: int
    first_sample: int
    num_samples: int
    micro_batches: tuple[MicroBatch, ...]

    @property
    def next_sample(self) -> int:
        """Progress after this step."""
        return self.first_sample + self.num_samples


class BatchPlan:
    """The steps of every epoch of a dataset with these row lengths (int [N], tokens)."""

    def __init__(self, lengths: np.ndarray, bucket: BucketConfig, seed: int) -> None:
        """Raises DataError where there is no row to plan, or one without tokens."""
        if len(lengths) == 0:
            raise DataError("The training split has 0 rows, expected at least one to plan. Run stage prepare on more data.")
        if np.min(lengths) < 1:
            row = int(np.argmin(lengths))
            raise DataError(f"Row {row} of the training split has {int(lengths[row])} tokens, expected at least 1. Run stage prepare again.")
        self.bucket = bucket
        self.seed = seed
        self._padded_N = bucket_lengths(np.asarray(lengths), bucket.multiple)
        wanted = int(self._padded_N.sum()) / bucket.tokens_per_step
        self.steps_per_epoch = min(len(lengths), max(1, round(wanted)))
        self._epoch = lru_cache(maxsize=2)(self._deal)  # the epoch at hand, and the next where a loader runs ahead

    @property
    def num_samples(self) -> int:
        """Rows of the split: samples of one epoch."""
        return len(self._padded_N)

    def num_steps(self, epochs: int) -> int:
        """Optimizer steps of a run of so many epochs."""
        return self.steps_per_epoch * epochs

    def step_at(self, next_sample: int) -> PlannedStep:
        """The step that starts at this progress.

        Raises:
            IdentityError: not a step boundary of this plan, so the progress belongs to another plan.
        """
        epoch, offset = divmod(next_sample, self.num_samples)
        bounds = self._epoch(epoch).bounds
        index = int(np.searchsorted(bounds, offset))
        if next_sample < 0 or bounds[index] != offset:
            raise IdentityError(
                f"Progress {next_sample} is no step boundary of this plan (nearest in epoch {epoch}: "
                f"{epoch * self.num_samples + int(bounds[max(0, index - 1)])}), expected one. "
                "Resume with the data, bucket settings and seed the run began with."
            )
        return self._step(epoch, index)

    def shares(self, step: PlannedStep, num_ranks: int) -> tuple[tuple[MicroBatch, ...], ...]:
        """The step's rows dealt to ranks: each row, from the longest on, to the rank with the fewest padded tokens so far.

        A function of the step and the number of ranks alone; one rank gets the step's own micro-batches. A rank may
        get none where rows are few.
        """
        if num_ranks == 1:
            return (step.micro_batches,)
        rows = [(row, micro.padded_length) for micro in step.micro_batches for row in micro.rows]
        loads, dealt = [0] * num_ranks, [[] for _ in range(num_ranks)]
        for row, length in rows:  # micro-batches come longest first
            rank = loads.index(min(loads))
            loads[rank] += length
            dealt[rank].append(row)
        return tuple(tuple(self._micro_batches(np.array(part, dtype=np.int64))) for part in dealt)

    def step_number(self, number: int) -> PlannedStep:
        """Optimizer step `number` of the run, 0-based."""
        return self._step(*divmod(number, self.steps_per_epoch))

    def _step(self, epoch: int, index: int) -> PlannedStep:
        dealt = self._epoch(epoch)
        rows = dealt.order[dealt.bounds[index] : dealt.bounds[index + 1]]
        return PlannedStep(
            epoch=epoch,
            index_in_epoch=index,
            first_sample=epoch * self.num_samples + int(dealt.bounds[index]),
            num_samples=len(rows),
            micro_batches=tuple(self._micro_batches(rows)),
        )

    def _micro_batches(self, rows: np.ndarray) -> list[MicroBatch]:
        """Longest bucket first, so that a step too big for memory fails at its start; parts of a bucket are even."""
        batches = []
        padded = self._padded_N[rows]
        for length in np.unique(padded)[::-1].tolist():
            members = rows[padded == length]
            most = max(1, self.bucket.tokens_per_microbatch // length)
            for part in np.array_split(members, -(-len(members) // most)):
                batches.append(MicroBatch(tuple(part.tolist()), length))
        return batches

    def _deal(self, epoch: int) -> "_Epoch":
        steps, count = self.steps_per_epoch, self.num_samples
        shuffle_N, hand_S = _words(self.seed, epoch, count), _words(self.seed, epoch, steps, "steps")
        laid_out = np.lexsort((shuffle_N, -self._padded_N))
        hand = np.argsort(hand_S, kind="stable")[np.arange(count) % steps]
        order = laid_out[np.argsort(hand, kind="stable")]
        bounds = np.concatenate([[0], np.cumsum(np.bincount(hand, minlength=steps))])
        return _Epoch(order=order, bounds=bounds)


def joined(micro_batches: Sequence[MicroBatch], most_tokens: int) -> tuple[MicroBatch, ...]:
    """Neighbours as one micro-batch, while their rows, padded to the longest, stay within `most_tokens`.

    For features that are read from disk: padding costs the drafter three small products, and a micro-batch of its own
    some 1,500 calls and a copy of all weights. A target's forward would pay for each padded token.
    """
    parts: list[MicroBatch] = []
    for micro in micro_batches:  # longest first
        rows = (*parts[-1].rows, *micro.rows) if parts else ()
        if parts and len(rows) * parts[-1].padded_length <= most_tokens:
            parts[-1] = MicroBatch(rows, parts[-1].padded_length)
        else:
            parts.append(micro)
    return tuple(parts)


@dataclass(frozen=True)
class _Epoch:
    """Rows in the order of their steps, int64 [N], and where each step starts in it, int64 [S + 1]."""

    order: np.ndarray
    bounds: np.ndarray


def _words(seed: int, epoch: int, count: int, purpose: str = "rows") -> np.ndarray:
    """Raw words of a counter-based generator, uint64 [count]: NumPy keeps them the same between its versions."""
    key = hashlib.blake2b(f"{seed}\0{epoch}\0plan\0{purpose}".encode(), digest_size=16).digest()
    return np.random.Philox(key=int.from_bytes(key, "little")).random_raw(count)
