"""The shares of a step: every row once, homogeneous micro-batches, balanced by padded tokens, a function of the plan alone."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_core.config_data import BucketConfig
from dflash_core.data.buckets import bucket_lengths
from dflash_core.data.plan import BatchPlan

BUCKETS = st.builds(
    lambda multiple, micro, times: BucketConfig(multiple=multiple, tokens_per_microbatch=micro, tokens_per_step=micro * times),
    st.sampled_from([1, 8, 32]),
    st.integers(16, 400),
    st.integers(1, 6),
)
LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=80).map(lambda values: np.asarray(values, dtype=np.int32))
RANKS = st.integers(1, 7)


@settings(deadline=None, max_examples=100)
@given(lengths=LENGTHS, bucket=BUCKETS, seed=st.integers(0, 2**31), ranks=RANKS)
def test_every_row_once_in_homogeneous_micro_batches_of_the_right_size(
    lengths: np.ndarray, bucket: BucketConfig, seed: int, ranks: int
) -> None:
    plan, padded = BatchPlan(lengths, bucket, seed), bucket_lengths(lengths, bucket.multiple)
    for number in range(plan.num_steps(2)):
        step = plan.step_number(number)
        shares = plan.shares(step, ranks)
        assert len(shares) == ranks
        rows = [row for share in shares for micro in share for row in micro.rows]
        assert sorted(rows) == sorted(row for micro in step.micro_batches for row in micro.rows)
        for share in shares:
            assert [micro.padded_length for micro in share] == sorted((m.padded_length for m in share), reverse=True)
            for micro in share:
                assert micro.rows and {int(padded[row]) for row in micro.rows} == {micro.padded_length}
                assert len(micro.rows) == 1 or len(micro.rows) * micro.padded_length <= bucket.tokens_per_microbatch


@settings(deadline=None, max_examples=100)
@given(lengths=LENGTHS, bucket=BUCKETS, seed=st.integers(0, 2**31), ranks=RANKS)
def test_the_busiest_rank_has_little_more_than_the_average(
    lengths: np.ndarray, bucket: BucketConfig, seed: int, ranks: int
) -> None:
    """Dealt from the longest on to the rank with least: when the busiest got its last row, which is its shortest, no other had less."""
    plan, padded = BatchPlan(lengths, bucket, seed), bucket_lengths(lengths, bucket.multiple)
    for number in range(plan.steps_per_epoch):
        dealt = [[int(padded[row]) for micro in share for row in micro.rows] for share in plan.shares(plan.step_number(number), ranks)]
        loads = [sum(share) for share in dealt]
        shortest = min(dealt[loads.index(max(loads))])
        assert max(loads) * ranks <= sum(loads) + (ranks - 1) * shortest


@settings(deadline=None, max_examples=40)
@given(lengths=LENGTHS, bucket=BUCKETS, seed=st.integers(0, 2**31), ranks=RANKS)
def test_one_rank_gets_the_steps_own_micro_batches_and_all_ranks_agree(
    lengths: np.ndarray, bucket: BucketConfig, seed: int, ranks: int
) -> None:
    here, there = BatchPlan(lengths, bucket, seed), BatchPlan(lengths.copy(), bucket, seed)
    for number in range(here.steps_per_epoch):
        step = here.step_number(number)
        assert here.shares(step, 1) == (step.micro_batches,)
        # another process, at another time, after it has looked elsewhere
        assert there.shares(there.step_at(step.first_sample), ranks) == here.shares(step, ranks)


def test_ranks_without_rows_get_nothing() -> None:
    plan = BatchPlan(np.array([9, 30]), BucketConfig(multiple=8, tokens_per_microbatch=64, tokens_per_step=64), 0)
    shares = plan.shares(plan.step_number(0), 4)
    assert [[micro.rows for micro in share] for share in shares] == [[(1,)], [(0,)], [], []]


def test_the_shares_are_pinned() -> None:
    """A run that resumes with as many ranks adds up the same rows in the same order only if this stays as it is."""
    plan = BatchPlan(np.asarray([5, 40, 33, 64, 70, 12, 31, 90]), BucketConfig(tokens_per_step=512, tokens_per_microbatch=128), 7)
    shares = plan.shares(plan.step_number(0), 2)
    assert [[(micro.rows, micro.padded_length) for micro in share] for share in shares] == [
        [((7,), 96), ((3, 2), 64), ((6,), 32)],
        [((4,), 96), ((1,), 64), ((0, 5), 32)],
    ]
