"""Objectives: how the cross-entropies of a block's label slots become one loss.

An objective gives a sum and a denominator. The denominator is counted from masks alone, before any
forward, over all micro-batches and ranks of an optimizer step; so neither accumulation nor world size
changes the update (design.md 3.2).

Dims: B batch rows, A anchors, S label slots of a block (slot index 0 here is slot k = 1).
"""

from typing import Protocol

import torch
from torch import Tensor

from dflash_core.config import ObjectiveConfig

# Decay lengths of the DFlash paper (A.1), by block size.
PAPER_GAMMAS = {16: 7.0, 10: 5.0, 8: 4.0}


class Objective(Protocol):
    """Step loss = sum of `loss_sum` over micro-batches / sum of `denominator` over micro-batches."""

    def denominator(self, mask_BAS: Tensor) -> float:
        """This micro-batch's part of the step's denominator; a function of the mask alone."""
        ...

    def loss_sum(self, ce_BAS: Tensor, mask_BAS: Tensor) -> Tensor:
        """Weighted sum of cross-entropies, a scalar; masked slots count nothing, whatever they hold."""
        ...


def default_gamma(block_size: int) -> float:
    """Decay length where none is set: the paper's for 16, 10 and 8, else half a block (which is near all three)."""
    return PAPER_GAMMAS.get(block_size, block_size / 2)


class DecayedCrossEntropy:
    """sum(w CE) / sum(w), w_k = exp(-(k-1)/gamma) at slot k >= 1 (paper eq. 4; dflash_spec.md 2.1)."""

    def __init__(self, gamma: float, num_slots: int) -> None:
        self.gamma = gamma
        self.weights_S = torch.exp(-torch.arange(num_slots, dtype=torch.float32) / gamma)

    def denominator(self, mask_BAS: Tensor) -> float:
        # float64: a step's sum over ranks and micro-batches must not depend on how it was split.
        return float((mask_BAS.double() * self.weights_S.to(mask_BAS.device).double()).sum())

    def loss_sum(self, ce_BAS: Tensor, mask_BAS: Tensor) -> Tensor:
        weights_BAS = mask_BAS * self.weights_S.to(ce_BAS.device)
        return (weights_BAS * ce_BAS.masked_fill(~mask_BAS, 0.0)).sum()


class DPace:
    """D-PACE (arXiv 2605.18810): a slot weighs what it adds to the expected accepted length, by the drafter's own confidence.

    With p_j the detached probability of the label at slot j, q_j = (1 - alpha) p_j + alpha the smoothed
    one (1 at masked slots) and c_m = prod_{j<=m} q_j the smoothed chance that slot m is accepted,
        w_k = sum_{m>=k, m labelled} c_m.
    The loss is sum(w CE) over the *number of anchors*, never over sum(w): that would cancel the growth
    of the weights with the drafter's quality (SpecForge issue 828) and make the update depend on the
    partition over ranks (Automodel PR 2572).
    """

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    def denominator(self, mask_BAS: Tensor) -> float:
        return float(mask_BAS.any(dim=-1).sum())

    def loss_sum(self, ce_BAS: Tensor, mask_BAS: Tensor) -> Tensor:
        ce_BAS = ce_BAS.masked_fill(~mask_BAS, 0.0)
        return (self.weights(ce_BAS.detach(), mask_BAS) * ce_BAS).sum()

    def weights(self, ce_BAS: Tensor, mask_BAS: Tensor) -> Tensor:
        """w_BAS, zero at masked slots."""
        smoothed_BAS = ((1.0 - self.alpha) * torch.exp(-ce_BAS) + self.alpha).masked_fill(~mask_BAS, 1.0)
        accepted_BAS = smoothed_BAS.cumprod(dim=-1) * mask_BAS
        # A product with ones, since CUDA has no deterministic cumsum of floats, and a run wants deterministic kernels.
        slots = accepted_BAS.shape[-1]
        later_SS = torch.ones(slots, slots, device=accepted_BAS.device).tril()
        return (accepted_BAS @ later_SS) * mask_BAS


def make_objective(config: ObjectiveConfig, block_size: int) -> Objective:
    """The run's objective, for blocks of `block_size` tokens (anchor included)."""
    if config.kind == "dpace":
        return DPace(config.alpha)
    gamma = default_gamma(block_size) if config.gamma is None else config.gamma
    return DecayedCrossEntropy(gamma, block_size - 1)
