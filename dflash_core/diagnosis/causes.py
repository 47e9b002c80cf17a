"""Ranks causes: each rule names one class of cause, how sure it is, and the evidence for and against.

Confidence is a judgement in steps, not a probability from data: 0.9 the log shows it directly, 0.7 a signature that few
other causes have, 0.5 the better of two readings, 0.3 a hint. benchmarks/diagnosis_campaign.py measures how often it is right.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dflash_core.diagnosis.correlate import TOUCHING, coincidence, explained_by
from dflash_core.diagnosis.evidence import Cause, Evidence, event_before
from dflash_core.diagnosis.finding import Finding
from dflash_core.diagnosis.view import FEW, View

SURE, SIGNATURE, BETTER, HINT, LEAST = 0.9, 0.7, 0.5, 0.3, 0.2
# An update at this rate moves a weight of 0.01 by a ten-thousandth at most.
TINY_RATE = 1e-6


def rank(evidence: Evidence) -> tuple[Cause, ...]:
    """Causes by falling confidence, the healthy reading among them."""
    found = [cause for rule in RULES for cause in [rule(evidence)] if cause is not None]
    if len(evidence.view.loss_M) < FEW:
        found = [_few_lines(evidence, cause) for cause in found]
    best: dict[str, Cause] = {}
    for cause in found:
        if cause.cause not in best or cause.confidence > best[cause.cause].confidence:
            best[cause.cause] = cause
    return tuple(sorted(best.values(), key=lambda c: -c.confidence))


def _few_lines(e: Evidence, cause: Cause) -> Cause:
    """What a handful of lines can say is a hint, unless the log shows it directly."""
    if cause.cause in ("nonfinite", "masters", "overfit", "logging"):
        return cause
    weak = HINT if cause.cause != "normal" else LEAST
    return replace(cause, confidence=min(cause.confidence, weak), against=(*cause.against, f"only {len(e.view.loss_M)} lines"))


def _nonfinite(e: Evidence) -> Cause | None:
    bad = [f for f in e.of("nonfinite") if f.severity == "fault"]
    if not bad:
        return None
    rows = sum(f.detail["rows"] for f in bad)
    climbs = [f.text for f in e.of("slow_climb", "loss_spike") if f.step <= bad[0].step][-1:]
    saves = e.view.events.of("checkpoint")
    near = saves[(saves <= bad[0].step) & (saves > bad[0].step - 3 * _spacing(e.view))]
    against = (f"a checkpoint at {near[-1]:g} stands right before, but one coincidence proves nothing",) if len(near) else ()
    advice = "Go back to the last checkpoint before it; log the gradient norm and the loss scale; try bfloat16 or a lower learning rate."
    return Cause("nonfinite", SURE, (f"{rows:,} of {len(e.view.log):,} losses are not finite, first at step {bad[0].step:g}", *climbs), against, advice)


def _spacing(view: View) -> float:
    return float(np.median(np.diff(view.log.steps))) if len(view.log) > 1 else 1.0


def _optimizer_state(e: Evidence) -> Cause | None:
    at = e.refined.spikes_at
    kinds = [k for k in TOUCHING if k in at and at[k].holds]
    spikes = [f for f in e.of("loss_spike") if any(f.detail.get("after_" + k) is not None for k in TOUCHING)]
    if not kinds:
        return _one_reset(e)
    kind = min(kinds, key=lambda k: at[k].chance)
    rival = explained_by(at, kind)
    evidence = [f"spikes come at the {kind}s: {at[kind].told()}"]
    swings = [f for f in spikes if f.detail["trajectory"] == "oscillating"]
    if at[kind].delay_rows >= 1:
        evidence.append("the spike is on a later line than the first after the event: the weights were right, the update was not")
    if swings:
        evidence.append(f"between two peaks the loss is back at {_lowest_between(e.view, swings[0]):.3g}: the weights were not lost")
    against = ("a loss that is far too high on the first line would mean lost weights; it is not",) if at[kind].delay_rows >= 1 else ()
    against += ("no checkpoint is known there: give their steps (--events checkpoint=...)",) if kind == "gap" else ()
    against += (f"the {rival} events explain the spikes as well",) if rival else ()
    advice = "Save and restore moments and step counts; replay from the checkpoint before the spike and compare with the log, step by step."
    signed = kind != "gap" and (swings or at[kind].delay_rows >= 1)
    confidence = SIGNATURE if not rival and signed else BETTER if not rival else HINT
    return Cause("optimizer_state", confidence, tuple(evidence), against, advice)


def _lowest_between(view: View, spike: Finding) -> float:
    i = int(np.searchsorted(view.rows_M, spike.index))
    return float(view.loss_M[i : i + max(2, min(spike.detail["recovery_rows"] or 20, 20))].min())


def _one_reset(e: Evidence) -> Cause | None:
    """One spike after a reset of the optimizer that a person declared, and after no other."""
    resets = [f for f in e.of("loss_spike") if _within(e.view, "reset", f) is not None]
    if resets and "reset" in e.view.events.told:
        chance = e.refined.spikes_at.get("reset")
        evidence = (f"the spike at step {resets[0].step:g} follows a declared reset of the optimizer's state",)
        against = (f"chance alone: {chance.told()}",) if chance is not None else ()
        return Cause("optimizer_state", HINT if e.diverged else BETTER, evidence, against, "Lower the learning rate after a reset, or warm it up again.")
    after = [f for f in e.of("loss_spike") if f.detail.get("after_resume") is not None or _within(e.view, "resume", f) is not None]
    if after:
        return Cause("optimizer_state", BETTER, (f"the loss jumps right after the resume, at step {after[0].step:g}, and comes back",), (), "Compare the optimizer's state before and after the resume.")
    return None


def _within(view: View, kind: str, f: Finding) -> float | None:
    steps = view.events.of(kind)
    rows = np.searchsorted(view.log.steps, steps)
    near = (f.index - rows >= 0) & (f.index - rows < 3)
    return float(steps[near][-1]) if near.any() else None


def _batches(e: Evidence) -> Cause | None:
    dips = [f for f in e.of("drop_then_return") if f.detail.get("after_resume") is not None]
    if dips:
        few = dips[0].detail.get("few_lines")
        evidence = (f"right after the resume the loss drops, and returns: {dips[0].text}", "seen samples give a lower loss")
        confidence = HINT if few else SIGNATURE
        return Cause("batches_repeated_or_lost", confidence, evidence, (f"only {few} lines",) if few else (), "Compare the sample ids before and after the resume.")
    at_gaps = e.refined.spikes_at.get("gap")
    gaps = [f for f in e.of("step_gap") if f.detail.get("after_checkpoint") is not None or (at_gaps and at_gaps.holds)]
    if not gaps:
        return None
    missing = ", ".join(f"{f.detail['missing']:g}" for f in gaps[:6])
    spikes = [f for f in e.of("loss_spike") if f.severity == "fault"]
    evidence = (f"no step is logged {'in' if at_gaps else 'after'} {len(gaps)} {'places' if at_gaps else 'checkpoints'} ({missing} steps): the save blocked the loop, or those batches were lost",)
    against = () if spikes else ("the loss shows nothing there",)
    advice = "Log the sample range of each step; a save should copy and go on."
    return Cause("batches_repeated_or_lost", 0.6 if spikes else HINT, evidence, against, advice)


def _weights(e: Evidence) -> Cause | None:
    first = float(np.median(e.view.loss_M[:3])) if len(e.view.loss_M) else 0.0
    for f in e.of("level_shift", "loss_spike"):
        place = f.detail.get("after_resume") or (f.detail.get("after_checkpoint") if f.kind == "level_shift" else None)
        if place is None and "resume" in e.view.events.unplaced and len(e.view.loss_M) < FEW:
            place = f.step  # a resume is told of without its step, and these lines are about it
        low = f.detail.get("from", f.detail.get("before"))
        high = f.detail.get("to", f.detail.get("peak"))
        stays = f.kind == "level_shift" or f.detail["recovery_rows"] is None
        if place is None or not stays or high <= low:
            continue
        alone = coincidence(e.view.log, e.view.events, f) if event_before(f) == "checkpoint" else ()
        share = (high - low) / max(first - low, 1e-12)
        if share > 0.5 or high > 3 * low:
            text = f"after the event at step {place:g} the loss is {high:.4g}, near where the run began ({first:.4g}), and stays"
            return Cause("weights", SIGNATURE if len(alone) < 2 else BETTER, (text,), alone, "Check that the checkpoint's weights are loaded: compare their digests.")
        text = f"after the event at step {place:g} the level is {high:.4g} instead of {low:.4g}, and stays"
        needs = () if "lr" in e.view.log.aligned else ("the learning rate is not logged, and its schedule would do the same",)
        return Cause("optimizer_state", BETTER, (text,), (*alone, *needs), "Compare optimizer state and learning rate before and after.")
    return None


def _learning_rate(e: Evidence) -> Cause | None:
    breaks = [f for f in e.of("lr_break") if f.severity != "note"]
    if not breaks:
        return None
    felt = [b for b in breaks if any(abs(f.index - b.index) <= 25 for f in e.of("loss_spike", "level_shift", "divergence") if f.severity != "note")]
    place = (felt or breaks)[0]
    advice = "Restore the schedule's position with the checkpoint."
    return Cause("lr_schedule", SIGNATURE if felt else HINT, (place.text, *("the loss reacts" for _ in felt[:1])), () if felt else ("the loss doesn't react",), advice)


def _masters(e: Evidence) -> Cause | None:
    lr = e.view.log.aligned.get("lr")
    if lr is None:
        return None
    loss = e.view.log.loss
    for i in range(1, min(4, len(loss))):
        if np.isfinite([lr[i], loss[i], loss[i - 1]]).all() and lr[i] < TINY_RATE and loss[i] > 2 * loss[i - 1] > 0:
            told = f"×{loss[i] / loss[i - 1]:.1f} on line {i + 1} at a learning rate of {lr[i]:.2g}: no honest update does that"
            return Cause("masters", SIGNATURE, (told,), (), "Check that the fp32 masters are filled from the loaded weights.")
    return None


def _data_order(e: Evidence) -> Cause | None:
    other = [f for f in e.of("resume_replay") if f.detail.get("same_losses") is False]
    if not other:
        return None
    rates = other[0].detail.get("same_lr")
    return Cause("data_order", SIGNATURE if rates else BETTER, (other[0].text,), () if rates else ("the learning rate can't be compared",), "Save the sampler's position and seed with the checkpoint.")


def _counter(e: Evidence) -> Cause | None:
    found = [f for f in e.of("counter_change") if f.severity != "note"]
    return Cause("counter", SIGNATURE, (found[0].text,), (), "Count optimizer steps, by one process, and save the count.") if found else None


def _epoch(e: Evidence) -> Cause | None:
    stairs = e.of("epoch_stairs")
    if stairs:
        return Cause("epoch_boundary", SIGNATURE, (stairs[0].text,), (), "Expected when data repeats; watch held-out loss for overfitting.")
    at = e.refined.spikes_at.get("epoch")
    if at is not None and at.holds:
        return Cause("epoch_boundary", BETTER, (f"spikes come at epoch starts: {at.told()}",), (), "Shuffle across the whole epoch.")
    waves = e.of("periodic")
    if waves:
        length = np.diff(e.view.events.of("epoch"))
        same = len(length) > 0 and abs(waves[0].detail["period"] / np.median(length) - 1) < 0.05
        told = (waves[0].text, f"an epoch is {np.median(length):g} steps") if same else (waves[0].text,)
        return Cause("epoch_boundary", SIGNATURE if same else HINT, told, () if same else ("no epoch length is known",), "Shuffle over more than a window.")
    return None


def _instability(e: Evidence) -> Cause | None:
    lost = e.diverged
    if lost:
        told = [f.text for f in lost[:2]]
        spikes = [f for f in e.of("loss_spike") if f not in lost]
        told += [f"{len(spikes)} spikes went before"] if spikes else []
        advice = "Go back before it, with a lower learning rate, more clipping or a longer warm-up."
        return Cause("instability", SIGNATURE, tuple(told), _without(e.view), advice)
    saves = e.refined.spikes_at.get("checkpoint")
    elsewhere = (None,) if saves is not None and saves.holds else (None, "checkpoint")
    grave = [f for f in e.of("loss_spike") if f.severity == "fault" and event_before(f) in elsewhere]
    passed = [*e.of("instability_episode"), *grave, *e.lost_at_save]
    if passed:
        advice = "Look at the batches there and the gradient norm; lower the learning rate if it comes again."
        return Cause("instability", BETTER, tuple(f.text for f in passed[:3]), _without(e.view), advice)
    return None


def _without(view: View) -> tuple[str, ...]:
    lacking = [name for role, name in (("lr", "the learning rate"), ("grad_norm", "the gradient norm")) if role not in view.log.aligned]
    return (f"{' and '.join(lacking)} {'are' if len(lacking) > 1 else 'is'} not logged",) if lacking else ()


def _logging(e: Evidence) -> Cause | None:
    found = e.of("logging_artifact")
    if found:
        return Cause("logging", SIGNATURE, tuple(f.text for f in found[:2]), (), "Nothing is wrong with the training there; log means over whole windows.")
    scale = e.of("loss_scale_wrong")
    return Cause("logging", SURE if scale[0].detail["factor"] else BETTER, (scale[0].text,), (), "Divide by the number of parts.") if scale else None


def _mode(e: Evidence) -> Cause | None:
    for f in e.of("level_shift"):
        if f.detail.get("after_resume") is not None and f.detail["to"] < f.detail["from"]:
            text = f"after the resume the loss is lower, {f.detail['to']:.4g} instead of {f.detail['from']:.4g}, and stays"
            return Cause("mode", HINT, (text,), ("repeated data does the same",), "Check that the model is in training mode, and compare sample ids.")
    return None


def _overfit(e: Evidence) -> Cause | None:
    split = e.of("train_eval_split")
    if split:
        sure = SURE if "few_lines" not in split[0].detail else SIGNATURE
        return Cause("overfit", sure, (split[0].text,), (), "Stop at the best held-out result, or add data.")
    bursts = e.of("overfit_burst")
    if not bursts:
        return None
    against = ("it comes back by itself", "another held-out set there would do the same")
    return Cause("overfit", BETTER if len(bursts) > 1 else HINT, tuple(f.text for f in bursts[:3]), against, "Look at the data before it: many like samples in a row; shuffle over more.")


def _degraded(e: Evidence) -> Cause | None:
    lasting = [f for f in e.of("accuracy_drop") if f.detail["class"] == "sustained_degradation"]
    if not lasting:
        return None
    return Cause("instability", HINT, (lasting[0].text,), ("a change of the data would do the same",), "Evaluate checkpoints from before and after on the same prompts.")


def _normal(e: Evidence) -> Cause | None:
    if e.faults:
        return None
    evidence = [f"{len(e.view.loss_M):,} finite losses, no fault among {len(e.refined.findings)} observations"]
    single = [f for f in e.of("loss_spike", "single_outlier")]
    if single:
        evidence.append(f"{len(single)} outliers pass within a few lines, as batches do")
    seen = [*e.of("logging_artifact"), *e.unexplained, *[f for f in e.of("resume_replay", "counter_change") if f.severity != "note"]]
    return Cause("normal", 0.6 if seen else 0.8, tuple(evidence))


Rule = Callable[[Evidence], Cause | None]
RULES: tuple[Rule, ...] = (
    *(_nonfinite, _logging, _optimizer_state, _batches, _weights, _learning_rate, _masters, _data_order),
    *(_counter, _epoch, _instability, _mode, _overfit, _degraded, _normal),
)
