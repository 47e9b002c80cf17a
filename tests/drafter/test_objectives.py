"""Losses written out by hand, and denominators that come from masks alone."""

import math

import pytest
import torch

from dflash_core.config import ObjectiveConfig
from dflash_core.drafter.objectives import default_gamma, make_objective

from .conftest import SPEC, gradients, make_batch, make_drafter

MASK = torch.tensor([[[True, True, False, True], [False] * 4, [True, False, False, False]]])
CE = torch.tensor([[[0.5, 1.0, 99.0, 2.0], [7.0] * 4, [3.0, 1.0, 1.0, 1.0]]])


def test_decayed_loss_written_out() -> None:
    """Spec 2.1: sum(w CE) / sum(w), w[k] = mask * exp(-max(k-1, 0) / gamma); a hole masks its slot alone."""
    gamma, total, weight_sum = 4.0, 0.0, 0.0
    for anchor in range(3):
        for k in range(1, 5):
            if MASK[0, anchor, k - 1]:
                weight = math.exp(-(k - 1) / gamma)
                total += weight * CE[0, anchor, k - 1].item()
                weight_sum += weight
    objective = make_objective(ObjectiveConfig(gamma=gamma), block_size=5)
    assert objective.denominator(MASK) == pytest.approx(weight_sum)
    assert objective.loss_sum(CE, MASK).item() / objective.denominator(MASK) == pytest.approx(total / weight_sum)


def test_dpace_written_out() -> None:
    """w_k = sum_{m>=k} prod_{i<=m} ((1-alpha) p_i + alpha) over labelled slots, divided by the anchors that have a label."""
    alpha, total = 0.5, 0.0
    for anchor in range(3):
        slots = [s for s in range(4) if MASK[0, anchor, s]]
        smoothed = {s: (1 - alpha) * math.exp(-CE[0, anchor, s].item()) + alpha for s in slots}
        chance = {s: math.prod(smoothed[i] for i in slots if i <= s) for s in slots}
        total += sum(sum(chance[m] for m in slots if m >= s) * CE[0, anchor, s].item() for s in slots)
    objective = make_objective(ObjectiveConfig(kind="dpace", alpha=alpha), block_size=5)
    assert objective.denominator(MASK) == 2
    assert objective.loss_sum(CE, MASK).item() == pytest.approx(total)


def test_dpace_weights_have_no_gradient() -> None:
    ce = CE.clone().requires_grad_()
    objective = make_objective(ObjectiveConfig(kind="dpace"), block_size=5)
    (gradient,) = torch.autograd.grad(objective.loss_sum(ce, MASK), ce)
    torch.testing.assert_close(gradient, objective.weights(CE.masked_fill(~MASK, 0.0), MASK))


@pytest.mark.parametrize("kind", ["decayed_ce", "dpace"])
def test_masked_slots_may_hold_anything(kind: str) -> None:
    objective = make_objective(ObjectiveConfig(kind=kind), block_size=5)
    ce = CE.masked_fill(~MASK, float("nan")).requires_grad_()
    loss = objective.loss_sum(ce, MASK)
    assert torch.isfinite(loss) and torch.isfinite(torch.autograd.grad(loss, ce)[0]).all()


def test_default_gamma_is_the_papers() -> None:
    assert [default_gamma(size) for size in (16, 10, 8, 4)] == [7.0, 5.0, 4.0, 2.0]


@pytest.mark.parametrize("kind", ["decayed_ce", "dpace"])
def test_spec7_08_denominator_invariance(kind: str) -> None:
    """One micro-batch of four rows, or two of one and three with uneven anchors: the same loss and gradient."""
    drafter, objective = make_drafter(SPEC), make_objective(ObjectiveConfig(kind=kind), SPEC.block_size)
    batch = make_batch(SPEC, num_rows=4)
    batch.keep_BA[1, 3:] = False
    batch.loss_mask_BT[3, 10:] = False

    def step(*parts) -> tuple[float, list[torch.Tensor]]:
        masks = [part.labels(SPEC)[1] for part in parts]
        denominator = sum(objective.denominator(mask) for mask in masks)
        losses = [objective.loss_sum(part.ce_BAS(drafter), mask) / denominator for part, mask in zip(parts, masks, strict=True)]
        parts_gradients = [gradients(drafter, loss) for loss in losses]
        return sum(loss.item() for loss in losses), [sum(group) for group in zip(*parts_gradients, strict=True)]

    whole, split = step(batch), step(batch.rows(0), batch.rows(1, 2, 3))
    assert split[0] == pytest.approx(whole[0], rel=1e-6)
    for ours, expected in zip(split[1], whole[1], strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-4)
