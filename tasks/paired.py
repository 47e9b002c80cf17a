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


def paired_difference(candidate: Sequence[Sequence[int]], champion: Sequence[Sequence[int]], samples: int = 5000, seed: int = 0) -> Paired:
    """Compare prompt by prompt.

    Args:
        candidate, champion: of each prompt, the rounds that committed 1, 2, ... tokens; block sizes may differ.
        samples: draws.
    """
    import numpy as np

    assert len(candidate) == len(champion), (len(candidate), len(champion))
    sides = [np.array([(sum(h), sum(k * n for k, n in enumerate(h, start=1))) for h in side]) for side in (candidate, champion)]
    (taus,) = [[float(side[:, 1].sum() / side[:, 0].sum()) for side in sides]]
    found = Paired(taus[0], taus[1], taus[0] - taus[1], None, None, len(candidate))
    if min(np.count_nonzero(side[:, 0]) for side in sides) < 2:
        return found
    drawn = np.random.default_rng(seed).integers(len(candidate), size=(samples, len(candidate)))
    rounds_and_tokens = [side[drawn].sum(axis=1) for side in sides]
    usable = np.all([both[:, 0] > 0 for both in rounds_and_tokens], axis=0)
    ratios = [both[usable, 1] / both[usable, 0] for both in rounds_and_tokens]
    low, high = np.quantile(ratios[0] - ratios[1], [0.025, 0.975])
    return Paired(taus[0], taus[1], taus[0] - taus[1], float(low), float(high), len(candidate))
