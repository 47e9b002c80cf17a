"""Finds spikes of the gradient norm, and says whether the loss felt them."""

import numpy as np

from dflash_core.diagnosis.finding import Finding
from dflash_core.diagnosis.robust import local_sigma, trailing_median
from dflash_core.diagnosis.view import ALARM, FEW, MEMORY, View

# Norms spread over decades and are spiky by nature: a spike is also well above the lines before it.
LEAST_RATIO = 1.8
# So many by height over the lines before, and so many by their ratio: the one moves weights, the other is unusual.
MOST = 8


def gradient_spikes(view: View) -> list[Finding]:
    """The largest norms over ALARM sigma, in the logarithm, and LEAST_RATIO above the lines before."""
    norm = view.log.aligned.get("grad_norm")
    if norm is None:
        return []
    rows = np.flatnonzero(np.isfinite(norm) & (norm > 0))
    if len(rows) < 2 * FEW:
        return []
    logs = np.log(norm[rows])
    level = trailing_median(logs, MEMORY)
    score = (logs - level) / local_sigma(logs)
    # The first lines have no level yet.
    score[: MEMORY // 3] = 0.0
    hits = np.flatnonzero((score > ALARM) & (logs - level > np.log(LEAST_RATIO)))
    heads = [i for i in hits if i - 1 not in set(hits.tolist())] if len(hits) < 5000 else hits.tolist()
    by_ratio = sorted(heads, key=lambda i: -(logs[i] - level[i]))[:MOST]
    by_height = sorted(heads, key=lambda i: np.exp(level[i]) - np.exp(logs[i]))[:MOST]
    return [_spike(view, int(rows[i]), float(np.exp(level[i])), float(score[i]), len(heads)) for i in sorted({*by_ratio, *by_height})]


def _spike(view: View, row: int, level: float, size: float, count: int) -> Finding:
    norm, step = float(view.log.aligned["grad_norm"][row]), float(view.log.steps[row])
    felt = _loss_effect(view, row)
    text = f"the gradient norm is {norm:.4g} at step {step:g}, {norm / level:.1f} times the lines before; " + (
        "the loss shows nothing" if felt < 4 else f"the loss is {felt:.0f} sigma up there"
    )
    detail = {"before": level, "peak": norm, "ratio": norm / level, "loss_effect_sigma": felt, "of_how_many": count}
    return Finding(kind="grad_spike", step=step, index=row, size=size, text=text, detail=detail)


def _loss_effect(view: View, row: int) -> float:
    """Largest rise of the loss, in sigma, on this line and the two after it."""
    i = int(np.searchsorted(view.rows_M, row))
    near = slice(i, i + 3)
    if i >= len(view.loss_M):
        return float("inf")
    return float(max(0.0, ((view.loss_M[near] - view.expected_M[i]) / view.sigma_M[near]).max()))
