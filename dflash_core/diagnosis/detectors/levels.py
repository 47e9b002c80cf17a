"""Finds changes of the loss's level that come at once and stay: shifts, drops that return, stairs at regular distance."""

from dataclasses import dataclass

import numpy as np

from dflash_core.diagnosis.finding import Finding
from dflash_core.diagnosis.robust import MEDIAN_ERROR, centred_median, mad_sigma, step_statistic
from dflash_core.diagnosis.view import ALARM, FEW, View

# Of a change between two windows at least half must fall within this many lines for it to be a step, not a slope.
EDGE_ROWS = 5
ABRUPT_SHARE = 0.5
# From this many lines on windows are compared at every fifth: five lines off, a change still shows nearly whole in 25.
LONG_LOG = 200_000
MOST = 60


@dataclass(frozen=True)
class Change:
    """A change of level at an index: `size` in its own standard errors."""

    index: int
    before: float
    after: float
    size: float

    @property
    def delta(self) -> float:
        """Signed height."""
        return self.after - self.before


def window(count: int) -> int:
    """Lines of the windows whose medians are compared: a tenth of a short log, never over 25; odd."""
    return int(np.clip(count // 10, 5, 25)) | 1


def changes(values: np.ndarray, sigma: np.ndarray, alarm: float = ALARM) -> list[Change]:
    """Abrupt lasting changes of a series.

    The median of the lines after a point less that before it is compared with its own trend over the run, in units of
    the larger of two errors: what the line-to-line noise gives, and what that difference does over the run by itself.
    """
    width = window(len(values))
    if len(values) < 4 * width:
        return []
    raw = step_statistic(values, width, 5 if len(values) > LONG_LOG else 1)
    trend = centred_median(raw, 8 * width + 1)
    inner = slice(width, len(values) - width + 1)
    error = np.maximum(sigma * MEDIAN_ERROR * np.sqrt(2 / width), _spread(raw - trend, width))
    score = np.zeros(len(values))
    score[inner] = ((raw - trend) / error)[inner]
    found: list[Change] = []
    while len(found) < MOST:
        i = int(np.argmax(np.abs(score)))
        if abs(score[i]) < alarm:
            break
        change = _edge(values, i, width, raw[i], float(abs(score[i])))
        if change is not None:
            found.append(change)
        score[max(0, i - width) : i + width] = 0.0
    return sorted(found, key=lambda c: c.index)


def _spread(values: np.ndarray, width: int) -> np.ndarray:
    """Spread of the window difference by stretches of 40 windows, since it is larger where the loss falls fast."""
    size = 40 * width
    if len(values) < 2 * size:
        return np.full(len(values), mad_sigma(values[width:-width]))
    starts = np.arange(0, len(values) - size + 1, size)
    return np.interp(np.arange(len(values)), starts + size / 2, [mad_sigma(values[s : s + size]) for s in starts])


def _edge(values: np.ndarray, i: int, width: int, delta: float, size: float) -> Change | None:
    """Where near i the change happens, if at one place."""
    best, place = 0.0, i
    for j in range(max(EDGE_ROWS, i - width), min(len(values) - EDGE_ROWS, i + width)):
        step = np.median(values[j : j + EDGE_ROWS]) - np.median(values[j - EDGE_ROWS : j])
        if abs(step) > abs(best) and np.sign(step) == np.sign(delta):
            best, place = float(step), j
    if abs(best) < ABRUPT_SHARE * abs(delta):
        return None
    # Within the edge window the first line that is nearer to the level after.
    before, after = float(np.median(values[max(0, place - width) : place])), float(np.median(values[place : place + width]))
    if abs(best) < 2 * max(_slope(values[max(0, place - width) : place], best), _slope(values[place : place + width], best)):
        return None
    near = np.flatnonzero(np.abs(values[place - 2 : place + 3] - after) < np.abs(values[place - 2 : place + 3] - before))
    return Change(int(place - 2 + near[0]) if len(near) else place, before, after, size)


def _slope(part: np.ndarray, towards: float) -> float:
    """How far a window moves by itself in the direction of the change: a steep fall is no stair."""
    half = len(part) // 2
    moved = float(np.median(part[half:]) - np.median(part[:half])) if half else 0.0
    return abs(moved) if moved * towards > 0 else 0.0


def level_changes(view: View) -> list[Finding]:
    """Level shifts of the loss; pairs that undo each other; many downward ones at one distance."""
    if len(view.loss_M) < FEW:
        return _few_lines(view)
    found = changes(view.loss_M, view.sigma_M, view.alarm)
    stairs = _stairs(view, found)
    if stairs is not None:
        return [stairs]
    out: list[Finding] = []
    used: set[int] = set()
    for k, change in enumerate(found):
        if k in used:
            continue
        partner = _return_of(view, found, k)
        if partner is not None:
            used.add(partner)
            out.append(_dip(view, change, found[partner]))
        else:
            out.append(_shift(view, change))
    return [f for f in out if f is not None]


def _return_of(view: View, found: list[Change], k: int) -> int | None:
    """The later change that takes a drop back to within a third of its height."""
    drop = found[k]
    if drop.delta >= 0:
        return None
    for m in range(k + 1, len(found)):
        if found[m].delta > 0.6 * abs(drop.delta):
            return m
    return None


def _dip(view: View, drop: Change, rise: Change) -> Finding:
    a, b = view.steps_M[drop.index], view.steps_M[rise.index]
    detail = {"from": drop.before, "to": drop.after, "returns_at": float(b), "returns_to": rise.after, "sigma_of_difference": drop.size}
    text = f"the loss drops from {drop.before:.4g} to {drop.after:.4g} at step {a:g} and is back at {rise.after:.4g} from step {b:g}"
    return Finding(
        kind="drop_then_return", step=float(a), index=int(view.rows_M[drop.index]), severity="warning", size=drop.size, text=text, detail=detail
    )


def _shift(view: View, change: Change) -> Finding:
    step, up = view.steps_M[change.index], change.delta > 0
    sigma = float(view.sigma_M[change.index])
    detail = {"from": change.before, "to": change.after, "sigma": sigma, "line_sigma": change.delta / sigma, "of_improvement": change.delta / view.improvement}
    text = f"the level of the loss {'rises' if up else 'falls'} from {change.before:.4g} to {change.after:.4g} at step {step:g} and stays"
    return Finding(
        kind="level_shift",
        step=float(step),
        index=int(view.rows_M[change.index]),
        severity="warning" if up else "note",
        size=change.size,
        text=text,
        detail=detail,
    )


def _stairs(view: View, found: list[Change]) -> Finding | None:
    """At least three downward steps at one distance, and few others: memorisation, epoch by epoch."""
    down = [c for c in found if c.delta < 0]
    if len(down) < 3 or len(down) < 0.7 * len(found):
        return None
    distances = np.diff(view.steps_M[[c.index for c in down]])
    period = float(np.median(distances))
    if (np.abs(distances / period - np.maximum(np.round(distances / period), 1)) > 0.08).any() or (distances < 0.8 * period).any():
        return None
    step = float(view.steps_M[down[0].index])
    text = f"the loss falls in stairs every {period:g} steps, {len(down)} of them: samples seen before, so an epoch begins there"
    detail = {"period": period, "steps": [float(view.steps_M[c.index]) for c in down], "height": float(np.median([c.delta for c in down]))}
    return Finding(kind="epoch_stairs", step=step, index=int(view.rows_M[down[0].index]), size=down[0].size, text=text, detail=detail)


def _few_lines(view: View) -> list[Finding]:
    """With a handful of lines no spread is known; a tenth of the level, both ways, right at an event is all that can be said."""
    loss, steps = view.loss_M, view.steps_M
    events = np.concatenate([view.events.of("resume"), view.events.of("checkpoint")])
    out = []
    for event in events:
        i = int(np.searchsorted(steps, event))
        if not 0 < i < len(loss) - 1:
            continue
        change = (loss[i] - loss[i - 1]) / loss[i - 1] if loss[i - 1] else 0.0
        back = np.flatnonzero(np.abs(loss[i + 1 :] - loss[i - 1]) < 0.5 * abs(loss[i] - loss[i - 1]))
        if change < -0.1 and len(back):
            j = i + 1 + int(back[0])
            found = _dip(view, Change(i, float(loss[i - 1]), float(loss[i]), 0.0), Change(j, float(loss[i]), float(loss[j]), 0.0))
            out.append(found.with_detail(few_lines=len(loss)))
        elif change > 0.1 and not len(back):
            shift = _shift(view, Change(i, float(loss[i - 1]), float(np.median(loss[i:])), 0.0))
            out.append(shift.with_detail(few_lines=len(loss)))
    return out
