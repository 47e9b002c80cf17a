"""Says whether findings come at events, with the chance that they would by accident, and what else could explain it."""

import math
from dataclasses import dataclass

import numpy as np

from dflash_core.diagnosis.events import Events
from dflash_core.diagnosis.finding import Finding
from dflash_core.diagnosis.log import Log

# "At" an event: its own line or one of the next two. A fault of the optimizer's state shows from the second step on.
NEAR_ROWS = 3
# Events that touch the state of a run. A gap in the steps stands for a save where no checkpoint is known, see events.with_gaps.
TOUCHING = ("checkpoint", "resume", "reset", "gap")
# Chance under which findings are said to come at the events, and how many events at least: one is a coincidence.
CHANCE = 0.01
LEAST_EVENTS = 2
# A confounder's chance must be this many times larger to be set aside.
CLEARLY = 100.0


@dataclass(frozen=True, kw_only=True)
class Association:
    """How findings lie to the events of one kind.

    Fields:
        kind: of event.
        hits: findings at an event, of `findings`.
        events_hit: events with a finding, of `events`.
        coverage: share of all rows that are at an event.
        chance: probability of as many hits or more if findings fell anywhere with equal chance (binomial).
        delay_rows: rows from the event to the finding, the median of the hits.
    """

    kind: str
    hits: int
    findings: int
    events_hit: int
    events: int
    coverage: float
    chance: float
    delay_rows: float

    @property
    def holds(self) -> bool:
        """Whether "at the event" may be said."""
        return self.chance < CHANCE and self.events_hit >= LEAST_EVENTS

    def told(self) -> str:
        """In words."""
        mine = f"{self.hits} of {self.findings} spikes come within {NEAR_ROWS} lines of a {self.kind}, {self.events_hit} of {self.events} {self.kind}s have one"
        return f"{mine}; chance gives that with {_probability(self.chance)}"


def _probability(p: float) -> str:
    return f"{p:.0%}" if p >= 0.095 else f"{p:.1%}" if p >= 0.001 else f"1 in {float(f'{1 / p:.2g}'):,.0f}" if p > 1e-9 else "under 1 in 10^9"


def associate(log: Log, events: Events, findings: list[Finding]) -> dict[str, Association]:
    """Association of the findings with each kind of event that has any."""
    rows = np.array([f.index for f in findings if f.index >= 0])
    if not len(rows) or not len(log):
        return {}
    return {kind: found for kind, steps in events.steps.items() if (found := _with(log, kind, steps, rows)) is not None}


def coincidence(log: Log, events: Events, finding: Finding) -> tuple[str, ...]:
    """What speaks against a checkpoint as the cause of a single finding right after it."""
    near = associate(log, events, [finding]).get("checkpoint")
    share = f": {near.coverage:.1%} of all lines are as near to a checkpoint" if near is not None else ""
    against = (f"one coincidence proves nothing{share}",)
    return against if finding.detail.get("after_epoch") is None else (*against, "an epoch begins there as well, perhaps with other data")


def event_rows(log: Log, steps: np.ndarray) -> np.ndarray:
    """For each event within the log its own row, or the first after it."""
    rows = np.searchsorted(log.steps, steps)
    return np.unique(rows[(rows < len(log)) & (steps >= log.steps[0])])


def _with(log: Log, kind: str, steps: np.ndarray, rows: np.ndarray) -> Association | None:
    starts = event_rows(log, steps)
    if not len(starts):
        return None
    covered = np.zeros(len(log) + NEAR_ROWS, dtype=bool)
    for shift in range(NEAR_ROWS):
        covered[starts + shift] = True
    coverage = float(covered[: len(log)].mean())
    last = np.searchsorted(starts, rows, side="right") - 1
    delay = np.where(last >= 0, rows - starts[np.maximum(last, 0)], len(log))
    hit = delay < NEAR_ROWS
    return Association(
        kind=kind,
        hits=int(hit.sum()),
        findings=len(rows),
        events_hit=len(np.unique(last[hit])),
        events=len(starts),
        coverage=coverage,
        chance=at_least(int(hit.sum()), len(rows), coverage),
        delay_rows=float(np.median(delay[hit])) if hit.any() else math.nan,
    )


def at_least(hits: int, trials: int, probability: float) -> float:
    """Binomial probability of `hits` or more, by its logarithms."""
    if hits <= 0:
        return 1.0
    if probability >= 1.0:
        return 1.0
    logs = [
        math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + k * math.log(probability) + (trials - k) * math.log1p(-probability)
        for k in range(hits, trials + 1)
    ]
    return min(1.0, math.fsum(math.exp(v) for v in logs))


def explained_by(associations: dict[str, Association], kind: str) -> str | None:
    """Another kind of event that explains the findings as well as `kind` does; then neither may be named."""
    own = associations.get(kind)
    if own is None or not own.holds:
        return None
    rivals = [a for k, a in associations.items() if k != kind and a.holds and a.hits >= own.hits and a.chance <= own.chance * CLEARLY]
    return min(rivals, key=lambda a: a.chance).kind if rivals else None
