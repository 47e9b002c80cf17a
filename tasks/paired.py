"""The difference of two acceptance lengths on the same prompts, with its bootstrap interval.

Prompts are drawn, not rounds, since rounds of one text are dependent; and each draw takes the same prompts for both, so
that what prompts have in common cancels.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Paired:
    """Pooled τ of both, their difference (candidate minus champion) and its 95 % interval; None without a spread."""

    candidate: float
    champion: float
    difference: float
    low: float | None
    high: float | None
    num_prompts: int

    def tree(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def paired_difference(
    candidate: Sequence[tuple[int, int]], champion: Sequence[tuple[int, int]], samples: int = 5000, seed: int = 0
) -> Paired:
    """Compare prompt by prompt.

    Args:
        candidate, champion: rounds of each prompt, and the tokens that they committed.
        samples: draws.
    """
    import numpy as np

    assert len(candidate) == len(champion), (len(candidate), len(champion))
    sides = [np.array(side, dtype=np.int64).reshape(-1, 2) for side in (candidate, champion)]
    taus = [float(side[:, 1].sum() / max(side[:, 0].sum(), 1)) for side in sides]
    low = high = None
    if min(np.count_nonzero(side[:, 0]) for side in sides) >= 2:
        drawn = np.random.default_rng(seed).integers(len(candidate), size=(samples, len(candidate)))
        totals = [side[drawn].sum(axis=1) for side in sides]
        usable = np.all([total[:, 0] > 0 for total in totals], axis=0)
        ratios = [total[usable, 1] / total[usable, 0] for total in totals]
        low, high = (float(q) for q in np.quantile(ratios[0] - ratios[1], [0.025, 0.975]))
    return Paired(*taus, taus[0] - taus[1], low, high, len(candidate))
