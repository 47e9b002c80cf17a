"""Finds what the logging did and training didn't: sums for means, running means that restart, aliased log positions."""

import numpy as np

from dflash_core.diagnosis.detectors.evaluation import _one_a_step
from dflash_core.diagnosis.finding import Finding
from dflash_core.diagnosis.robust import mad_sigma, noise_sigma
from dflash_core.diagnosis.view import ALARM, View

# ln of 2^18, the largest vocabulary in common use: no untrained model's mean loss is above it for long.
LARGEST_LN_V = 12.5
# Line-to-line noise of single batches in the real logs looked at is 1.5 % to 19 % of the level; a mean over the epoch so
# far has hundreds of times less.
RUNNING_MEAN_SPREAD = 0.003


def wrong_scale(view: View) -> list[Finding]:
    """A training loss that is a whole multiple of the held-out one, or stays above what any vocabulary allows."""
    ratio = _ratio_to_held_out(view)
    if ratio is not None:
        whole = round(ratio)
        text = f"the training loss is {ratio:.2f} times the held-out loss at the same steps: a sum over {whole} parts logged as a mean"
        detail = {"factor": whole, "measured": ratio}
        return [Finding(kind="loss_scale_wrong", step=float(view.steps_M[0]), index=0, severity="fault", text=text, detail=detail)]
    vocabulary = view.log.facts.get("vocab_size")
    if vocabulary and len(view.loss_M) and view.loss_M[0] > 1.5 * np.log(vocabulary):
        factor = float(view.loss_M[0] / np.log(vocabulary))
        text = f"the first loss is {view.loss_M[0]:.4g}, {factor:.1f} times ln V of a vocabulary of {vocabulary:,.0f}"
        detail = {"factor": round(factor, 2), "measured": factor}
        if len(view.loss_M) > 20 and np.median(view.loss_M[-10:]) > np.log(vocabulary):
            return [Finding(kind="loss_scale_wrong", step=float(view.steps_M[0]), index=0, severity="fault", text=text, detail=detail)]
    return []


def _ratio_to_held_out(view: View) -> float | None:
    """Training over held-out loss where it is one whole number of at least 2 all over the run."""
    series = view.log.held_out.get("eval_loss")
    if series is None or len(view.loss_M) < 10:
        return None
    steps, values = _one_a_step(series)
    good = (values > 0) & (steps >= view.steps_M[0]) & (steps <= view.steps_M[-1])
    if good.sum() < 4:
        return None
    places = np.searchsorted(view.steps_M, steps[good])
    train = np.array([np.median(view.loss_M[max(0, p - 4) : p + 5]) for p in places])
    ratios = train / values[good]
    ratio = float(np.median(ratios))
    return ratio if round(ratio) >= 2 and abs(ratio - round(ratio)) < 0.06 * ratio and mad_sigma(ratios) < 0.06 * ratio else None


def running_mean_restart(view: View) -> list[Finding]:
    """A series too smooth to be of single batches that jumps and, as more batches enter the new mean, comes back."""
    loss = view.loss_M
    if len(loss) < 6 or noise_sigma(loss) > RUNNING_MEAN_SPREAD * abs(float(np.median(loss))):
        return []
    change = np.diff(loss)
    sigma = noise_sigma(loss)
    jumps = np.flatnonzero(np.abs(change) > max(50 * sigma, 0.02 * abs(float(np.median(loss)))))
    jumps = np.array([i for i in jumps if sigma < RUNNING_MEAN_SPREAD * abs(float(np.median(loss[: i + 1]))) and _comes_back(loss, int(i))])
    if not 0 < len(jumps) <= max(1, len(loss) // 6):
        return []
    found = []
    for i in jumps[:20]:
        step = float(view.steps_M[i + 1])
        text = (
            f"the loss moves by {sigma / abs(np.median(loss)):.2%} a line, far less than batches do, and jumps from {loss[i]:.4g} to "
            f"{loss[i + 1]:.4g} at step {step:g}: a running mean that begins anew shows one batch there"
        )
        detail = {"artefact": "running_mean_restart", "from": float(loss[i]), "to": float(loss[i + 1])}
        found.append(Finding(kind="logging_artifact", step=step, index=int(view.rows_M[i + 1]), size=float(abs(change[i]) / sigma), text=text, detail=detail))
    return found


def _comes_back(loss: np.ndarray, i: int) -> bool:
    """Whether the lines after the jump are nearer to the level before it than to its top, as far as there are any."""
    after = loss[i + 2 :]
    return len(after) < 3 or bool(abs(np.median(after) - loss[i]) < 0.5 * abs(loss[i + 1] - loss[i]))


def aliasing(view: View) -> list[Finding]:
    """Lines at multiples of the save or log interval against lines of another regular grid: two kinds of batch, not a change.

    The log's lines then fall on two grids. Between them the level differs by far more than within either.
    """
    steps, loss = view.steps_M, view.loss_M
    if len(loss) < 9 or (np.diff(steps) > 0).all() and len(np.unique(np.diff(steps))) == 1:
        return []
    for interval in _intervals(view):
        on = np.mod(steps, interval) == 0
        if not 3 <= on.sum() <= len(steps) // 2 or (~on).sum() < 5:
            continue
        rest = np.diff(steps[~on])
        period = float(np.median(rest))
        if (np.abs(rest - period) > 0.01 * period).mean() > 0.2 or not period % interval:
            continue
        level = np.interp(steps[on], steps[~on], loss[~on])
        apart = loss[on] - level
        spread = max(mad_sigma(apart), noise_sigma(loss[~on]), 1e-12)
        if abs(np.median(apart)) > ALARM * spread / np.sqrt(on.sum()) and (np.sign(apart) == np.sign(np.median(apart))).all():
            return [_alias(view, float(interval), period, on, float(np.median(apart)))]
    return []


def _intervals(view: View) -> list[float]:
    """Candidate intervals: those of the events, and round ones."""
    told = [float(np.median(np.diff(s))) for s in view.events.steps.values() if len(s) > 2]
    return [v for v in dict.fromkeys([*told, 1000.0, 500.0, 200.0, 100.0, 50.0]) if v > 1]


def _alias(view: View, interval: float, period: float, on: np.ndarray, apart: float) -> Finding:
    step = float(view.steps_M[on][0])
    side = "higher" if apart > 0 else "lower"
    text = (
        f"lines at multiples of {interval:g} are {abs(apart):.3g} {side} than the other lines, which are {period:g} steps apart: "
        f"each grid meets its own batches, so the log's positions alias with the data ({period:g} steps an epoch?)"
    )
    detail = {"artefact": "log_position_aliasing", "interval": interval, "other_interval": period, "apart": apart}
    return Finding(kind="logging_artifact", step=step, index=int(view.rows_M[np.flatnonzero(on)[0]]), size=abs(apart), text=text, detail=detail)
