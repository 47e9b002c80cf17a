"""The fast paths equal the masked reference, forward and backward, and cost what they promise."""

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_core.drafter import attention
from dflash_core.drafter.attention import Blocks, fast_attention, reference_attention, sdpa_attention

# Groups of a few rows, so that tiny shapes have many groups, free prefixes and masked strips.
SMALL_GROUPS = {"CPU_GROUP_ROWS": 12, "ACCELERATOR_GROUP_ROWS": 12, "MIN_FREE_ROWS": 3}
H, d = 2, 8


@st.composite
def cases(draw: st.DrawFn) -> dict:
    length = draw(st.integers(1, 40))
    num_anchors = draw(st.integers(1, 9))
    anchors = draw(st.lists(st.lists(st.integers(0, length), min_size=num_anchors, max_size=num_anchors), min_size=1, max_size=3))
    slots = draw(st.integers(2, 6))
    return {
        "length": length,
        "anchors": [sorted(row) if draw(st.booleans()) else row for row in anchors],  # duplicates, 0 and disorder included
        "slots": slots,
        "heads_per_key": draw(st.integers(1, 3)),
        "first_slot": draw(st.integers(0, 1)),
        "window": draw(st.one_of(st.none(), st.integers(1, 50))),
        "seed": draw(st.integers(0, 9)),
    }


def run(path, case: dict, dtype: torch.dtype) -> list[torch.Tensor]:
    """Output and gradients of the five inputs."""
    generator = torch.Generator().manual_seed(case["seed"])
    anchors_BA = torch.tensor(case["anchors"])
    B, A = anchors_BA.shape
    R, K, T = (case["slots"] - case["first_slot"]) * case["heads_per_key"], case["slots"], case["length"]
    shapes = [(B, H, A, R, d), (B, H, T, d), (B, H, T, d), (B, H, A, K, d), (B, H, A, K, d)]
    inputs = [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]
    upstream = torch.randn(shapes[0], generator=generator).to(dtype)
    with mock.patch.multiple(attention, **SMALL_GROUPS):
        blocks = Blocks.plan(anchors_BA, K, case["heads_per_key"], case["first_slot"])
        out = path(*inputs, blocks, case["window"])
    return [out, *torch.autograd.grad(out, inputs, upstream)]


@pytest.mark.parametrize("path", [fast_attention, sdpa_attention])
@settings(max_examples=60, deadline=None)
@given(case=cases())
def test_fast_equals_reference(path, case: dict) -> None:
    for ours, reference in zip(run(path, case, torch.float32), run(reference_attention, case, torch.float32), strict=True):
        assert torch.isfinite(ours).all()
        torch.testing.assert_close(ours, reference, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("path", [fast_attention, sdpa_attention])
@settings(max_examples=15, deadline=None)
@given(case=cases())
def test_fast_equals_reference_within_bfloat16(path, case: dict) -> None:
    for ours, reference in zip(run(path, case, torch.bfloat16), run(reference_attention, case, torch.float32), strict=True):
        assert ours.dtype == torch.bfloat16
        # A rounding of bfloat16 is 2^-8 of a value near 1; a gradient that cancels to 0 keeps an error of that size.
        assert (ours - reference).norm() <= 0.03 * reference.norm() + 0.01 * ours.numel() ** 0.5


def test_visibility_written_out() -> None:
    """The masks against the rule of spec 2.1, entry by entry."""
    anchors_BA, K, W, T = torch.tensor([[0, 3, 9]]), 4, 5, 12
    blocks = Blocks.plan(anchors_BA, K, heads_per_key=2)
    full = attention.context_mask(anchors_BA, blocks.slots_R, torch.arange(T), None)
    sliding = attention.context_mask(anchors_BA, blocks.slots_R, torch.arange(T), W)
    own = attention.block_mask(blocks.slots_R, K, W)
    for index, anchor in enumerate(anchors_BA[0].tolist()):
        for row, slot in enumerate(blocks.slots_R.tolist()):
            for position in range(T):
                assert full[0, index, row, position] == (position < anchor)
                assert sliding[0, index, row, position] == (position < anchor and position >= anchor + slot - (W - 1))
    for row, slot in enumerate(blocks.slots_R.tolist()):
        assert own[row].tolist() == [other <= slot and other > slot - W for other in range(K)]


def test_cost_is_linear_in_anchors() -> None:
    """Scored pairs of query row and context row, which time and memory follow, at 2,048 tokens and blocks of 16."""

    def scored(num_anchors: int) -> int:
        anchors = torch.arange(num_anchors)[None] * 2048 // num_anchors
        groups = Blocks.plan(anchors, 16, heads_per_key=2).groups
        return sum((group.stop - group.start) * 32 * group.highest for group in groups)

    assert scored(512) <= 2.02 * scored(256)
    assert scored(256) <= 0.55 * 256 * 32 * 2048  # half of what a mask over the whole context would score
