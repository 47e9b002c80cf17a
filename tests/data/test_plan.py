"""The plan loses and repeats nothing, mixes buckets in every step, and is a pure function of its arguments."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_core.config_data import BucketConfig
from dflash_core.data.buckets import bucket_length, bucket_lengths, padding_stats
from dflash_core.data.plan import BatchPlan, MicroBatch, joined
from dflash_core.errors import DataError, IdentityError

BUCKETS = st.builds(
    lambda multiple, micro, times: BucketConfig(multiple=multiple, tokens_per_microbatch=micro, tokens_per_step=micro * times),
    st.sampled_from([1, 8, 32]),
    st.integers(16, 400),
    st.integers(1, 5),
)
LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=120).map(lambda values: np.asarray(values, dtype=np.int32))


def steps_of(plan: BatchPlan, epochs: int, start: int = 0) -> list:
    steps, at = [], start
    while at < epochs * plan.num_samples:
        steps.append(plan.step_at(at))
        at = steps[-1].next_sample
    assert at == epochs * plan.num_samples
    return steps


@settings(deadline=None, max_examples=80)
@given(lengths=LENGTHS, bucket=BUCKETS, seed=st.integers(0, 2**31))
def test_every_epoch_has_each_row_once(lengths, bucket, seed):
    plan = BatchPlan(lengths, bucket, seed)
    steps = steps_of(plan, epochs=3)
    assert len(steps) == 3 * plan.steps_per_epoch == plan.num_steps(3)
    for epoch in range(3):
        rows = [row for step in steps if step.epoch == epoch for micro in step.micro_batches for row in micro.rows]
        assert sorted(rows) == list(range(len(lengths)))
    for number, step in enumerate(steps):
        assert (step.epoch, step.index_in_epoch) == divmod(number, plan.steps_per_epoch)
        assert step.num_samples == sum(len(micro.rows) for micro in step.micro_batches) > 0
        assert plan.step_number(number) == step


@settings(deadline=None, max_examples=80)
@given(lengths=LENGTHS, bucket=BUCKETS, seed=st.integers(0, 2**31))
def test_steps_mix_buckets_in_proportion(lengths, bucket, seed):
    plan = BatchPlan(lengths, bucket, seed)
    padded = bucket_lengths(lengths, bucket.multiple)
    rows_of_bucket = Counter(padded.tolist())
    tokens = []
    for step in steps_of(plan, epochs=2):
        found = Counter({micro.padded_length: 0 for micro in step.micro_batches})
        for micro in step.micro_batches:
            found[micro.padded_length] += len(micro.rows)
        for length, count in rows_of_bucket.items():
            share = count / plan.steps_per_epoch
            assert math.floor(share) <= found[length] <= math.ceil(share)
        tokens.append(sum(length * count for length, count in found.items()))
    assert max(tokens) - min(tokens) <= 2 * padded.max()


@settings(deadline=None, max_examples=80)
@given(lengths=LENGTHS, bucket=BUCKETS, seed=st.integers(0, 2**31))
def test_token_budgets(lengths, bucket, seed):
    plan = BatchPlan(lengths, bucket, seed)
    total = int(bucket_lengths(lengths, bucket.multiple).sum())
    assert plan.steps_per_epoch == min(len(lengths), max(1, round(total / bucket.tokens_per_step)))
    for step in steps_of(plan, epochs=1):
        for micro in step.micro_batches:
            assert {bucket_length(int(lengths[row]), bucket.multiple) for row in micro.rows} == {micro.padded_length}
            assert len(micro.rows) == 1 or len(micro.rows) * micro.padded_length <= bucket.tokens_per_microbatch


@settings(deadline=None, max_examples=40)
@given(lengths=LENGTHS, bucket=BUCKETS, seed=st.integers(0, 2**31))
def test_resuming_anywhere_gives_the_same_rest(lengths, bucket, seed):
    steps = steps_of(BatchPlan(lengths, bucket, seed), epochs=2)
    for number in {0, 1, len(steps) // 2, len(steps) - 1} & set(range(len(steps))):
        rest = steps_of(BatchPlan(lengths.copy(), bucket, seed), epochs=2, start=steps[number].first_sample)
        assert rest == steps[number:]


@settings(deadline=None, max_examples=40)
@given(lengths=LENGTHS, bucket=BUCKETS, seed=st.integers(0, 2**31))
def test_other_progress_is_refused(lengths, bucket, seed):
    plan = BatchPlan(lengths, bucket, seed)
    boundaries = {step.first_sample for step in steps_of(plan, epochs=2)}
    for progress in set(range(-1, 2 * plan.num_samples)) - boundaries:
        with pytest.raises(IdentityError, match="no step boundary"):
            plan.step_at(progress)


def test_order_depends_on_seed_and_epoch():
    lengths = np.arange(1, 201, dtype=np.int32)
    bucket = BucketConfig(multiple=32, tokens_per_microbatch=256, tokens_per_step=1024)
    first, again, other = (steps_of(BatchPlan(lengths, bucket, seed), epochs=2) for seed in (1, 1, 2))
    assert first == again and first != other
    half = len(first) // 2
    assert [s.micro_batches for s in first[:half]] != [s.micro_batches for s in first[half:]]


def test_the_order_is_pinned():
    """Runs resume across machines and NumPy versions only if this stays as it is."""
    plan = BatchPlan(np.asarray([5, 40, 33, 64, 70, 12, 31, 90]), BucketConfig(tokens_per_step=256, tokens_per_microbatch=128), 7)
    steps = [plan.step_number(number) for number in range(4)]
    assert [[micro.rows for micro in step.micro_batches] for step in steps] == [
        [(4,), (1,), (0, 6)],
        [(7,), (3, 2), (5,)],
        [(7,), (3,), (5, 6)],
        [(4,), (1, 2), (0,)],
    ]


def test_no_rows_are_refused():
    with pytest.raises(DataError, match="0 rows"):
        BatchPlan(np.zeros(0, dtype=np.int32), BucketConfig(), 0)


def test_a_row_without_tokens_is_refused() -> None:
    with pytest.raises(DataError, match="Row 1 of the training split has 0 tokens"):
        BatchPlan(np.array([3, 0, 5]), BucketConfig(), 0)


def test_padding_stats():
    stats = padding_stats(np.asarray([1, 32, 33, 64]), 32)
    assert (stats.tokens, stats.padded_tokens, stats.histogram) == (130, 192, ((32, 2), (64, 2)))
    assert stats.waste == pytest.approx(1 - 130 / 192)
    assert padding_stats(np.zeros(0, dtype=np.int32), 32).waste == 0.0


def test_joined_micro_batches_hold_the_same_rows_within_the_limit() -> None:
    parts = (MicroBatch((1, 2), 64), MicroBatch((3,), 32), MicroBatch((4, 5, 6), 16))
    assert joined(parts, 192) == (MicroBatch((1, 2, 3), 64), MicroBatch((4, 5, 6), 16))
    assert joined(parts, 384) == (MicroBatch((1, 2, 3, 4, 5, 6), 64),)
    assert joined(parts, 1) == parts and joined((), 64) == ()
