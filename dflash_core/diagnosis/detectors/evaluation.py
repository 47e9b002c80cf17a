"""Finds where held-out results get worse while training goes on getting better: for good, or for a while."""

import numpy as np

from dflash_core.diagnosis.finding import Finding
from dflash_core.diagnosis.log import Series
from dflash_core.diagnosis.robust import noise_sigma
from dflash_core.diagnosis.view import ALARM, FEW, View

LEAST_POINTS = 6
# The lowest of k noisy values lies about two sigma under their level, so that a rise from it must be larger than that and
# the usual three together; of later pairs of evaluations three in four must rise, where noise alone gives half.
LEAST_SIGMA = 5.0
RISING_PAIRS = 0.75
# Of held-out losses a few points give their noise, so that a rise must also be this share of the best.
LEAST_SHARE = 0.01
# A burst is held against the evaluations right before it, whose noise it must exceed as a spike does its lines'.
BURST_BEFORE = 3
BURST_SHARE = 0.02
# Of the way up, what a later evaluation must have made back down for the burst to be over.
BACK_SHARE = 0.75


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


def overfit_bursts(view: View) -> list[Finding]:
    """Evaluations that rise out of those before and come back, while the training loss shows nothing: fitted for a while to what it saw last."""
    series = view.log.held_out.get("eval_loss")
    if series is None or len(view.loss_M) < FEW:
        return []
    steps, values = _one_a_step(series)
    if len(values) < 2 * LEAST_POINTS:
        return []
    sigma = noise_sigma(values)
    found: list[Finding] = []
    after = 0
    for i in range(BURST_BEFORE, len(values) - 1):
        level = float(np.median(values[i - BURST_BEFORE : i]))
        if i < after or values[i] - level < max(ALARM * sigma, BURST_SHARE * abs(level)):
            continue
        highest = np.maximum.accumulate(values[i:-1])
        back = np.flatnonzero(values[i + 1 :] < highest - BACK_SHARE * (highest - level))
        if not len(back) or back[0] >= len(values) // 4:
            break  # it stays: train_eval_split's
        after = i + 1 + int(back[0])
        if _training_level(view, steps[after - 1]) <= _training_level(view, steps[i - 1]) + view.sigma_M[-1]:
            found.append(_burst(steps, values, (i, after), level, sigma))
    return found


def _burst(steps: np.ndarray, values: np.ndarray, where: tuple[int, int], level: float, sigma: float) -> Finding:
    i, after = where
    peak = float(values[i:after].max())
    detail = {"from": level, "to": peak, "last": float(steps[after - 1]), "back_at": float(steps[after]), "evaluations": after - i}
    text = f"the held-out loss rises from {level:.4g} to {peak:.4g} at step {steps[i]:g} and is back at step {steps[after]:g}, while the training loss shows nothing"
    return Finding(kind="overfit_burst", step=float(steps[i]), severity="warning", size=(peak - level) / max(sigma, 1e-12), text=text, detail=detail)


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
