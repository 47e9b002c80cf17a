"""Tells a bad batch from a broken state: replays from the checkpoint before an event, through it."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from dflash_core.checkpoint.contents import Contents
from dflash_core.errors import CheckpointError
from dflash_core.proof.band import band_of
from dflash_core.proof.classify import Case, classify, rebased
from dflash_core.proof.compare import Difference, compare
from dflash_core.proof.prove import DEFAULT_STEPS, neighbours
from dflash_core.proof.recorded import RecordedRun, Window
from dflash_core.proof.replay import Setting, replay
from dflash_core.training.records import CheckpointRecord, UpdateRecord

Answer = Literal["bad_batch", "broken_state", "not_verified"]
MOST_STEPS = 2000
_AFTER = 2  # a wrong update shows one step after it, and most suspects need three steps
_NEAR_RESUME = 3


@dataclass(frozen=True)
class EventVerdict:
    """What a replay through an event shows. `jump` is the loss at the event over the one before it: (log, replay)."""

    step: int
    answer: Answer
    reason: str
    checkpoint: str | None = None
    first: Difference | None = None
    fault: str | None = None
    evidence: tuple[str, ...] = ()
    jump: tuple[float, float] | None = None
    steps_replayed: int = 0

    def tree(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "step": self.step,
            "answer": self.answer,
            "reason": self.reason,
            "checkpoint": self.checkpoint,
            "first_difference": self.first.text if self.first else None,
            "fault": self.fault,
            "evidence": list(self.evidence),
            "jump": list(self.jump) if self.jump and all(map(math.isfinite, self.jump)) else None,
            "steps_replayed": self.steps_replayed,
        }


def verify_event(setting: Setting, run: RecordedRun, step: int, most_steps: int = MOST_STEPS) -> EventVerdict:
    """Replay from the newest good checkpoint before `step` to just after it, and compare with the steps that count."""
    found = _checkpoint_before(run, step)
    if found is None:
        return EventVerdict(step, "not_verified", f"no good checkpoint before step {step} is left; keep more of them (checkpoint.keep_every)")
    (record, contents), name = found, found[0].name
    window = _window(run, record, step + _AFTER)
    if window is None or window.steps[-1].step < step:
        return EventVerdict(step, "not_verified", f"the log has no unbroken steps from {contents.step} to {step}", name)
    if len(window.steps) > most_steps:
        return EventVerdict(
            step, "not_verified", f"{name} is {len(window.steps)} steps before the event, more than {most_steps}; save more often", name
        )
    return _replayed_through(setting, run, name, contents, window, step)


def _replayed_through(setting: Setting, run: RecordedRun, name: str, contents: Contents, window: Window, step: int) -> EventVerdict:
    logged = window.steps
    replayed = replay(setting, contents, len(logged), num_ranks=window.num_ranks)
    band, _ = band_of(setting, contents, run.parts(window), replayed)
    differences = compare(replayed, logged, band)
    jump = _jump([r.loss for r in logged], step - contents.step), _jump([r.loss for r in replayed], step - contents.step)
    shared = {"checkpoint": name, "jump": jump, "steps_replayed": len(replayed)}
    if not differences:
        reason = f"replayed from {name}, {band.text}, step {step} comes out the same: its samples and the state before it explain it"
        return EventVerdict(step, "bad_batch", reason, **shared)
    first = differences[0]
    case = Case(setting, contents, window, logged, replayed, differences, band, neighbours(run, name), log_in_doubt=True)
    diagnosis = classify(_near(case, first.step))
    reason = f"replayed from {name}, the run parts from its own plan at step {first.step}: the same samples do not give what the log says"
    return EventVerdict(step, "broken_state", reason, first=first, fault=diagnosis.fault, evidence=diagnosis.evidence, **shared)


def _near(case: Case, step: int) -> Case:
    """The case from right before the run parts from its plan: from the resume, if one is near, else from one step before."""
    session = _at(case.window, step).session_id
    begun = next(r.step for r in case.logged if r.session_id == session)
    base = begun - 1 if step - begun < _NEAR_RESUME else step - 1
    until = max(step, base + DEFAULT_STEPS) - case.contents.step
    return rebased(replace(case, logged=case.logged[:until]), base - case.contents.step)


def _at(window: Window, step: int) -> UpdateRecord:
    return next(r for r in window.steps if r.step == step)


def _jump(losses: list[float], offset: int) -> float:
    """Loss at the event over the one before it."""
    if offset < 2 or offset > len(losses):
        return math.nan
    return losses[offset - 1] / losses[offset - 2] if losses[offset - 2] else math.inf


def _checkpoint_before(run: RecordedRun, step: int) -> tuple[CheckpointRecord, Contents] | None:
    """The newest one that the history of `step` went through; those that a resume walked back past are not of it."""
    for record in reversed(run.standing):
        if isinstance(record, CheckpointRecord) and record.step < step:
            try:
                return record, run.directory.store.load(record.name, record.digest)[1]
            except CheckpointError:
                continue
    return None


def _window(run: RecordedRun, record: CheckpointRecord, until: int) -> Window | None:
    """The steps that count after a checkpoint, whichever sessions did them."""
    windows = run.windows(record.step, record.session_id)
    steps = tuple(r for r in run.counted if record.step < r.step <= until)
    unbroken = bool(steps) and [r.step for r in steps] == list(range(record.step + 1, steps[-1].step + 1))
    if not windows or not unbroken:
        return None
    return Window(steps, windows[-1].session, windows[-1].resumed)
