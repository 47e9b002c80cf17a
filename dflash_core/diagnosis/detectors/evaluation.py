"""Finds where held-out results turn for the worse while training goes on getting better."""

import numpy as np

from dflash_core.diagnosis.finding import Finding
from dflash_core.diagnosis.log import Series
from dflash_core.diagnosis.robust import noise_sigma
from dflash_core.diagnosis.view import View

LEAST_POINTS = 6
# The lowest of k noisy values lies about two sigma under their level, so that a rise from it must be larger than that and
# the usual three together; of later pairs of evaluations three in four must rise, where noise alone gives half.
LEAST_SIGMA = 5.0
RISING_PAIRS = 0.75
LEAST_SHARE = 0.005


def train_eval_split(view: View) -> list[Finding]:
    """The best evaluation, if at least a quarter of them come after it and rise steadily, beyond their noise."""
    series = view.log.held_out.get("eval_loss")
    if series is None or len(view.loss_M) < 2:
        return []
    steps, values = _one_a_step(series)
    if len(values) < LEAST_POINTS:
        return []
    best = int(np.argmin(values))
    later = values[best:]
    rise = float(np.median(later[-3:]) - values[best])
    sigma = noise_sigma(later) if len(later) > 4 else noise_sigma(values)
    if len(later) - 1 < max(3, len(values) // 5) or rise < max(LEAST_SIGMA * sigma, LEAST_SHARE * abs(values[best])) or not _rises(later):
        return []
    before, after = np.interp([steps[best], steps[-1]], view.steps_M, view.loss_M)
    if _training_level(view, steps[-1]) > _training_level(view, steps[best]):
        return []  # both rise: that is no split
    detail = {"best": float(values[best]), "final": float(values[-1]), "train_then": float(before), "train_last": float(after)}
    text = f"held-out loss is best at step {steps[best]:g} ({values[best]:.4g}) and rises to {values[-1]:.4g} while the training loss falls"
    return [Finding(kind="train_eval_split", step=float(steps[best]), severity="fault", size=rise / max(sigma, 1e-12), text=text, detail=detail)]


def _rises(values: np.ndarray) -> bool:
    """Whether most pairs of values are in rising order."""
    later, earlier = np.triu_indices(len(values), 1)[::-1]
    return bool((values[later] > values[earlier]).mean() > RISING_PAIRS)


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
