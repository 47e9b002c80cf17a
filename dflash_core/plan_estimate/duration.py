"""How long a step takes: multiply-adds over measured rates, or, for a GPU that is not here, over a range of them."""

from collections.abc import Sequence

from dflash_core.plan_estimate.probe import Rates
from dflash_core.plan_estimate.sizing import Sizing


def step_seconds(sizings: Sequence[Sizing], rates: Rates) -> tuple[float, float]:
    """Least and most seconds of an optimizer step with ranks as fast as the probe's.

    Ranks that run both do so one after the other (they share a device); target ranks and drafter ranks work at the same
    time, and the slower ones count. Checkpoints, evaluations and waiting come on top.
    """
    fast, slow = ([_seconds(sizing, rates, which) for sizing in sizings] for which in (1, 0))
    return max(fast), max(slow)


def _seconds(sizing: Sizing, rates: Rates, which: int) -> float:
    role, products = sizing.role, sizing.products
    seconds = 0.0
    if role.runs_target:
        seconds += products.target / role.count / rates.target[which]
    if role.runs_drafter:
        seconds += products.drafter / role.count / rates.drafter[which]
        seconds += sizing.drafter.total / role.drafter_shards / rates.update[which]
    return seconds


def assumed_seconds(sizings: Sequence[Sizing], products_per_second: float) -> float:
    """Seconds of a step at a rate that is only assumed, of target and drafter alike; the update is left out."""
    return max(
        (role.runs_target * s.products.target + role.runs_drafter * s.products.drafter) / role.count / products_per_second
        for s in sizings
        for role in [s.role]
    )
