"""Finds slow movements of the loss: climbs, divergence, episodes that pass, and stretches without progress."""

import numpy as np

from dflash_core.diagnosis.detectors.nonfinite import stretches
from dflash_core.diagnosis.finding import Finding
from dflash_core.diagnosis.robust import MEDIAN_ERROR, block_medians, noise_sigma
from dflash_core.diagnosis.view import FEW, View

# The run is looked at in about so many blocks; a movement shorter than two blocks is no trend.
BLOCKS = 80
# Of all the loss came down, what an excursion must undo to matter.
SLOW_SHARE = 0.05
DIVERGED_SHARE = 0.3


def climbs(view: View) -> list[Finding]:
    """Where the level of the loss rises above the lowest it had been and stays there for at least three blocks."""
    before_nan = _before_nonfinite(view)
    if len(view.loss_M) < 2 * FEW:
        return before_nan
    block = max(3, len(view.loss_M) // BLOCKS)
    level = block_medians(view.loss_M, block)
    lowest = np.minimum.accumulate(level)
    sigma = view.sigma_M[: len(level) * block : block]
    error = np.maximum(MEDIAN_ERROR * sigma / np.sqrt(block), _wander(level))
    excess = level - lowest
    high = (excess > view.alarm * error) & (excess > SLOW_SHARE * view.improvement)
    found = []
    for a, b in stretches(high):
        if b - a + 1 >= 3:
            found.append(_climb(view, level, excess, (a, b), block))
    return before_nan or found


def _wander(level: np.ndarray) -> float:
    """Spread from block to block in the calmer half of the run: data that changes slowly moves a level too."""
    return noise_sigma(level[len(level) // 2 :]) if len(level) >= 12 else noise_sigma(level)


def _climb(view: View, level: np.ndarray, excess: np.ndarray, where: tuple[int, int], block: int) -> Finding:
    a, b = where
    bottom = int(np.argmin(level[: a + 1]))
    top = a + int(np.argmax(excess[a : b + 1]))
    to_end = b == len(level) - 1
    share = float(excess[b if to_end else top] / view.improvement)
    kind = ("divergence" if share > DIVERGED_SHARE else "slow_climb") if to_end else "instability_episode"
    first, last = (float(view.steps_M[min(k * block + block // 2, len(view.steps_M) - 1)]) for k in (bottom, b))
    begin = _onset(view, level, bottom, a, block)
    detail = {
        "first": float(view.steps_M[begin]),
        "last": last,
        "lowest": float(level[bottom]),
        "lowest_step": first,
        "highest": float(level[top]),
        "share_of_improvement": share,
    }
    what = {
        "divergence": f"and ends at {level[-1]:.4g}, {share:.0%} of what had been gained",
        "slow_climb": f"and ends at {level[-1]:.4g}",
        "instability_episode": f"up to {level[top]:.4g}, and comes back by step {last:g}",
    }[kind]
    text = f"the level of the loss climbs from {level[bottom]:.4g} at step {detail['first']:g} {what}"
    severity = "warning" if kind == "slow_climb" else "fault"
    step = detail["first"]
    size = float(excess[top] / max(_wander(level), 1e-12))
    return Finding(kind=kind, step=step, index=int(view.rows_M[begin]), severity=severity, size=size, text=text, detail=detail)


def _onset(view: View, level: np.ndarray, bottom: int, a: int, block: int) -> int:
    """Row where the climb leaves its bottom: the last block within a quarter of the way to the first high one."""
    limit = level[bottom] + 0.25 * (level[a] - level[bottom])
    calm = [k for k in range(bottom, a + 1) if level[k] <= limit]
    return min((calm[-1] + 1) * block, len(view.steps_M) - 1)


def _before_nonfinite(view: View) -> list[Finding]:
    """A rise on the last lines before the loss stops being finite, against a loss that had been falling."""
    bad = np.flatnonzero(~np.isfinite(view.log.loss))
    if not len(bad) or bad[0] < 4:
        return []
    loss = view.log.loss[: bad[0]]
    rising = 1
    while rising < len(loss) and loss[-rising] > loss[-rising - 1]:
        rising += 1
    low = len(loss) - rising
    if rising < 2 or low < 2:
        return []
    falls = np.diff(loss[: low + 1])
    rise = float(loss[-1] - loss[low])
    usual = noise_sigma(loss[: low + 1]) if low >= FEW else float(np.abs(falls[-1]))
    if rise < (3 * usual if low >= FEW else 0.5 * usual) or np.median(falls) > 0:
        return []
    steps = view.log.steps
    detail = {"first": float(steps[low + 1]), "last": float(steps[bad[0] - 1]), "from": float(loss[low]), "to": float(loss[-1])}
    text = f"the loss turns up from {loss[low]:.4g} to {loss[-1]:.4g} by step {detail['last']:g}, right before it stops being finite"
    return [Finding(kind="slow_climb", step=detail["first"], index=low + 1, severity="warning", size=rise / max(usual, 1e-12), text=text, detail=detail)]


def plateau(view: View) -> list[Finding]:
    """A long stretch without progress between two with progress, or a run that never left its first level."""
    if len(view.loss_M) < 5 * FEW:
        return []
    block = max(3, len(view.loss_M) // BLOCKS)
    level = block_medians(view.loss_M, block)
    error = max(_wander(level), float(MEDIAN_ERROR * np.median(view.sigma_M) / np.sqrt(block)))
    if np.ptp(level) < 3 * error and len(level) >= 20:
        return [_flat(view, level, 0, len(level) - 1, block, "never leaves the level it began at")]
    progress = level[:-1] - level[1:]
    still = np.abs(level[:, None] - level[None, :]) < 3 * error
    best = (0, 0)
    for a in range(len(level)):
        stop = a + int(np.argmin(np.append(still[a, a:], False)))
        if stop - a > best[1] - best[0]:
            best = (a, stop - 1)
    a, b = best
    after = float(level[b] - level[-1])
    resumed = b < len(level) - 3 and after > 10 * error and progress[b : b + 3].max() > 3 * error
    if b - a >= 0.25 * len(level) and resumed:
        return [_flat(view, level, a, b, block, "makes no progress for a stretch, then goes on down")]
    return []


def _flat(view: View, level: np.ndarray, a: int, b: int, block: int, what: str) -> Finding:
    first, last = float(view.steps_M[a * block]), float(view.steps_M[min((b + 1) * block, len(view.steps_M)) - 1])
    detail = {"first": first, "last": last, "level": float(np.median(level[a : b + 1]))}
    return Finding(
        kind="plateau", step=first, index=int(view.rows_M[a * block]), text=f"the loss {what} (steps {first:g} to {last:g})", detail=detail
    )
