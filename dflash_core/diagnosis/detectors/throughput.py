"""Finds drifting queues, and lasting changes of speed."""

import numpy as np

from dflash_core.diagnosis.detectors.levels import changes
from dflash_core.diagnosis.finding import Finding
from dflash_core.diagnosis.robust import MEDIAN_ERROR, block_medians, local_sigma, noise_sigma
from dflash_core.diagnosis.view import ALARM, FEW, View

# A queue that loses a tenth of its depth over a run, or a speed that changes by a tenth, is worth a line.
LEAST_SHARE = 0.1
STEADY_SHARE = 0.03
MOST_SPEEDS = 20_000


def queue_drift(view: View) -> list[Finding]:
    """Queues whose depth ends elsewhere than it began, by more than noise, and whether the speed followed."""
    found = []
    for name, values in view.log.queues.items():
        rows = np.flatnonzero(np.isfinite(values))
        if len(rows) < 4 * FEW:
            continue
        depth = values[rows]
        k = max(5, len(depth) // 50)
        start, end = float(np.median(depth[:k])), float(np.median(depth[-k:]))
        thirds = [float(np.median(part)) for part in np.array_split(depth, 6)]
        error = MEDIAN_ERROR * noise_sigma(depth) * np.sqrt(2 / k)
        steady = (np.diff(thirds) * np.sign(end - start) > 0).sum() >= 4
        if abs(end - start) < max(ALARM * error, LEAST_SHARE * max(start, end)) or not steady:
            continue
        speed = _speed(view)
        direction = "drains" if end < start else "fills"
        text = f"{name} {direction} from {start:.0f} to {end:.0f} over the run, throughput {speed[0]}" + (f" at {speed[1]:,.0f}" if speed[1] else "")
        detail = {"series": name, "from": start, "to": end, "throughput": speed[0], "tok_per_s": speed[1], "empty_at": _empty_at(view, rows, depth)}
        severity = "warning" if end < start else "note"
        found.append(
            Finding(kind="queue_drift", step=float(view.log.steps[rows[0]]), index=int(rows[0]), severity=severity, size=abs(end - start) / error, text=text, detail=detail)
        )
    return found


def _speed(view: View) -> tuple[str, float | None]:
    speed = view.log.aligned.get("throughput")
    known = speed[np.isfinite(speed)] if speed is not None else np.zeros(0)
    if len(known) < FEW:
        return "not logged", None
    k = max(5, len(known) // 10)
    start, end = float(np.median(known[:k])), float(np.median(known[-k:]))
    if abs(end - start) < STEADY_SHARE * start:
        return "constant", float(np.median(known))
    return ("falling" if end < start else "rising"), end


def _empty_at(view: View, rows: np.ndarray, depth: np.ndarray) -> float | None:
    """Step at which a falling queue will be empty, if it goes on as it did."""
    steps = view.log.steps[rows]
    slope = (np.median(depth[-len(depth) // 4 :]) - np.median(depth[: len(depth) // 4])) / (0.75 * (steps[-1] - steps[0]) or 1.0)
    return float(steps[-1] - np.median(depth[-10:]) / slope) if slope < 0 else None


def throughput_changes(view: View) -> list[Finding]:
    """Lasting changes of the speed by at least a tenth."""
    speed = view.log.aligned.get("throughput")
    inverse = speed is None
    speed = view.log.aligned.get("step_time") if inverse else speed
    if speed is None:
        return []
    rows = np.flatnonzero(np.isfinite(speed))
    if len(rows) < 4 * FEW or (np.diff(speed[rows]) > 0).mean() > 0.95:
        return []  # a clock, not a duration
    # Speed is noisy and its changes last: of a long log medians of some lines are enough.
    block = max(1, len(rows) // MOST_SPEEDS)
    values = block_medians(speed[rows], block)
    rows = rows[::block]
    found = []
    for change in changes(values, local_sigma(values)):
        if abs(change.delta) < LEAST_SHARE * abs(change.before):
            continue
        slower = (change.delta > 0) == inverse
        step = float(view.log.steps[rows[change.index]])
        text = f"{'time of a step' if inverse else 'throughput'} goes from {change.before:.4g} to {change.after:.4g} at step {step:g}"
        detail = {"from": change.before, "to": change.after}
        found.append(
            Finding(
                kind="throughput_change",
                step=step,
                index=int(rows[change.index]),
                severity="warning" if slower else "note",
                size=change.size,
                text=text,
                detail=detail,
            )
        )
    return found
