"""Finds where held-out results turn for the worse while training goes on getting better."""

import numpy as np

from dflash_core.diagnosis.finding import Finding
from dflash_core.diagnosis.log import Series
from dflash_core.diagnosis.robust import noise_sigma
from dflash_core.diagnosis.view import View

LEAST_POINTS = 6
# Of what the evaluation had gained, how much it must give back.
LEAST_SHARE = 0.05


def train_eval_split(view: View) -> list[Finding]:
    """The best evaluation, if at least a quarter of them come after it and rise steadily over three sigma of their noise."""
    series = view.log.held_out.get("eval_loss")
    if series is None or len(view.loss_M) < 2:
        return []
    steps, values = _one_a_step(series)
    if len(values) < LEAST_POINTS:
        return []
    best = int(np.argmin(values))
    later = values[best:]
    rise, gained = float(np.median(later[-2:]) - values[best]), float(values[0] - values[best])
    sigma = noise_sigma(np.diff(later)) if len(later) > 4 else noise_sigma(values)
    steady = len(later) > 1 and (np.diff(later) > 0).mean() > 0.7
    if len(later) - 1 < max(3, len(values) // 4) or rise < max(3 * sigma, LEAST_SHARE * gained) or not steady:
        return []
    before, after = np.interp([steps[best], steps[-1]], view.steps_M, view.loss_M)
    if _training_level(view, steps[-1]) > _training_level(view, steps[best]):
        return []  # both rise: that is no split
    detail = {"best": float(values[best]), "last": float(values[-1]), "train_then": float(before), "train_last": float(after)}
    text = f"held-out loss is best at step {steps[best]:g} ({values[best]:.4g}) and rises to {values[-1]:.4g} while the training loss falls"
    return [Finding(kind="train_eval_split", step=float(steps[best]), severity="fault", size=rise / max(sigma, 1e-12), text=text, detail=detail)]


def _one_a_step(series: Series) -> tuple[np.ndarray, np.ndarray]:
    """Finite evaluations in order of steps, the last of each step."""
    known = np.isfinite(series.values)
    steps, values = series.steps[known], series.values[known]
    order = np.argsort(steps, kind="stable")
    steps, values = steps[order], values[order]
    last = np.append(np.diff(steps) > 0, True) if len(steps) else np.zeros(0, bool)
    return steps[last], values[last]


def _training_level(view: View, step: float) -> float:
    """Median of the training losses up to a step."""
    i = int(np.searchsorted(view.steps_M, step, side="right"))
    return float(np.median(view.loss_M[max(0, i - 9) : max(i, 1)]))
