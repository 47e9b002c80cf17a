"""When things happened beside the steps: checkpoints, resumes, evaluations, epochs, resets; told, recorded or inferred."""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from dflash_core.diagnosis.log import Log
from dflash_core.errors import DataError

KINDS = ("checkpoint", "resume", "epoch", "eval", "reset")
# Words by which a sentence, a file or an option may name a kind; a stem matches its endings, and the first kind wins.
STEMS = {
    "resume": ("resum", "restart", "restor", "reload", "start from"),
    "checkpoint": ("checkpoint", "ckpt", "save", "saving"),
    "epoch": ("epoch",),
    "eval": ("eval", "validat"),
    "reset": ("reset", "zeroed", "redrawn", "reinit"),
}
NUMBERED = re.compile(r"(?:checkpoint|ckpt|step|iter|global_step|epoch_\d+_step)[-_=]?0*(\d+)", re.IGNORECASE)
MOST_EVENTS = 100_000


@dataclass(frozen=True, kw_only=True)
class Events:
    """Steps of events by kind.

    Fields:
        steps: sorted steps. float64 each
        periods: kinds known only by how often they come, until `placed` knows the run's length.
        told: kinds that a person named; the others were recorded in the log or inferred from it.
        unplaced: kinds that a person named without a step.
    """

    steps: dict[str, np.ndarray] = field(default_factory=dict)
    periods: dict[str, float] = field(default_factory=dict)
    told: frozenset[str] = frozenset()
    unplaced: frozenset[str] = frozenset()

    def of(self, kind: str) -> np.ndarray:
        """Steps of one kind."""
        return self.steps.get(kind, np.zeros(0))


def parse_events(texts: list[str]) -> Events:
    """Events that a person gave.

    Args:
        texts: each kind=1,2,3 or kind=every:500 (several by spaces), a checkpoint directory, a file of such lines, or a sentence.

    Raises:
        DataError: a kind or number that can't be read.
    """
    steps: dict[str, set[float]] = {}
    periods: dict[str, float] = {}
    unplaced: set[str] = set()
    for text in texts:
        path = Path(text)
        if len(text) < 1000 and path.exists():
            parts = _in_path(path)
        elif "=" in text:
            parts = [_assignment(word) for word in text.split()]
        else:
            parts = _in_sentence(text)
        for kind, numbers, period in parts:
            steps.setdefault(kind, set()).update(numbers)
            if period:
                periods[kind] = period
            if not numbers and not period:
                unplaced.add(kind)
    return Events(
        steps={k: np.array(sorted(v)) for k, v in steps.items() if v},
        periods=periods,
        told=frozenset(steps),
        unplaced=frozenset(k for k in unplaced if not steps[k] and k not in periods),
    )


_Part = tuple[str, list[float], float]  # kind, steps, period


def _kind(word: str) -> str | None:
    return next((kind for kind, stems in STEMS.items() if any(stem in word.lower() for stem in stems)), None)


def _assignment(word: str) -> _Part:
    name, _, value = word.partition("=")
    kind = _kind(name)
    if kind is None:
        raise DataError(f"--events names {name!r}; known are {', '.join(KINDS)}. Write checkpoint=2000,4001.")
    try:
        if value.startswith("every:"):
            return kind, [], abs(float(value.removeprefix("every:")))
        return kind, [float(v) for v in value.split(",") if v], 0.0
    except ValueError:
        raise DataError(f"--events {word!r} holds something that is no number. Write checkpoint=2000,4001 or eval=every:500.") from None


def _in_path(path: Path) -> list[_Part]:
    if path.is_dir():
        found = [(entry, NUMBERED.search(entry.name)) for entry in path.iterdir()]
        steps = [float(match[1]) for _, match in found if match]
        if not steps:
            raise DataError(f"{path} holds no name such as step-2000 or checkpoint-500. Give the steps: --events checkpoint=2000,4001.")
        return [("checkpoint", steps, 0.0)]
    parts: list[_Part] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise DataError(f"{path} can't be read as a list of events. Give lines such as checkpoint=2000.") from None
    for line in lines:
        words = line.replace(",", " ").split()
        if "=" in line:
            parts += [_assignment(word) for word in line.split()]
        elif len(words) == 1 and words[0].isdigit():
            parts.append(("checkpoint", [float(words[0])], 0.0))
        elif len(words) == 2 and _kind(words[0]) and words[1].isdigit():
            parts.append((_kind(words[0]) or "", [float(words[1])], 0.0))
    return parts


def _in_sentence(text: str) -> list[_Part]:
    """Events in words: "resume at step 2448 (mid epoch 2 of 1632-step epochs)", "every 500 steps moments are zeroed"."""
    parts: list[_Part] = []
    for period in re.findall(r"(\d+)[- ]steps? epochs", text):
        parts.append(("epoch", [], float(period)))
    for clause in re.split(r"[;,(]|\band\b", re.sub(r"\(mid epoch[^)]*\)|(\d+)[- ]steps? epochs", "", text)):
        kind = _kind(clause)
        often = re.search(r"every[^\d;,]{0,30}(\d+)", clause)
        places = [float(n) for n in re.findall(r"(?:at|step|update|iteration)\s+(\d+)", clause)]
        if often and (kind or parts):
            parts.append((kind or parts[-1][0], [], float(often[1])))
        elif kind and kind != "epoch":
            parts.append((kind, places, 0.0))
        elif clause.strip().endswith("steps)") or re.fullmatch(r"\s*(\d+) steps\)?\s*", clause):
            number = re.search(r"\d+", clause)
            if parts and number and not parts[-1][1]:
                parts[-1] = (parts[-1][0], [], float(number[0]))
    # "every 500 steps ... zeroed and ... redrawn" names one event twice; a bare second name adds nothing.
    placed = {kind for kind, numbers, period in parts if numbers or period}
    return [p for p in parts if p[1] or p[2] or p[0] not in placed]


def placed(events: Events, log: Log) -> Events:
    """Periods become steps of this run, and what the log records or implies is added where nobody told it."""
    steps = dict(events.steps)
    last = float(log.steps.max()) if len(log) else 0.0
    first = float(log.steps.min()) if len(log) else 0.0
    for kind, period in events.periods.items():
        steps[kind] = np.union1d(steps.get(kind, np.zeros(0)), _every(period, first, last))
    inferred = dict(log.recorded)
    for fact, kind in (("save_steps", "checkpoint"), ("eval_steps", "eval")):
        if log.facts.get(fact, 0) >= 1:
            inferred.setdefault(kind, _every(log.facts[fact], first, last))
    inferred.setdefault("epoch", _epoch_starts(log))
    if "eval_loss" in log.held_out:
        own = np.unique(log.held_out["eval_loss"].steps)
        # An evaluation on every row tells nothing apart.
        if len(own) * 3 < len(log):
            inferred["eval"] = own
    for kind, found in inferred.items():
        if len(found) and kind not in events.told:
            steps[kind] = found
    return Events(steps=steps, told=events.told, unplaced=events.unplaced)


def with_gaps(events: Events, after: list[float]) -> Events:
    """Gaps in the steps as events, where no checkpoint is known: a save that blocks the loop leaves one.

    Args:
        after: the first step after each gap.
    """
    if len(after) < 2 or "checkpoint" in events.steps or "checkpoint" in events.unplaced:
        return events
    return replace(events, steps=events.steps | {"gap": np.array(after)})


def _every(period: float, first: float, last: float) -> np.ndarray:
    if period <= 0 or (last - first) / period > MOST_EVENTS:
        return np.zeros(0)
    return np.arange(np.ceil(max(first, 1) / period), np.floor(last / period) + 1) * period


def _epoch_starts(log: Log) -> np.ndarray:
    """Steps of the first row of each new epoch, by an epoch number that grows."""
    epoch = log.aligned.get("epoch")
    if epoch is None or not np.isfinite(epoch).any() or len(log) < 3:
        return np.zeros(0)
    whole = np.floor(np.where(np.isfinite(epoch), epoch, -1))
    return log.steps[1:][(np.diff(whole) == 1) & (whole[:-1] >= 0)]
