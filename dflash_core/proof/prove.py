"""Proves one checkpoint: identity, digests, then replayed steps against the run's log."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dflash_core.checkpoint.contents import Contents
from dflash_core.errors import CheckpointError
from dflash_core.proof.band import Band, band_of
from dflash_core.proof.classify import Case, classify
from dflash_core.proof.compare import compare
from dflash_core.proof.hints import hints
from dflash_core.proof.identity import mismatches
from dflash_core.proof.recorded import RecordedRun, Window
from dflash_core.proof.replay import Setting, replay
from dflash_core.proof.verdict import Judgement, Verdict

DEFAULT_STEPS = 3


@dataclass(frozen=True)
class _Subject:
    """The checkpoint at hand."""

    setting: Setting
    run: RecordedRun
    contents: Contents
    digest: str
    name: str
    num_steps: int


def prove(setting: Setting, run: RecordedRun, name: str, num_steps: int = DEFAULT_STEPS) -> Verdict:
    """Replay `num_steps` steps from a checkpoint of the run; changes nothing on disk.

    A replay that can't be carried out gives `unproven`, with the reason.
    """
    began = time.perf_counter()
    step = int(name.removeprefix("step-"))
    record = run.checkpoint(name)
    try:
        committed, contents = run.directory.store.load(name, record.digest if record else None)
    except CheckpointError as error:
        return Verdict(name=name, step=step, digest=None, outcome="rejected", reason=str(error), fault="file")
    subject = _Subject(setting, run, contents, committed.digest, name, num_steps)
    counter = _Counter()
    saved_by = record.session_id if record else None
    verdict = _of_identity(subject, saved_by) or _of_progress(subject) or _of_windows(subject, saved_by, counter)
    return replace(verdict, steps_replayed=counter.steps, seconds=time.perf_counter() - began)


class _Counter:
    """Steps replayed so far."""

    def __init__(self) -> None:
        self.steps = 0


def _of_identity(subject: _Subject, saved_by: str | None) -> Verdict | None:
    found = mismatches(subject.contents, subject.run, saved_by, subject.setting.identity)
    if not found:
        return None
    inside = [m for m in found if not m.on_disk]
    texts = tuple(m.text for m in (inside or found))
    if inside:
        return _verdict(subject, "rejected", f"It is not of this run: {texts[0]}.", fault="identity", evidence=texts[1:])
    return _verdict(subject, "unproven", f"The run's inputs are gone: {texts[0]}. Restore them, then prove it again.", fault="identity")


def _of_progress(subject: _Subject) -> Verdict | None:
    """The next sample follows from the step, so a checkpoint that says otherwise repeats or leaves out samples."""
    stored, planned = subject.contents.state["next_sample"], subject.setting.plan.step_number(subject.contents.step).first_sample
    if stored == planned:
        return None
    fault = "repeated_batches" if stored < planned else "skipped_batches"
    reason = f"It goes on with sample {stored}; after {subject.contents.step} steps of the plan it is sample {planned}."
    return _verdict(subject, "rejected", reason, fault=fault)


def _of_windows(subject: _Subject, saved_by: str | None, counter: _Counter) -> Verdict:
    wanted = subject.num_steps
    windows = subject.run.windows(subject.contents.step, saved_by)
    long_enough = [window for window in windows if len(window.steps) >= wanted]
    if not long_enough:
        longest = max((len(window.steps) for window in windows), default=0)
        return _verdict(
            subject,
            "unproven",
            f"A proof needs {wanted} later steps and the log has {longest}. Train on; for the last one, checkpoint.proof_steps sets how "
            "many a run does past its end.",
        )
    judged = [_judge(subject, window, counter) for window in long_enough]
    judgements = tuple(judgement for judgement, _ in judged)
    exactness = judged[0][1].text
    broken = next((j for j in judgements if not j.holds), None)
    if broken is None:
        return _verdict(subject, "proven", f"{_sentence(judgements[0].text)}.", judgements=judgements, exactness=exactness)
    own = judgements[0]
    if own.holds:
        reason = f"The checkpoint is right, and the session that went on from it is not what it says: {broken.text}."
        return _verdict(subject, "proven", reason, broken, judgements=judgements, exactness=exactness)
    reason = f"{_sentence(broken.text)}."
    if own.resumed:
        reason += " Only a later session went on from it, so the fault is the file's or that session's."
    return _verdict(subject, "rejected", reason, broken, judgements=judgements, exactness=exactness)


def _judge(subject: _Subject, window: Window, counter: _Counter) -> tuple[Judgement, Band]:
    """Compare with one history, and classify where it differs."""
    window = replace(window, steps=window.steps[: subject.num_steps])
    against = f"session {window.session.session_id}" + (f", which resumed at step {window.session.step}" if window.resumed else "")
    replayed = replay(subject.setting, subject.contents, subject.num_steps, num_ranks=window.num_ranks)
    band, num_more = band_of(subject.setting, subject.contents, subject.run.parts(window), replayed)
    counter.steps += len(replayed) + num_more
    differences = compare(replayed, window.steps, band)
    judgement = Judgement(against=against, resumed=window.resumed, num_steps=len(window.steps), first=None, fault=None, evidence=())
    if not differences:
        return _signs_decide(subject, judgement, band), band
    others = neighbours(subject.run, subject.name)
    diagnosis = classify(Case(subject.setting, subject.contents, window, window.steps, replayed, differences, band, others, window.resumed))
    return replace(judgement, first=differences[0], fault=diagnosis.fault, evidence=diagnosis.evidence), band


def _signs_decide(subject: _Subject, judgement: Judgement, band: Band) -> Judgement:
    """Bits leave no room; a band does, for rounded weights and the like, which show in the file itself."""
    betas = subject.setting.config.training.betas
    found = [hint for hint in hints(subject.contents, betas, {}) if hint.certain] if band.width is not None else []
    return replace(judgement, fault=found[0].fault, evidence=tuple(hint.text for hint in found)) if found else judgement


def neighbours(run: RecordedRun, name: str) -> Mapping[str, Contents]:
    """The good checkpoints right before and after one; what was mixed up is often theirs."""
    store = run.directory.store
    names = store.names()
    place = names.index(name) if name in names else len(names)
    found = {}
    for other in (*names[max(0, place - 1) : place], *names[place + 1 : place + 2]):
        try:
            found[other] = store.load(other)[1]
        except CheckpointError:
            continue
    return found


def _verdict(subject: _Subject, outcome: str, reason: str, broken: Judgement | None = None, **fields: object) -> Verdict:
    if broken is not None:
        fields |= {"fault": broken.fault, "evidence": broken.evidence}
    return Verdict(name=subject.name, step=subject.contents.step, digest=subject.digest, outcome=outcome, reason=reason, **fields)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]
