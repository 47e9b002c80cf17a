"""Finds losses that aren't finite, and their disguises: exactly zero, or frozen."""

import numpy as np

from dflash_core.diagnosis.finding import Finding
from dflash_core.diagnosis.robust import noise_sigma
from dflash_core.diagnosis.view import View

# Identical losses in a row. With noise of at least two units of the log's rounding the chance of a repeat is under
# 0.3 a line, and of twenty in a row under 1e-10.
FROZEN_ROWS = 20
MOST_STRETCHES = 20


def nonfinite(view: View) -> list[Finding]:
    """NaN or infinite losses in stretches; zeros and frozen stretches that stand for them."""
    log = view.log
    bad = ~np.isfinite(log.loss)
    found = [_stretch(view, a, b, "not finite") for a, b in stretches(bad)[:50]]
    found += [_unlogged(view, float(step)) for step in log.stopped_by[:50]]
    norm = log.aligned.get("grad_norm")
    if norm is not None and not found:
        # An absent norm is NaN here too, so that only a norm that is mostly there can be missed.
        lost = ~np.isfinite(norm) & ~bad
        if lost.any() and np.isfinite(norm).mean() > 0.8:
            found += [_norm_only(view, a, b) for a, b in stretches(lost)[:50]]
    return found + (_disguised(view) if not bad.any() else [])


def stretches(mask: np.ndarray) -> list[tuple[int, int]]:
    """First and last index of each run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return [(int(a), int(b) - 1) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _stretch(view: View, a: int, b: int, what: str) -> Finding:
    steps = view.log.steps
    to_end, whole = b == len(view.log) - 1, a == 0 and b == len(view.log) - 1
    where = f"at step {steps[a]:g}" if a == b else f"from step {steps[a]:g} to {steps[b]:g}"
    text = f"the loss is {what} {where}" + (", the whole log" if whole else ", the end of the log" if to_end else "")
    detail = {"first": float(steps[a]), "last": float(steps[b]), "rows": b - a + 1, "to_the_end": to_end, "as": what}
    return Finding(kind="nonfinite", step=float(steps[a]), index=a, severity="fault", size=float("inf"), text=text, detail=detail)


def _unlogged(view: View, step: float) -> Finding:
    """A step that raised before it had a line, in a log of ours."""
    steps = view.log.steps
    end = step > steps[-1]
    text = f"the loss or the gradient's norm is not finite at step {step:g}, which was not done" + (", the end of the log" if end else "")
    detail = {"first": step, "last": step, "rows": 1, "to_the_end": bool(end), "as": "not finite"}
    index = min(int(np.searchsorted(steps, step)), len(steps) - 1)
    return Finding(kind="nonfinite", step=step, index=index, severity="fault", size=float("inf"), text=text, detail=detail)


def _norm_only(view: View, a: int, b: int) -> Finding:
    """A norm that isn't finite while the loss is: loss scaling skips such a step, which is its normal work."""
    steps = view.log.steps
    text = f"the gradient norm is not finite at step {steps[a]:g}" + (f" to {steps[b]:g}" if b > a else "") + ", the loss is"
    detail = {"first": float(steps[a]), "last": float(steps[b]), "rows": b - a + 1, "series": "grad_norm"}
    severity = "warning" if b - a < 3 else "fault"
    return Finding(kind="nonfinite", step=float(steps[a]), index=a, severity=severity, size=float("inf"), text=text, detail=detail)


def _disguised(view: View) -> list[Finding]:
    loss = view.log.loss
    zero = loss == 0.0
    # A loss that was far from zero the line before; a task can be learnt down to 0.0000.
    jumps = [(a, b) for a, b in stretches(zero) if a == 0 or loss[a - 1] > 20 * max(noise_sigma(loss[max(0, a - 50) : a]), 1e-4)]
    found = [_stretch(view, a, b, "exactly 0, which is how some trainers print NaN,") for a, b in jumps if b > a or b == len(loss) - 1]
    repeated = np.concatenate([[False], np.diff(loss) == 0])
    still = [(a, b) for a, b in stretches(repeated & ~zero) if b - a + 1 >= FROZEN_ROWS]
    outside = len(loss) - sum(b - a + 1 for a, b in still)
    if len(still) > MOST_STRETCHES or repeated.sum() - (len(loss) - outside) > 0.3 * outside or outside < FROZEN_ROWS:
        return found  # the log rounds so coarsely that repeats are usual
    frozen = [(a - 1, b) for a, b in still]
    return found + [_stretch(view, a, b, f"frozen at {loss[a]:g}") for a, b in frozen]
