"""Says which class of fault the differences point to, by what differs first and by replays of each suspect."""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from dflash_core.checkpoint.contents import Contents
from dflash_core.proof.band import Band
from dflash_core.proof.compare import Difference, compare
from dflash_core.proof.faults import Fault
from dflash_core.proof.hints import Hint, hints
from dflash_core.proof.recorded import Window
from dflash_core.proof.replay import Setting, advance, replay
from dflash_core.proof.suspect_course import other_noise, wrong_accumulation, wrong_data, wrong_noise, wrong_rates
from dflash_core.proof.suspect_state import wrong_masters, wrong_moments, wrong_weights
from dflash_core.proof.variation import Variation
from dflash_core.training.batches import checksum
from dflash_core.training.records import UpdateRecord
from dflash_core.training.schedule import learning_rate

_REPRODUCED = ("loss_sum", "grad_norm", "num_blocks", "per_position_count", "denominator")
_NOISE_DRAWS = 6
# Of other noise a loss is some standard deviations off, and hardly ever less than a fiftieth of one.
_NEAR, _FAR = 0.02, 4.0
_MASTERS_JUMP = 1.5
_EPOCHS_SEARCHED = 2


@dataclass(frozen=True)
class Case:
    """A checkpoint whose replay is not what the log says."""

    setting: Setting
    contents: Contents
    window: Window
    logged: tuple[UpdateRecord, ...]
    replayed: tuple[UpdateRecord, ...]
    differences: tuple[Difference, ...]
    band: Band
    others: Mapping[str, Contents]  # neighbouring checkpoints
    # What may be wrong: the log, because another session went on from a right file; or the file, beside a right log.
    log_in_doubt: bool

    def differing(self, offset: int) -> set[str]:
        """Fields that differ at one step."""
        return {d.field for d in self.differences if d.offset == offset}


@dataclass(frozen=True)
class Diagnosis:
    """The class of fault, and what speaks for it."""

    fault: Fault
    evidence: tuple[str, ...]


def classify(case: Case) -> Diagnosis:
    """The most likely class of fault."""
    first = case.differences[0]
    told = _told_by_the_log(case, first)
    if told is not None:
        return told
    if _only_the_log(case):
        return Diagnosis("logging", ("everything else is equal in all steps, so the numbers trained with were right",))
    found = _hints(case)
    if signs := [] if case.log_in_doubt else _signs(found, "weights" if first.offset == 1 else "moments"):
        return Diagnosis(signs[0].fault, tuple(hint.text for hint in signs))
    for suspect in suspects(case):
        if reproduces(case, suspect):
            signs = [hint.text for hint in found if hint.fault == suspect.fault]
            return Diagnosis(suspect.fault, (_reproduced(case, suspect), *signs))
    return _by_signature(case, found)


def rebased(case: Case, steps: int) -> Case:
    """The same from the state `steps` steps after the checkpoint, up to which everything was right."""
    contents = advance(case.setting, case.contents, steps, num_ranks=case.window.num_ranks) if steps else case.contents
    logged = case.logged[steps:]
    replayed = replay(case.setting, contents, len(logged), num_ranks=case.window.num_ranks)
    window, differences = replace(case.window, steps=case.window.steps[steps:]), compare(replayed, logged, case.band)
    return replace(case, contents=contents, window=window, logged=logged, replayed=replayed, differences=differences)


def _reproduced(case: Case, suspect: Variation) -> str:
    return f"a replay in which {suspect.text} gives the log's numbers in all {len(case.logged)} steps"


def suspects(case: Case) -> Iterator[Variation]:
    """Variations that could explain what differs first, the likely ones at the front.

    Where the file is in doubt, only what can be put right again is worth a replay: exchanges and counters.
    """
    setting, contents, step, first = case.setting, case.contents, case.contents.step, case.differences[0]
    initial, others = (setting.initial, case.others) if case.log_in_doubt else ({}, {})
    if first.offset == 1 and _loss_right(case, 1):
        yield from wrong_accumulation(len(case.logged[0].buckets))
    elif first.offset == 1:
        yield from wrong_noise(setting, step)
        yield from wrong_weights(contents, initial, others)
        # Last, because the log's checksum of samples shows most of them.
        yield from wrong_data(setting, step) if case.log_in_doubt else ()
    else:
        yield from wrong_moments(contents, others)
        if case.log_in_doubt:
            yield from wrong_masters(contents, initial, others)
            yield from wrong_rates(setting, step)
            yield from wrong_accumulation(len(case.logged[0].buckets))


def reproduces(case: Case, suspect: Variation) -> bool:
    """Whether the suspect explains the log: the steps up to the first difference are tried first, then all."""
    for num_steps in dict.fromkeys((case.differences[0].offset, len(case.logged))):
        replayed = replay(case.setting, case.contents, num_steps, suspect, num_ranks=case.window.num_ranks)
        remaining = compare(replayed, case.logged[:num_steps], case.band)
        if any(d.field in _REPRODUCED or d.replayed is None for d in remaining):
            return False
    return True


def _told_by_the_log(case: Case, first: Difference) -> Diagnosis | None:
    """Faults that the first difference names by itself."""
    if first.group == "data":
        return _data(case, first)
    if first.group == "schedule":
        return Diagnosis("schedule", (first.text, _which_rate(case, first)))
    if first.group == "noise":
        return _noise_level(case, first)
    if first.group == "counts":
        return Diagnosis("rng", ("the samples are the plan's and their labels are not: the anchors were drawn otherwise",))
    return None


def _noise_level(case: Case, first: Difference) -> Diagnosis:
    """Off, begun again, or that of another step because the whole batch is."""
    text = "the level of the feature noise is not the plan's"
    if first.logged == 0.0:
        return Diagnosis("mode", (f"{text}, but 0",))
    for suspect in wrong_data(case.setting, case.contents.step):
        if reproduces(case, suspect):
            return Diagnosis(suspect.fault, (text, _reproduced(case, suspect)))
    return Diagnosis("rng", (text,))


def _data(case: Case, first: Difference) -> Diagnosis:
    record = case.logged[first.offset - 1]
    claimed, expected = record.first_sample, case.replayed[first.offset - 1].first_sample
    if claimed != expected:
        fault: Fault = "repeated_batches" if claimed < expected else "skipped_batches"
        return Diagnosis(fault, (f"the log goes on with sample {claimed}, expected {expected}",))
    found = _step_of_samples(case, record)
    if found is None:
        return Diagnosis("data_order", ("the samples are those of no step of the plan near here",))
    fault = "repeated_batches" if found < record.step else "skipped_batches"
    return Diagnosis(fault, (f"step {record.step} was made of the samples of step {found}",))


def _step_of_samples(case: Case, record: UpdateRecord) -> int | None:
    """The planned step, in this epoch or the ones beside it, that has these samples."""
    plan, dataset = case.setting.plan, case.setting.dataset
    reach = _EPOCHS_SEARCHED * plan.steps_per_epoch
    for step in range(max(1, record.step - reach), record.step + plan.steps_per_epoch):
        rows = [row for micro in plan.step_number(step - 1).micro_batches for row in micro.rows]
        if checksum(dataset.sample_id(row) for row in rows) == record.checksum:
            return step
    return None


def _which_rate(case: Case, first: Difference) -> str:
    training, total = case.setting.config.training, case.setting.total_steps
    for step in range(1, total + 1):
        if learning_rate(step, total, training) == first.logged:
            return f"it is that of step {step}"
    return "it is that of no step of this schedule"


def _only_the_log(case: Case) -> bool:
    """A wrong loss beside the right norm, or a wrong norm that the next step doesn't follow."""
    fields = {d.field for d in case.differences}
    if any(d.replayed is None for d in case.differences):
        return False
    if "grad_norm" not in fields:
        return True
    last = len(case.logged)
    only_norms = fields == {"grad_norm"}
    return only_norms and last > 1 and not case.differing(last)


def _loss_right(case: Case, offset: int) -> bool:
    return not {"loss", "loss_sum"} & case.differing(offset)


def _hints(case: Case) -> tuple[Hint, ...]:
    beginning = {"the run's beginning": Contents(0, case.setting.initial, {}, {})}
    return hints(case.contents, case.setting.config.training.betas, {**beginning, **case.others})


def _signs(found: tuple[Hint, ...], fault: Fault) -> list[Hint]:
    """Signs that the file itself is wrong. Counters are left to a replay: steps without a label don't count."""
    return [hint for hint in found if hint.fault == fault]


def _by_signature(case: Case, found: tuple[Hint, ...]) -> Diagnosis:
    """What is left where no suspect gives the log's numbers: the place of the first difference decides."""
    first = case.differences[0]
    none = "no variation that was tried gives the log's numbers"
    if first.offset == 1 and _loss_right(case, 1):
        return Diagnosis("accumulation", ("loss right and gradient norm wrong at the first step: the gradient is not that of its batch", none))
    if first.offset == 1:
        return _first_step(case, found, none)
    # Moments, counters and rates show at the second step; what shows first at a later one may be that step's own.
    if first.offset > 2 and case.log_in_doubt and (text := _as_of_other_noise(rebased(case, first.offset - 1))):
        return Diagnosis("rng", (text, none))
    right = f"weights, data and noise were right for {first.offset - 1} steps, so what the update is made of is wrong"
    for fault in ("step_counter", "moments"):
        if texts := [hint.text for hint in found if hint.fault == fault]:
            return Diagnosis(fault, (*texts, right))
    jump = case.logged[first.offset - 1].loss / max(case.replayed[first.offset - 1].loss, 1e-30) if first.offset <= len(case.replayed) else 1.0
    if jump > _MASTERS_JUMP:
        return Diagnosis("masters", (right, f"the loss is {jump:.2f} times the replay's: no moments can do that in one update at this rate", none))
    return Diagnosis("moments", (right, none))


def _first_step(case: Case, found: tuple[Hint, ...], none: str) -> Diagnosis:
    """Weights or noise: the session that saved had no reason to draw other noise, a later one had."""
    if texts := [hint.text for hint in found if hint.fault == "weights"]:
        return Diagnosis("weights", (*texts, none))
    if case.log_in_doubt and (text := _as_of_other_noise(case)):
        return Diagnosis("rng", (text, none))
    whose = "a later session went on" if case.log_in_doubt else "the session that saved went on by itself"
    return Diagnosis("weights", (f"data, rate and counts are right at the first step, and {whose}: its loss is of other weights", none))


def _as_of_other_noise(case: Case) -> str | None:
    """How the log's first step lies among replays with other noise; None where it doesn't look like one of them."""
    if case.setting.config.training.feature_noise.std == 0.0 or not case.replayed:
        return None
    draws = [r for i in range(_NOISE_DRAWS) for r in replay(case.setting, case.contents, 1, other_noise(i), num_ranks=case.window.num_ranks)]
    if len(draws) < _NOISE_DRAWS:
        return None
    places = {}
    for name in ("loss", "grad_norm"):
        values = [getattr(draw, name) for draw in draws]
        spread = statistics.stdev(values)
        if spread == 0.0:
            return None
        logged, mine = getattr(case.logged[0], name), getattr(case.replayed[0], name)
        if abs(logged - mine) < _NEAR * spread or abs(logged - statistics.fmean(values)) > _FAR * spread:
            return None
        places[name] = (logged - statistics.fmean(values)) / spread
    shown = ", ".join(f"{name.replace('_', ' ')} {place:+.1f}" for name, place in places.items())
    return f"step {case.logged[0].step} looks like one with other noise: among {_NOISE_DRAWS} such replays it is {shown} standard deviations off"
