"""Gives the verdict in one word and one sentence, and says what the log lacks for a surer one."""

from dataclasses import dataclass

import numpy as np

from dflash_core.diagnosis.correlate import TOUCHING, explained_by
from dflash_core.diagnosis.evidence import Cause, Evidence
from dflash_core.diagnosis.finding import Finding
from dflash_core.diagnosis.robust import MEDIAN_ERROR
from dflash_core.diagnosis.view import FEW, View

UNHEALTHY = frozenset(
    (
        *("checkpoint_reset", "broken_from_start", "diverged", "unstable_recovered"),
        *("overfit_unstable", "lr_too_high", "loss_scale_wrong"),
    )
)
# Batch noise above a twelfth of the level hides a change of a few percent for dozens of lines; a single line twenty sigma
# up is far beyond what the rest of a heavy tail does. Both thresholds lie between logs that people called healthy and noisy, see docs/diagnosis.md.
NOISY_SHARE = 1 / 12
NOISY_SIGMA = 20.0
# A short log whose smallest visible shift is more than a tenth of its level can't be called.
SHORT_ROWS = 300
BLIND_SHARE = 0.1


@dataclass(frozen=True)
class Verdict:
    """The word, the sentence, and what is missing for a better one."""

    word: str
    sentence: str
    missing: tuple[str, ...]

    @property
    def unhealthy(self) -> bool:
        """Whether the command exits with 3."""
        return self.word in UNHEALTHY


def judge(e: Evidence, causes: tuple[Cause, ...]) -> Verdict:
    """The first verdict that holds, gravest first."""
    missing = lacking(e.view)
    for rule in (_broken, _reset, _wrong, _lost, _overfit, _unstable, _mixed, _resumed, _unclear):
        found = rule(e, causes)
        if found is not None:
            return Verdict(*found, missing)
    return Verdict(*_healthy(e), missing)


_Judged = tuple[str, str] | None


def _broken(e: Evidence, causes: tuple[Cause, ...]) -> _Judged:
    bad = [f for f in e.of("nonfinite") if f.severity == "fault"]
    if not bad:
        return None
    rows = sum(f.detail["rows"] for f in bad)
    if bad[0].index == 0 and rows > 0.5 * len(e.view.log):
        return "broken_from_start", f"The loss is not finite from the first line on ({rows:,} of {len(e.view.log):,})."
    if any(f.detail.get("to_the_end") for f in bad):
        return "diverged", f"The loss stops being finite at step {bad[-1].step:g} and stays so to the end."
    if rows >= 3 or any(f.detail.get("series") != "grad_norm" for f in bad):
        return "unstable_recovered", f"{rows:,} losses are not finite, first at step {bad[0].step:g}; the run goes on after them."
    return None


def _reset(e: Evidence, causes: tuple[Cause, ...]) -> _Judged:
    at = e.refined.spikes_at
    spikes = [f for f in e.of("loss_spike") if f.severity == "fault"]
    for kind in TOUCHING:
        if kind in at and at[kind].holds and explained_by(at, kind) is None and spikes and not e.diverged:
            highest = max(spikes, key=lambda f: f.size)
            ratio = f"×{highest.detail['ratio']:.1f}" if highest.detail["ratio"] else f"{highest.size:.0f} sigma"
            where = f"the {kind}s" if kind != "gap" else "gaps in the steps, such as a save leaves that blocks the loop"
            return "checkpoint_reset", f"The loss jumps ({ratio}) right after {where}: {at[kind].told()}."
    for f in e.of("level_shift", "loss_spike", "drop_then_return"):
        place = f.detail.get("after_resume")
        if place is not None and f.severity != "note" and not f.detail.get("few_lines"):
            return "checkpoint_reset", f"The loss changes right after the resume at step {place:g}: {f.text}."
    return None


def _wrong(e: Evidence, causes: tuple[Cause, ...]) -> _Judged:
    found = e.of("loss_scale_wrong")
    return ("loss_scale_wrong", found[0].text[0].upper() + found[0].text[1:] + ".") if found else None


def _lost(e: Evidence, causes: tuple[Cause, ...]) -> _Judged:
    lost = [*e.diverged, *e.lost_at_save]
    if not lost or len(e.view.loss_M) < FEW:
        return None
    lr = e.view.log.aligned.get("lr")
    first = min(lost, key=lambda f: f.step)
    if first in e.lost_at_save:
        return "diverged", f"{_sentence(first)} It comes right after the checkpoint at step {first.detail['after_checkpoint']:g}."
    if lr is not None and np.isfinite(lr).any() and lr[min(first.index, len(lr) - 1)] >= 0.9 * np.nanmax(lr):
        return "lr_too_high", f"{_sentence(first)} The learning rate is at its highest there."
    return "diverged", _sentence(first)


def _sentence(f: Finding) -> str:
    return f.text[0].upper() + f.text[1:] + "."


def _overfit(e: Evidence, causes: tuple[Cause, ...]) -> _Judged:
    found = e.of("train_eval_split")
    if found:
        return "overfit_unstable", _sentence(found[0])
    lasting = [f for f in e.of("accuracy_drop") if f.severity == "fault"]
    return ("overfit_unstable", _sentence(lasting[0])) if lasting else None


def _unstable(e: Evidence, causes: tuple[Cause, ...]) -> _Judged:
    found = [f for f in e.of("instability_episode", "loss_spike") if f.severity == "fault"]
    return ("unstable_recovered", f"{_sentence(max(found, key=lambda f: f.size))}") if found else None


def _mixed(e: Evidence, causes: tuple[Cause, ...]) -> _Judged:
    found = e.of("two_writers")
    return ("inconclusive", f"{_sentence(found[0])} Write one log a run, then look again.") if found else None


def _resumed(e: Evidence, causes: tuple[Cause, ...]) -> _Judged:
    found = e.of("resume_replay")
    if not found:
        return None
    again = sum(f.detail["last"] - f.detail["first"] for f in found)
    return "healthy_after_resume", f"The run was resumed {_times(len(found))}, doing about {again:g} steps again, and goes on well."


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _unclear(e: Evidence, causes: tuple[Cause, ...]) -> _Judged:
    loss = e.view.loss_M
    if len(loss) < FEW and not e.of("logging_artifact"):
        return "inconclusive", f"Only {len(loss)} lines hold a finite loss; a spread needs at least {FEW}."
    if e.unexplained:
        return "inconclusive", f"{_sentence(e.unexplained[0])} Nothing recorded explains it."
    width = max(1, len(loss) // 4)
    blind = 6 * MEDIAN_ERROR * float(np.median(e.view.sigma_M)) * np.sqrt(2 / width) / max(abs(float(np.median(loss))), 1e-12)
    gained = (np.median(loss[:width]) - np.median(loss[-width:])) / (float(np.median(e.view.sigma_M)) * MEDIAN_ERROR * np.sqrt(2 / width))
    if len(loss) < SHORT_ROWS and blind > BLIND_SHARE and gained < 6:
        return "inconclusive", f"{len(loss)} lines with this noise show no change under {blind:.0%} of the level; too short to call."
    return None


def _healthy(e: Evidence) -> tuple[str, str]:
    loss, sigma = e.view.loss_M, e.view.sigma_M
    half = len(loss) // 2
    share = float(np.median(sigma[half:]) / max(abs(float(np.median(loss[half:]))), 1e-12))
    highest = max((f.size for f in e.of("loss_spike")), default=0.0)
    observed = f"{len(e.of('loss_spike'))} isolated spikes pass within a few lines" if e.of("loss_spike") else "no spike"
    if share > NOISY_SHARE or highest > NOISY_SIGMA:
        return "healthy_noisy", f"Nothing is wrong. Batches differ by {share:.0%} of the loss; {observed}."
    return "healthy", f"Nothing is wrong: {observed}, the noise is {share:.1%} of the loss."


def lacking(view: View) -> tuple[str, ...]:
    """What would make a diagnosis surer, if it were logged or told."""
    log = view.log
    out = [name for role, name in (("lr", "the learning rate"), ("grad_norm", "the gradient norm")) if role not in log.aligned]
    if not len(view.events.of("checkpoint")):
        out.append("the checkpoint steps (--events checkpoint=...)")
    if not log.held_out:
        out.append("a held-out loss")
    out += [f"the step of the {kind} (--events {kind}=...)" for kind in sorted(view.events.unplaced)]
    return tuple(out)
