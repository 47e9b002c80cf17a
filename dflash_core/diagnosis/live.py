"""Watches a run while it goes on: each step is screened in about a microsecond, the detectors run only where something shows.

The screen compares a step with the steps before by the detectors' own threshold. They run SETTLED steps after it shows
something, since a spike and a lasting change begin alike, and now and then anyway, for what no single step shows: as
often as BUDGET of the elapsed time allows, so that the watch costs a fast loop no more than a slow one. A loss that stops
being finite is looked at at once.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

import numpy as np

from dflash_core.diagnosis.detectors import ALL
from dflash_core.diagnosis.detectors.spikes import LONG_ROWS
from dflash_core.diagnosis.events import Events
from dflash_core.diagnosis.finding import Finding
from dflash_core.diagnosis.log import Log
from dflash_core.diagnosis.refine import refine
from dflash_core.diagnosis.robust import noise_sigma
from dflash_core.diagnosis.view import ALARM, FEW, MEMORY, View

# Steps that the detectors see; steps at least between two looks where the screen says nothing; share of the time for looks.
WINDOW, EVERY, BUDGET = 1000, 200, 0.003
# Steps between two readings of the screen's limit, and steps of which it reads the spread.
LIMIT_EVERY, SPREAD_STEPS = 32, 256
# Lines that a change must have behind it before it is told.
SETTLED = LONG_ROWS
# What begins as a spike may go on as a shift or a climb: one movement of the loss is told once, and again if it gets graver.
MOVES = frozenset(("loss_spike", "level_shift", "divergence", "slow_climb", "instability_episode"))
GRAVITY = ("note", "warning", "fault")
# Steps within which a finding of one kind is the same finding; those of long kinds move as more of them is seen.
SAME_STEPS = 50
LONG_KINDS = frozenset(("nonfinite", "queue_drift", "divergence", "slow_climb", "instability_episode", "plateau", "periodic", "epoch_stairs"))
MOST_TOLD, MOST_EVENTS = 500, 50
STOP_ON = frozenset({"nonfinite"})


class Step(Protocol):
    """What a step's record must have."""

    @property
    def step(self) -> int: ...
    @property
    def loss(self) -> float: ...
    @property
    def grad_norm(self) -> float: ...
    @property
    def lr(self) -> float: ...
    @property
    def streak(self) -> float | None: ...
    @property
    def tok_per_s(self) -> float: ...
    @property
    def hs_queue_depth(self) -> int: ...
    @property
    def prefetch_queue_depth(self) -> int: ...


NAMES = ("step", "loss", "grad_norm", "lr", "streak", "tok_per_s", "hs_queue_depth", "prefetch_queue_depth")
_Row = tuple[float, ...]  # in the order of NAMES


@dataclass
class Watch:
    """Fed with steps, answers with findings that are new.

    Fields:
        stop_on: kinds for which `must_stop` says yes.
        budget: share of the elapsed time that looks may take.
        clock: seconds, by which that share is kept.
    """

    stop_on: frozenset[str] = STOP_ON
    budget: float = BUDGET
    clock: Callable[[], float] = time.perf_counter
    _rows: deque[_Row] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _told: list[Finding] = field(default_factory=list)
    _events: dict[str, list[float]] = field(default_factory=dict)
    _limit: float = math.inf
    _finite: bool = True
    _count: int = 0
    _look_at: int = EVERY
    _next_look: float = 0.0

    def happened(self, kind: str, step: int) -> None:
        """A checkpoint was taken, or the run resumed, after `step`."""
        self._events[kind] = [*self._events.get(kind, [])[-MOST_EVENTS:], float(step)]

    def recall(self, records: Iterable[Step], told: Iterable[Finding] = ()) -> None:
        """What an earlier session did and was told, so that this one neither starts blind nor tells it again."""
        self._rows.extend(_row(record) for record in records)
        self._told += told
        self._read_limit()

    def feed(self, record: Step) -> list[Finding]:
        """Findings that this step adds, most of the time none."""
        row = _row(record)
        self._rows.append(row)
        self._count += 1
        if self._count % LIMIT_EVERY == 0:
            self._read_limit()
        before, self._finite = self._finite, math.isfinite(row[1])
        if before and not self._finite:
            return self._timed_look()
        if row[1] > self._limit:
            self._look_at = min(self._look_at, self._count + SETTLED)
        if self._count >= self._look_at and self.clock() >= self._next_look:
            return self._timed_look()
        return []

    def must_stop(self, findings: Iterable[Finding]) -> bool:
        """Whether the policy says to stop for one of them."""
        return any(f.kind in self.stop_on and f.severity == "fault" for f in findings)

    def _read_limit(self) -> None:
        """What a step's loss must exceed to show: the alarm's sigma over the median of the last steps."""
        loss = [row[1] for row in list(self._rows)[-SPREAD_STEPS:] if math.isfinite(row[1])]
        if len(loss) >= 2 * FEW:
            self._limit = median(loss[-MEMORY:]) + ALARM * noise_sigma(np.array(loss))

    def _timed_look(self) -> list[Finding]:
        started = self.clock()
        found = self._look()
        now = self.clock()
        self._look_at = self._count + EVERY
        self._next_look = now + (now - started) / self.budget
        return found

    def _look(self) -> list[Finding]:
        """Run the detectors on the window; keep what was not told before."""
        view = View(self._log(), Events(steps={kind: np.array(steps) for kind, steps in self._events.items()}))
        with np.errstate(all="ignore"):
            found = refine(view, [f for detector in ALL for f in detector(view)]).findings
        settled = len(self._rows) - SETTLED
        new = [f for f in found if f.severity != "note" and (f.index <= settled or f.kind == "nonfinite") and not self._known(f)]
        self._told = [*self._told, *new][-MOST_TOLD:]
        return new

    def _known(self, f: Finding) -> bool:
        """Whether it goes on from one that was told."""
        near = WINDOW if f.kind in LONG_KINDS else SAME_STEPS
        like = [t for t in self._told if (t.kind == f.kind or {t.kind, f.kind} <= MOVES) and abs(t.step - f.step) <= near]
        return any(GRAVITY.index(t.severity) >= GRAVITY.index(f.severity) for t in like)

    def _log(self) -> Log:
        table = np.array(self._rows)
        columns = dict(zip(NAMES, table.T, strict=True))
        return Log(
            format="live",
            names={"loss": "loss", "step": "step"},
            lines=np.arange(len(table)),
            steps=columns["step"],
            loss=columns["loss"],
            aligned={"grad_norm": columns["grad_norm"], "lr": columns["lr"], "throughput": columns["tok_per_s"]},
            accuracies={"streak": columns["streak"]},
            queues={n: columns[n] for n in ("hs_queue_depth", "prefetch_queue_depth")},
        )


def _row(r: Step) -> _Row:
    streak = math.nan if r.streak is None else r.streak
    return (r.step, r.loss, r.grad_norm, r.lr, streak, r.tok_per_s, r.hs_queue_depth, r.prefetch_queue_depth)


def watch(records: Iterable[Step], stop_on: frozenset[str] = STOP_ON) -> Iterator[Finding]:
    """Findings of a stream of step records, as they show; ends where the policy says stop."""
    watcher = Watch(stop_on, budget=math.inf)
    for record in records:
        found = watcher.feed(record)
        yield from found
        if watcher.must_stop(found):
            return
