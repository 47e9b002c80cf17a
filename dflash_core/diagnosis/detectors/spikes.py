"""Finds spikes of the loss: how high, how long until it is back, and in what shape."""

import numpy as np

from dflash_core.diagnosis.finding import Finding
from dflash_core.diagnosis.view import ALARM, FEW, View

# Back means: five lines from here on have their median within one sigma of the level before, which five lines of
# normal noise miss with chance 0.04; this line itself is within two; and none of the five raises the alarm again.
BACK_ROWS = 5
# A spike that takes longer to pass than this is a fault of the run, not of a batch, if so many of its first lines are three sigma up:
# a level that is judged one sigma too low, or two wild lines near each other, make a long way back of one or two.
LONG_ROWS, HIGH_ROWS = 10, 4
# A spike rises within so many lines; a slower rise is a climb.
RISE_ROWS = 3
# Few lines give no spread. Of the real logs looked at the noisiest had a batch spread of 0.19 of its level; a jump
# to twice the level is five of those.
FEW_SPREAD = 0.2
MOST = 400


def loss_spikes(view: View) -> list[Finding]:
    """Excursions above what the lines before let expect by the alarm's sigma or more."""
    loss = view.loss_M
    if len(loss) < 3:
        return []
    sigma = view.sigma_M if len(loss) >= FEW else np.maximum(view.sigma_M * 0, FEW_SPREAD * np.abs(view.expected_M) + 1e-12)
    if len(loss) < FEW and _smooth(view):
        sigma = view.sigma_M
    score = (loss - view.expected_M) / sigma
    # Where the loss falls fast, the lines before are higher than a spike: there a line is held against both its neighbours.
    # Normal noise exceeds both by six sigma with chance 3e-8.
    score[1:-1] = np.maximum(score[1:-1], (loss[1:-1] - np.maximum(loss[:-2], loss[2:])) / sigma[1:-1])
    score[0] = 0.0
    found: list[Finding] = []
    after = 0
    for i in np.flatnonzero(score > view.alarm):
        level = min(view.expected_M[i], loss[i - 1])
        if i < after or not _abrupt(loss, i, level):
            continue
        end = _end(loss, i, view.expected_M[i], sigma[i])
        after = end if end is not None else len(loss)
        # What goes on to rise long after its first lines is a climb, which trends.py tells.
        if loss[i : i + RISE_ROWS].max() - level > (loss[i:after].max() - level) / 3:
            found.append(_spike(view, int(i), end, float(sigma[i])))
        if len(found) >= 20 * MOST:
            break
    return _ranked(found)


def _smooth(view: View) -> bool:
    """Whether even a few lines show that this series hardly moves."""
    return len(view.loss_M) >= 6 and view.sigma_M[0] < 0.01 * abs(float(np.median(view.loss_M)))


def _abrupt(loss: np.ndarray, i: int, level: float) -> bool:
    """Whether most of the way up to the highest of the next lines was made within RISE_ROWS."""
    top = loss[i : i + RISE_ROWS].max()
    return bool(top - loss[max(0, i - RISE_ROWS) : i].min() >= 0.5 * (top - level))


def _end(loss: np.ndarray, i: int, level: float, sigma: float) -> int | None:
    """First line from which the loss is back; None if it isn't by the log's end."""
    for j in range(i + 1, len(loss), 1):
        if loss[j] > level + 2 * sigma:
            continue
        next_rows = loss[j : j + BACK_ROWS]
        limit = level + sigma if len(next_rows) == BACK_ROWS else level + 2 * sigma
        if np.median(next_rows) <= limit and next_rows.max() <= level + ALARM * sigma:
            return j
        if j - i > 5000:
            return None
    return None


def _spike(view: View, i: int, end: int | None, sigma: float) -> Finding:
    loss, steps = view.loss_M, view.steps_M
    level = float(view.expected_M[i])
    stop = end if end is not None else len(loss)
    part = loss[i - 1 : stop]
    rises = np.diff(part[: max(2, 50)])
    jump = int(np.argmax(rises)) + i  # the line after the largest rise of one line
    highest = int(np.argmax(loss[i:stop])) + i
    before, peak = float(loss[i - 1]), float(loss[jump])
    rows = None if end is None else end - i
    recovery = None if end is None else float(steps[end] - steps[i])
    detail = {
        "before": before,
        "peak": peak,
        "ratio": peak / before if before > 0 else None,
        "highest": float(loss[highest]),
        "highest_step": float(steps[highest]),
        "level": level,
        "sigma": sigma,
        "recovery_steps": recovery,
        "recovery_rows": rows,
        "high_rows": int((loss[i : min(stop, i + LONG_ROWS)] > level + 3 * sigma).sum()),
        "trajectory": _trajectory(loss[i:stop], level, sigma, end),
        "left_over": float(np.median(loss[i + 1 :]) - level) if end is None and i + 1 < len(loss) else 0.0,
    }
    length = "it does not come back" if end is None else "gone on the next line" if rows == 1 else f"back after {recovery:g} steps"
    text = f"the loss jumps from {before:.4g} to {peak:.4g} at step {steps[i]:g}" + (
        f" (×{detail['ratio']:.1f})" if detail["ratio"] else ""
    )
    size = float((loss[i:stop].max() - min(level, before)) / sigma)
    return Finding(
        kind="loss_spike", step=float(steps[i]), index=int(view.rows_M[i]), size=size, text=f"{text}; {length}", detail=detail
    )


def _trajectory(part: np.ndarray, level: float, sigma: float, end: int | None) -> str:
    """oscillating: under 3 sigma and over 6 again before it is back; monotone: falling; none: never back."""
    if end is None:
        return "none"
    high = part > level + 6 * sigma
    low = part < level + 3 * sigma
    first_low = int(np.argmax(low)) if low.any() else len(part)
    return "oscillating" if high[first_low:].any() else "monotone"


def _ranked(found: list[Finding]) -> list[Finding]:
    """The largest, in order of steps."""
    kept = sorted(found, key=lambda f: -f.size)[:MOST]
    return sorted(kept, key=lambda f: f.step)
