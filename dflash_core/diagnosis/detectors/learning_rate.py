"""Finds breaks of the learning rate: jumps that its own schedule doesn't make anywhere else."""

import numpy as np

from dflash_core.diagnosis.finding import Finding
from dflash_core.diagnosis.view import FEW, View

# A change of a line is a break if it is this many times the largest usual one, and a fifth of the rate itself.
TIMES_USUAL = 8.0
LEAST_SHARE = 0.2
MOST = 20
# From this many lines on half of the neighbours are looked at, for memory.
LONG_LOG = 200_000


def learning_rate_breaks(view: View) -> list[Finding]:
    """Jumps up or down between two lines. A rate that was rounded in the log moves by its grid, which is no jump."""
    rate = view.log.aligned.get("lr")
    if rate is None:
        return []
    rows = np.flatnonzero(np.isfinite(rate) & (rate >= 0))
    if len(rows) < FEW:
        return []
    lr = rate[rows]
    change = np.diff(lr)
    share = np.abs(change) / np.maximum(np.maximum(lr[1:], lr[:-1]), 1e-30)
    usual = _usual(change, lr)
    hits = np.flatnonzero((share > LEAST_SHARE) & (np.abs(change) > TIMES_USUAL * usual) & (np.abs(change) > 0.02 * lr.max()))
    found = []
    for i in hits[:MOST]:
        if i == 0 and lr[0] == 0:
            continue  # the first line before any update
        step, up = float(view.log.steps[rows[i + 1]]), lr[i + 1] > lr[i]
        text = f"the learning rate goes from {lr[i]:.4g} to {lr[i + 1]:.4g} at step {step:g}"
        detail = {"from": float(lr[i]), "to": float(lr[i + 1])}
        found.append(
            Finding(kind="lr_break", step=step, index=int(rows[i + 1]), severity="warning" if up else "note", size=float(share[i]), text=text, detail=detail)
        )
    return found


def _usual(change: np.ndarray, lr: np.ndarray) -> np.ndarray:
    """Usual change near each line: a warm-up is steeper than the decay after it, so only neighbours count.

    Of those only the ones in its direction: the warm-up that follows a fall to its beginning doesn't make the fall usual.
    """
    sizes = np.abs(change)
    near = np.lib.stride_tricks.sliding_window_view(np.pad(change, 6, mode="edge"), 13)
    chosen = [2, 3, 4, 8, 9, 10] if len(sizes) > LONG_LOG else [*range(6), *range(7, 13)]
    others = np.maximum(near[:, chosen] * np.sign(change)[:, None], 0.0)
    grid = sizes[sizes > 0].min() if (sizes > 0).any() else 0.0
    return np.maximum(np.median(others, axis=1), grid if grid < 1e-3 * lr.max() else 0.0)
