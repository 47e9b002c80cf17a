"""Finds drops of accuracy or acceptance, and tells one bad batch from lasting damage."""

import numpy as np

from dflash_core.diagnosis.finding import Finding
from dflash_core.diagnosis.robust import local_sigma, trailing_median
from dflash_core.diagnosis.view import ALARM, FEW, MEMORY, View

# One or two lines below, then back: a batch. Longer and back: something nobody has recorded. Not back: damage.
BATCH_ROWS = 2
# A drop of less than a sixth of the level is of no account, however quiet the series.
LEAST_SHARE = 1 / 6
MOST = 50


def accuracy_drops(view: View) -> list[Finding]:
    """Drops of the first accuracy-like series; the others are named where they show the same."""
    series = {n: v for n, v in view.log.accuracies.items() if np.isfinite(v).sum() >= 2 * FEW}
    if not series:
        return _slow_loss(view)
    name = next(iter(series))
    found = _drops(view, name, series[name])
    for other, values in list(series.items())[1:4]:
        seen = {f.index for f in _drops(view, other, values)}
        found = [f.with_detail(also_in=[*f.detail.get("also_in", []), other]) if seen & set(range(f.index - 2, f.index + 3)) else f for f in found]
    return found


def _drops(view: View, name: str, values: np.ndarray) -> list[Finding]:
    rows = np.flatnonzero(np.isfinite(values))
    series = values[rows]
    level, sigma = trailing_median(series, MEMORY), local_sigma(series)
    score = (series - level) / sigma
    score[:MEMORY] = 0.0
    found: list[Finding] = []
    after = 0
    for i in np.flatnonzero((score < -ALARM) & (series < (1 - LEAST_SHARE) * level)):
        if i < after or len(found) >= MOST:
            continue
        while i > after and score[i - 1] < -3:  # it began on the line before, by less than the alarm
            i -= 1
        end = _end(series, int(i), float(level[i]), float(sigma[i]))
        found.append(_drop(view, name, (rows, series, score), int(i), end))
        after = end if end is not None else len(series)
    return found


def _end(series: np.ndarray, i: int, level: float, sigma: float) -> int | None:
    """First line back within three sigma of the level before, with most of the next five; None if never."""
    for j in range(i + 1, len(series)):
        if series[j] > level - 3 * sigma and np.median(series[j : j + 5]) > level - 3 * sigma:
            return j
    return None


def _drop(view: View, name: str, arrays: tuple[np.ndarray, np.ndarray, np.ndarray], i: int, end: int | None) -> Finding:
    rows, series, score = arrays
    stop = end if end is not None else len(series)
    lasts = stop - i
    lowest = i + int(np.argmin(series[i : min(stop, i + MEMORY)]))
    kind = "batch_variance" if end is not None and lasts <= BATCH_ROWS else "sustained_degradation" if _lasting(lasts, len(series), end) else "unexplained"
    step = float(view.log.steps[rows[i]])
    low = float(series[i] if kind == "batch_variance" else series[lowest])
    detail = {"from": float(series[i - 1]), "to": low, "class": kind, "series": name, "rows": int(lasts), "back_at": None}
    if end is not None:
        detail["back_at"] = float(view.log.steps[rows[end]])
    tail = {
        "batch_variance": f"back after {lasts} line{'s' if lasts > 1 else ''}: one batch",
        "unexplained": f"for {lasts} lines, then back: no event is recorded there",
        "sustained_degradation": "and stays low",
    }[kind]
    text = f"{name} drops from {detail['from']:.3g} to {low:.3g} at step {step:g}, {tail}"
    severity = "fault" if kind == "sustained_degradation" else "warning" if kind == "unexplained" else "note"
    return Finding(
        kind="accuracy_drop", step=step, index=int(rows[i]), severity=severity, size=float(-score[i : stop].min()), text=text, detail=detail
    )


def _lasting(lasts: int, count: int, end: int | None) -> bool:
    """Never back, with enough lines seen to say so; or back only after a twentieth of the run."""
    return lasts >= 10 if end is None else lasts > max(50, count // 20)


def _slow_loss(view: View) -> list[Finding]:
    """Too few accuracies for sigma: a steady fall from the best while the loss falls is still worth a word."""
    for name, values in view.log.accuracies.items():
        known = np.flatnonzero(np.isfinite(values))
        if len(known) < 4:
            continue
        series, loss = values[known], view.log.loss[known]
        best = int(np.argmax(series))
        after = series[best:]
        if len(after) >= 3 and (np.diff(after) <= 0).all() and after[-1] < series[best] and (np.diff(loss) < 0).all():
            detail = {"from": float(series[best]), "to": float(after[-1]), "class": "sustained_degradation", "series": name, "few_lines": len(series)}
            text = f"{name} falls from {series[best]:.4g} to {after[-1]:.4g} while the loss goes on falling"
            step = float(view.log.steps[known[best]])
            return [Finding(kind="train_eval_split", step=step, index=int(known[best]), severity="fault", text=text, detail=detail)]
    return []
