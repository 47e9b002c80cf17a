"""Anchors, noise and labels: valid, uniform, and independent of everything but (seed, epoch, sample id)."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_core.config import TrainingConfig
from dflash_core.data.anchors import block_labels, draw_anchors, feature_noise
from dflash_core.data.dataset import Sample
from dflash_core.data.loader import collate

MASKS = st.lists(st.booleans(), min_size=1, max_size=80).map(lambda values: np.asarray(values, dtype=np.bool_))


@settings(deadline=None, max_examples=100)
@given(mask=MASKS, num_anchors=st.integers(1, 40), seed=st.integers(0, 100), epoch=st.integers(0, 9))
def test_anchors_are_valid(mask, num_anchors, seed, epoch):
    anchors = draw_anchors(mask, num_anchors, seed, epoch, "id")
    valid = [t for t in range(len(mask) - 1) if mask[t] and mask[t + 1]]
    assert anchors.dtype == np.int32 and len(anchors) == min(num_anchors, len(valid))
    assert anchors.tolist() == sorted(set(anchors.tolist())) and set(anchors.tolist()) <= set(valid)


def test_anchors_are_uniform_and_redrawn():
    mask = np.ones(41, dtype=np.bool_)
    counts = np.zeros(40)
    for epoch in range(4000):
        counts[draw_anchors(mask, 10, 0, epoch, "id")] += 1
    # each position: binomial(4000, 1/4), sd 27; six of them bound all 40 for a fixed seed with room
    assert np.all(np.abs(counts - 1000) < 6 * 27.4)
    draws = [tuple(draw_anchors(mask, 10, seed, epoch, name)) for seed in (0, 1) for epoch in (0, 1) for name in "ab"]
    assert len(set(draws)) == 8


def test_anchors_and_noise_are_pinned():
    """A resumed run draws the same ones on any machine only if these stay as they are."""
    assert draw_anchors(np.ones(100, dtype=np.bool_), 5, 1, 2, "sample").tolist() == [35, 39, 46, 52, 54]
    assert feature_noise((3,), 1, 2, "sample", 0.5).tolist() == pytest.approx([-0.0379894, -0.0894212, -0.4008264], abs=1e-6)


def test_noise_is_uniform_within_its_width():
    noise = feature_noise((200, 50), 0, 0, "id", 0.05)
    assert noise.shape == (200, 50) and noise.dtype == np.float32
    assert np.abs(noise).max() <= 0.05 and abs(noise.mean()) < 0.002
    assert noise.std() == pytest.approx(0.05 / 3**0.5, rel=0.02)
    assert not np.array_equal(noise, feature_noise((200, 50), 0, 1, "id", 0.05))
    assert not feature_noise((2, 2), 0, 0, "id", 0.0).any()


def make_sample(name: str, length: int, seed: int) -> Sample:
    rng = np.random.default_rng(seed)
    return Sample(name, "other", rng.integers(5, 90, length).astype(np.int32), rng.random(length) < 0.8)


def test_a_batch_holds_its_samples_and_nothing_of_their_neighbours():
    training = TrainingConfig(seed=3, num_anchors=6)
    samples = [make_sample(f"s{n}", 5 + 7 * n, n) for n in range(5)] + [
        Sample("none", "other", np.arange(4, dtype=np.int32), np.asarray([False, True, False, True]))
    ]
    batch = collate(samples, 64, 2, training, pad_id=99)
    assert batch.input_ids_BT.dtype == torch.int64 and batch.loss_mask_BT.dtype == torch.bool
    assert batch.anchors_BA.dtype == torch.int64 and batch.keep_BA.dtype == torch.bool
    assert batch.sample_ids == tuple(s.sample_id for s in samples) and batch.anchors_BA.shape == (6, 6)
    for row, sample in enumerate(samples):
        length = len(sample.input_ids)
        assert batch.lengths_B[row] == length
        assert batch.input_ids_BT[row, :length].tolist() == sample.input_ids.tolist()
        assert batch.input_ids_BT[row, length:].eq(99).all() and not batch.loss_mask_BT[row, length:].any()
        assert batch.loss_mask_BT[row, :length].tolist() == sample.loss_mask.tolist()
        alone = collate([sample], length, 2, training, pad_id=0)
        kept = batch.anchors_BA[row][batch.keep_BA[row]].tolist()
        assert kept == alone.anchors_BA[0][alone.keep_BA[0]].tolist()
        assert kept == draw_anchors(sample.loss_mask, 6, 3, 2, sample.sample_id).tolist()
        filling = batch.anchors_BA[row][~batch.keep_BA[row]].tolist()
        assert set(filling) <= {kept[-1] if kept else 0} and batch.anchors_BA[row].diff().ge(0).all()
    assert not batch.keep_BA[-1].any()
    assert collate(samples[-1:], 4, 0, training, 0).anchors_BA.tolist() == [[0]]


@settings(deadline=None, max_examples=60)
@given(data=st.data(), block_size=st.integers(2, 9))
def test_labels_follow_the_gather_rule(data, block_size):
    lengths = data.draw(st.lists(st.integers(2, 20), min_size=1, max_size=4))
    samples = [make_sample(f"s{n}", length, data.draw(st.integers(0, 99))) for n, length in enumerate(lengths)]
    batch = collate(samples, max(lengths) + data.draw(st.integers(0, 3)), 0, TrainingConfig(num_anchors=5), pad_id=0)
    labels_BAS, mask_BAS = block_labels(
        batch.input_ids_BT, batch.loss_mask_BT, batch.lengths_B, batch.anchors_BA, batch.keep_BA, block_size
    )
    assert labels_BAS.shape == mask_BAS.shape == (*batch.anchors_BA.shape, block_size - 1)
    assert labels_BAS.dtype == torch.int64 and mask_BAS.dtype == torch.bool
    for row, sample in enumerate(samples):
        for column, anchor in enumerate(batch.anchors_BA[row].tolist()):
            for k in range(1, block_size):
                at = anchor + k
                counts = bool(batch.keep_BA[row, column]) and at < len(sample.input_ids) and bool(sample.loss_mask[at])
                assert bool(mask_BAS[row, column, k - 1]) == counts
                assert not counts or labels_BAS[row, column, k - 1] == sample.input_ids[at]
            assert mask_BAS[row, column, 0] == batch.keep_BA[row, column]  # the first slot of a real anchor always counts
