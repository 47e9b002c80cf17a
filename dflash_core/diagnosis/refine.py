"""Looks at findings together: what is one thing seen twice, what an event or the logging explains, how grave each is."""

from dataclasses import dataclass

import numpy as np

from dflash_core.diagnosis.correlate import NEAR_ROWS, TOUCHING, Association, associate, event_rows, explained_by
from dflash_core.diagnosis.detectors.spikes import HIGH_ROWS, LONG_ROWS
from dflash_core.diagnosis.finding import Finding
from dflash_core.diagnosis.view import FEW, View

# Rows within which two detectors see one thing.
SAME_ROWS = 4
# A rise that undoes more than this share of what the loss came down, and stays, is a run that got lost.
LOST_SHARE = 0.3
# A short log's outlier: under 500 lines of normal noise exceed four sigma with chance 1.6 %.
OUTLIER_SIGMA, OUTLIER_ROWS = 4.0, 500


@dataclass(frozen=True)
class Refined:
    """Findings with their last word, and how spikes lie to the events."""

    findings: tuple[Finding, ...]
    spikes_at: dict[str, Association]


def refine(view: View, findings: list[Finding]) -> Refined:
    """The rules in their order."""
    findings = _carried_windows(view, findings)
    findings = _same_place(findings)
    findings = _unless_smooth(findings)
    spikes = [f for f in findings if f.kind == "loss_spike" and not _passing(f, findings)]
    spikes = spikes or [f for f in findings if f.kind == "loss_spike"]
    spikes_at = associate(view.log, view.events, spikes)
    findings = [_graded(view, f, spikes_at) if f.kind == "loss_spike" else f for f in findings]
    findings = [_at_event(view, f) if f.kind in ("level_shift", "drop_then_return") else f for f in findings]
    findings += _outlier(view, findings)
    return Refined(tuple(sorted(findings, key=lambda f: (f.step, f.kind))), spikes_at)


def _passing(spike: Finding, findings: list[Finding]) -> bool:
    """A one-line spike that is small beside the largest: with heavy tails there are hundreds, and they say nothing."""
    largest = max(f.size for f in findings if f.kind == "loss_spike")
    return (spike.detail.get("recovery_rows") or LONG_ROWS) <= 2 and spike.size < 0.25 * largest


def _carried_windows(view: View, findings: list[Finding]) -> list[Finding]:
    """Spikes of one line at the first line of an epoch with an ordinary norm: micro-losses left over from the epoch before.

    A log line sums a window of micro-steps and divides by its length; what an epoch leaves over goes into the next window.
    """
    starts = {int(r) for r in event_rows(view.log, view.events.of("epoch"))}
    starts |= {int(np.searchsorted(view.log.steps, f.step)) for f in findings if f.kind == "counter_change" and "field" in f.detail}
    spikes = [f for f in findings if f.kind == "loss_spike" and f.index in starts and f.detail["recovery_rows"] == 1]
    norms = {f.index for f in findings if f.kind == "grad_spike"}
    spikes = [f for f in spikes if f.index not in norms]
    if len(spikes) < 2 or len(spikes) < 0.5 * len([s for s in starts if 0 < s < len(view.log)]):
        return findings
    found = [_carried(view, f) for f in spikes]
    return [f for f in findings if f not in spikes] + found


def _carried(view: View, spike: Finding) -> Finding:
    ratio = spike.detail["peak"] / spike.detail["level"]
    window = float(np.median(np.diff(view.log.steps)))
    epochs = np.diff(np.concatenate([[view.log.steps[0] - window], view.log.steps[event_rows(view.log, view.events.of("epoch"))]]))
    length = round(float(epochs[-1])) if len(epochs) else 0
    step = spike.step
    text = (
        f"the first line of an epoch, step {step:g}, is ×{ratio:.2f} the level, for one line, with an ordinary gradient norm: "
        f"the window of {window:g} micro-steps holds more than it is divided by. The logging, not the training"
    )
    detail = {"artefact": "window_carried_over_epoch", "ratio": ratio, "from": spike.detail["level"], "to": spike.detail["peak"], "epoch_steps": length}
    return Finding(kind="logging_artifact", step=step, index=spike.index, size=spike.size, text=text, detail=detail)


def _same_place(findings: list[Finding]) -> list[Finding]:
    """One thing seen by two detectors is told once, by the one that says more."""
    kept = list(findings)
    for f in findings:
        if f.kind == "level_shift" and f in kept:
            kept = _merged_shift(f, kept)
    shifts = [f for f in kept if f.kind == "level_shift" and f.detail["to"] > f.detail["from"]]
    spikes = [f for f in kept if f.kind == "loss_spike"]
    bad = [f for f in kept if f.kind == "nonfinite"]
    return [f for f in kept if not (f.kind in ("divergence", "slow_climb", "instability_episode") and not bad and _told_already(f, shifts, spikes))]


def _merged_shift(shift: Finding, kept: list[Finding]) -> list[Finding]:
    """A shift is the loss's side of a lasting drop of accuracy, or what a spike left behind, or the spike's own body."""
    for other in kept:
        near = abs(other.index - shift.index) <= SAME_ROWS
        if other.kind == "accuracy_drop" and near and other.detail["class"] == "sustained_degradation":
            merged = other.with_detail(loss_from=shift.detail["from"], loss_to=shift.detail["to"])
            return [merged if f is other else f for f in kept if f is not shift]
        rows = other.detail.get("recovery_rows")
        if other.kind == "loss_spike" and -SAME_ROWS <= shift.index - other.index <= (rows or 10**9) + SAME_ROWS:
            if rows is None and shift.detail["to"] > shift.detail["from"] and near:
                # The spike that never comes back is the shift; its height says less than the level that stays.
                return [f for f in kept if f is not other] if other.size < 2 * abs(shift.detail["line_sigma"]) else kept
            if rows is not None:
                return [f for f in kept if f is not shift]
    return kept


def _told_already(climb: Finding, shifts: list[Finding], spikes: list[Finding]) -> bool:
    first, last = climb.detail["first"], climb.detail["last"]
    rise = climb.detail["highest"] - climb.detail["lowest"]
    span = last - first
    inside = [f for f in shifts if first - span <= f.step <= last]
    steps = sum(f.detail["to"] - f.detail["from"] for f in inside)
    long = [f for f in spikes if first - span <= f.step <= last and (f.detail["recovery_rows"] or 0) > LONG_ROWS]
    return steps > 0.6 * rise or bool(long)


def _unless_smooth(findings: list[Finding]) -> list[Finding]:
    """Where a running mean restarts, its jump is no spike and no shift."""
    places = [f.index for f in findings if f.kind == "logging_artifact" and f.detail["artefact"] in ("running_mean_restart",)]
    aliased = any(f.detail.get("artefact") == "log_position_aliasing" for f in findings if f.kind == "logging_artifact")
    return [
        f
        for f in findings
        if not (f.kind in ("loss_spike", "level_shift", "drop_then_return") and (aliased or any(abs(f.index - p) <= SAME_ROWS for p in places)))
    ]


def _graded(view: View, spike: Finding, at: dict[str, Association]) -> Finding:
    """A spike is a fault at events that repeat it, or when it stays, or when it takes long; otherwise it is a batch."""
    rows = spike.detail["recovery_rows"]
    saves = [k for k in TOUCHING if k in at and at[k].holds and explained_by(at, k) is None]
    for kind in saves:
        event = _event_before(view, kind, spike.index)
        if event is not None:
            found = {"after_" + kind: event}
            return spike.with_detail(severity="fault", text=f"{spike.text}; right after the {kind} at step {event:g}", **found)
    event = _event_before(view, "checkpoint", spike.index)
    told = {"after_checkpoint": event} if event is not None else {}
    left = spike.detail["left_over"]
    if rows is None and left > max(3 * spike.detail["sigma"], 0.1 * view.improvement):
        return spike.with_detail(severity="fault", **told)
    lasts = len(view.log) - spike.index if rows is None else rows
    early = spike.index < 0.02 * len(view.log)
    lasting = lasts >= LONG_ROWS and spike.detail["high_rows"] >= HIGH_ROWS
    return spike.with_detail(severity="fault" if lasting and not early else "note", **told)


def _event_before(view: View, kind: str, index: int) -> float | None:
    """Step of the event whose own row or one of the next two is `index`."""
    steps = view.events.of(kind)
    rows = np.searchsorted(view.log.steps, steps)
    near = (index - rows >= 0) & (index - rows < NEAR_ROWS)
    return float(steps[near][-1]) if near.any() else None


def _at_event(view: View, change: Finding) -> Finding:
    """A change of level and the events right before it; one that rises at a resume and stays is a fault, and so is a large one elsewhere."""
    found = {k: e for k in ("resume", "checkpoint", "reset", "epoch") for e in [_event_before(view, k, change.index)] if e is not None}
    restarted = change.kind == "level_shift" and change.detail["to"] > change.detail["from"] and {"resume", "reset"} & found.keys()
    lost = change.kind == "level_shift" and change.detail["of_improvement"] > LOST_SHARE and len(view.loss_M) >= FEW
    return change.with_detail(severity="fault" if restarted or lost else None, **{f"after_{k}": e for k, e in found.items()})


def _outlier(view: View, findings: list[Finding]) -> list[Finding]:
    """The one line of a short log that stands out without being a spike."""
    loss = view.loss_M
    taken = [f for f in findings if f.kind in ("loss_spike", "logging_artifact", "nonfinite")]
    if taken or not 12 < len(loss) <= OUTLIER_ROWS:
        return []
    score = (loss - view.expected_M) / view.sigma_M
    score[: len(loss) // 10] = 0.0
    i = int(np.argmax(score))
    if score[i] < OUTLIER_SIGMA or (i + 1 < len(loss) and score[i + 1] > OUTLIER_SIGMA / 2):
        return []
    step = float(view.steps_M[i])
    text = f"one line stands out: {loss[i]:.4g} at step {step:g}, {score[i]:.1f} sigma above the lines before, and gone on the next"
    detail = {"peak": float(loss[i]), "before": float(loss[i - 1])}
    return [Finding(kind="single_outlier", step=step, index=int(view.rows_M[i]), size=float(score[i]), text=text, detail=detail)]
