"""Puts rows into one timeline: what restarts, replays, second writers and counters did to the order of steps.

The file's order is what happened; a later session supersedes the steps that it did again, as in our own log.
"""

from dataclasses import dataclass, replace

import numpy as np

from dflash_core.diagnosis.finding import Finding
from dflash_core.diagnosis.log import Log
from dflash_core.diagnosis.robust import noise_sigma

# More restarts than this are no restarts: the numbers aren't a counter.
MOST_SESSIONS = 300


@dataclass(frozen=True)
class Timeline:
    """The log with steps that only grow, and what had to be done to it."""

    log: Log
    findings: tuple[Finding, ...]


def timeline(log: Log) -> Timeline:
    """One row a step, in order."""
    log, findings = _without_repeats(log)
    findings += _other_counters(log)
    falls = np.flatnonzero(np.diff(log.steps) <= 0) + 1
    if not len(falls):
        return Timeline(log, tuple(findings))
    if _returns(log.steps, falls) >= max(2, min(len(falls), MOST_SESSIONS) // 2):
        log, found = _two_writers(log)
        return Timeline(log, (*findings, *found))
    if len(falls) > MOST_SESSIONS and not _epoch_counter(log, falls):
        log = _by_order(log)
        return Timeline(log.noted("the step falls too often to be a counter; rows are counted in the file's order"), tuple(findings))
    if _epoch_counter(log, falls):
        starts = [Finding(kind="counter_change", step=float(log.steps[i]), text="the step counter begins again", detail={"ratio": 0.0}) for i in falls]
        log = _unwrapped(log, falls)
        starts = [f.with_detail(field=log.names["step"], at_step=float(log.steps[i])) for f, i in zip(starts, falls, strict=True)]
        return Timeline(log.noted("the step counter begins again with each epoch; it was continued"), (*findings, *starts))
    log, found = _sessions(log, falls)
    return Timeline(log, (*findings, *found))


def _without_repeats(log: Log) -> tuple[Log, list[Finding]]:
    """Drop rows that repeat the step of the row before: several ranks or loggers wrote each step.

    One repeat of the very first step is a start begun again, which is left for later.
    """
    if len(log) < 2:
        return log, []
    same = np.flatnonzero(np.diff(log.steps) == 0) + 1
    if len(same) * 10 < len(log):
        same = same[log.steps[same] > log.steps[0]]
    if not len(same):
        return log, []
    keep = np.ones(len(log), dtype=bool)
    keep[same - 1] = False
    found = Finding(
        kind="step_repeat",
        step=float(log.steps[same[0]]),
        text=f"{len(same):,} rows repeat the step of the row before; the last of each counts",
        detail={"first": float(log.steps[same[0]]), "last": float(log.steps[same[-1]]), "rows": len(same)},
    )
    return log.rows(keep), [found]


def _other_counters(log: Log) -> list[Finding]:
    """Counters beside the step (money, tokens, a second step) that begin again."""
    found = []
    for name, values in log.counters.items():
        down = np.flatnonzero(np.diff(values) < 0) + 1
        found += [
            Finding(
                kind="counter_change",
                step=float(log.steps[i]),
                text=f"{name} begins again: {values[i - 1]:g}, then {values[i]:g}",
                detail={"ratio": float(values[i] / values[i - 1]) if values[i - 1] else 0.0, "field": name, "line": int(log.lines[i])},
            )
            for i in down[:50]
        ]
    return found


def _by_order(log: Log) -> Log:
    steps = np.arange(1.0, len(log) + 1)
    return replace(log, steps=steps)


def _returns(steps: np.ndarray, falls: np.ndarray) -> int:
    """How often, of the first falls, the step leaps back afterwards to where the other writer was."""
    gaps = np.diff(steps)
    # Where two writers take turns half of all gaps are leaps, so that the median isn't the usual gap.
    usual = float(np.quantile(gaps[gaps > 0], 0.1)) if (gaps > 0).any() else 1.0
    leaps = np.flatnonzero(gaps > 3 * usual) + 1
    count = 0
    for fall in falls[:MOST_SESSIONS]:
        before = steps[fall - 1]
        nearest = leaps[leaps > fall][:1]
        if len(nearest) and before <= steps[nearest[0]] <= before + 3 * usual:
            count += 1
    return count


def _two_writers(log: Log) -> tuple[Log, list[Finding]]:
    """Follow each writer by giving every row to the chain that it continues; the longest is kept."""
    ends: list[float] = []
    chains: list[list[int]] = []
    for row, step in enumerate(log.steps):
        fits = [c for c, end in enumerate(ends) if end < step]
        if fits:
            chain = max(fits, key=lambda c: ends[c])
        elif len(chains) < 8:
            chain = len(chains)
            chains.append([])
            ends.append(step)
        else:
            continue
        chains[chain].append(row)
        ends[chain] = float(step)
    longest = max(chains, key=len)
    mixed = np.flatnonzero(np.diff(log.steps) < 0)
    found = Finding(
        kind="two_writers",
        step=float(log.steps[mixed].min()),
        severity="fault",
        text=f"{len([c for c in chains if len(c) > 1])} writers wrote into one file in turn; the longest series is read",
        detail={"first": float(log.steps[mixed].min()), "last": float(log.steps[mixed].max()), "first_line": int(log.lines[mixed[0]])},
    )
    return log.rows(np.array(longest)), [found]


def _epoch_counter(log: Log, falls: np.ndarray) -> bool:
    """Whether the step counts within the epoch: each stretch begins alike and ends alike, or the epoch grows at each fall."""
    epoch = log.aligned.get("epoch")
    if epoch is not None and np.isfinite(epoch[falls]).all() and np.isfinite(epoch[falls - 1]).all():
        return bool((np.floor(epoch[falls]) == np.floor(epoch[falls - 1]) + 1).all())
    begins, ends = log.steps[np.concatenate([[0], falls])], log.steps[falls - 1]
    alike = np.ptp(begins) <= 0.05 * ends.max() and np.ptp(ends) <= 0.02 * ends.max()
    return bool(len(falls) >= 2 and alike)


def _unwrapped(log: Log, falls: np.ndarray) -> Log:
    steps = log.steps.copy()
    for fall in falls:
        usual = steps[fall - 1] - steps[fall - 2] if fall >= 2 else 1.0
        steps[fall:] += steps[fall - 1] + max(usual, 0.0) - steps[fall]
    return replace(log, steps=steps)


def _sessions(log: Log, falls: np.ndarray) -> tuple[Log, list[Finding]]:
    """Judge each restart by where it begins, then keep the later session's rows."""
    bounds = [0, *falls.tolist(), len(log)]
    keep = np.ones(len(log), dtype=bool)
    found: list[Finding] = []
    steps = log.steps.copy()
    for k in range(1, len(bounds) - 1):
        before, start, stop = bounds[k - 1], bounds[k], bounds[k + 1]
        finding, offset = _restart(log, steps, before, start, stop)
        found.append(finding)
        steps[start:] += offset
        if not offset:
            earlier = np.flatnonzero(keep[:start] & (steps[:start] >= steps[start]))
            keep[earlier] = False
    return replace(log, steps=steps).rows(keep), found


def _restart(log: Log, steps: np.ndarray, before: int, start: int, stop: int) -> tuple[Finding, float]:
    """What the fall at row `start` is, and what to add to the steps from there on."""
    begun, last, again = steps[before], steps[start - 1], steps[start]
    line = int(log.lines[start])
    ratio = last / again if again >= 1 else 0.0
    goes_on = _continues(log.loss, before, start, stop)
    from_first = again <= min(begun, float(steps[:start].min()))
    if from_first and not goes_on:
        detail = {"first_line": int(log.lines[before]), "last_line": int(log.lines[start - 1]), "first": float(begun), "last": float(last)}
        text = f"a start that ended at step {last:g} and was begun again"
        return Finding(kind="aborted_start", step=float(begun), text=text, detail=detail), 0.0
    whole = round(ratio)
    if goes_on and whole >= 2 and abs(ratio - whole) < 0.005 * whole and again > begun:
        text = f"the step counter is divided by {whole}: {last:g}, then {again:g}, while the loss goes on"
        return Finding(kind="counter_change", step=float(last), severity="warning", text=text, detail={"ratio": 1 / whole, "line": line}), last - again
    if from_first:
        text = f"the step counter begins again at {again:g} after {last:g}, while the loss goes on from where it was"
        return Finding(kind="counter_change", step=float(last), severity="warning", text=text, detail={"ratio": 0.0, "line": line}), last - again + 1
    return _replay(log, steps, before, start, stop), 0.0


def _continues(loss: np.ndarray, before: int, start: int, stop: int) -> bool:
    """Whether the loss after a fall stands near where it was, and not where that session had begun."""
    past, future = loss[before:start], loss[start : min(stop, start + 5)]
    past, future = past[np.isfinite(past)], future[np.isfinite(future)]
    if len(past) < 5 or not len(future):
        return False
    end, begin, now = np.median(past[-5:]), np.median(past[:2]), np.median(future)
    return bool(abs(now - end) < 0.25 * abs(now - begin))


def _replay(log: Log, steps: np.ndarray, before: int, start: int, stop: int) -> Finding:
    """Steps done again after a resume: the same losses show that data order and state came back."""
    first, last = float(steps[start]), float(steps[start - 1])
    old = {s: i for i, s in enumerate(steps[before:start].tolist(), start=before)}
    pairs = [(old[s], i) for i, s in enumerate(steps[start:stop].tolist(), start=start) if s in old]
    text = f"steps {first:g} to {last:g} were done again after a resume"
    detail = {"first": first, "last": last, "line": int(log.lines[start]), "steps_compared": len(pairs)}
    if not pairs:
        return Finding(kind="resume_replay", step=first, text=text, detail=detail)
    there, here = (np.array(side) for side in zip(*pairs, strict=True))
    difference = np.abs(log.loss[there] - log.loss[here])
    sigma = max(noise_sigma(log.loss[np.isfinite(log.loss)]), 1e-12)
    same = bool(np.nanmax(difference, initial=0.0) < 0.05 * sigma)
    lr = log.aligned.get("lr")
    same_lr = None if lr is None else bool(np.allclose(lr[there], lr[here], rtol=1e-6, equal_nan=True))
    detail |= {"same_losses": same, "same_lr": same_lr, "largest_difference": float(np.nanmax(difference, initial=0.0))}
    told = "with the same losses" if same else f"with losses up to {detail['largest_difference']:.3g} apart"
    why = "" if same or not same_lr else ", at the same learning rate: other data, so the data order was not restored"
    return Finding(kind="resume_replay", step=first, text=f"{text}, {told}{why}", detail=detail)


def step_gaps(log: Log, checkpoints: np.ndarray) -> list[Finding]:
    """Steps that were not logged, where the log is otherwise regular."""
    if len(log) < 8:
        return []
    gaps = np.diff(log.steps)
    usual = float(np.median(gaps))
    if usual <= 0 or (np.abs(gaps - usual) <= 0.01 * usual).mean() < 0.8:
        return []
    found = []
    for i in np.flatnonzero(gaps > 1.5 * usual):
        last, again = float(log.steps[i]), float(log.steps[i + 1])
        inside = checkpoints[(checkpoints >= last - 0.5) & (checkpoints < again)]
        saved = float(inside[-1]) if len(inside) else None
        # Steps up to a save are done, logged or not; what is missing begins after it.
        first = max(last, saved or last) + 1
        whole = gaps[i] / usual
        factor = round(again / last) if last >= 1 else 0
        if factor >= 2 and abs(again / last - factor) < 0.02 and i + 2 < len(log) and abs(gaps[i + 1 : i + 6].mean() / usual - factor) < 0.1:
            detail = {"ratio": float(factor), "from": last, "to": again}
            found.append(Finding(kind="counter_change", step=again, index=int(i) + 1, text=f"the step counter is multiplied by {factor}", detail=detail))
            continue
        detail = {"first_missing": first, "resumes_at": again, "missing": again - first, "after_checkpoint": saved}
        text = f"nothing is logged from step {first:g} to {again - 1:g} ({again - first:g} steps)" + (
            f", right after the checkpoint at {saved:g}" if saved is not None else ""
        )
        found.append(Finding(kind="step_gap", step=first, index=int(i) + 1, size=float(whole), text=text, detail=detail))
    return found
