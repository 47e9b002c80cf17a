"""Watches a run while it goes on: each step is screened in microseconds, the detectors run only where something shows.

The screen compares a step with the steps before by the detectors' own threshold. They run where it shows something, and
now and then anyway, for what no single step shows: as often as BUDGET of the elapsed time allows, so that the watch
costs a fast loop no more than a slow one. A loss that isn't finite is looked at whatever it costs.
"""

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

import numpy as np

from dflash_core.diagnosis.detectors import ALL
from dflash_core.diagnosis.events import Events
from dflash_core.diagnosis.finding import Finding
from dflash_core.diagnosis.log import Log
from dflash_core.diagnosis.refine import refine
from dflash_core.diagnosis.robust import noise_sigma
from dflash_core.diagnosis.view import ALARM, FEW, MEMORY, View

# Steps that the detectors see; steps at least between two looks where the screen says nothing; share of the time for looks.
WINDOW, EVERY, BUDGET = 1000, 200, 0.003
# Steps between two readings of the spread, and within which a finding of one kind is the same finding.
SPREAD_EVERY, SAME_STEPS = 16, 50
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


@dataclass
class Watch:
    """Fed with steps, answers with findings that are new.

    Fields:
        stop_on: kinds for which `must_stop` says yes.
        budget: share of the elapsed time that looks may take.
    """

    stop_on: frozenset[str] = STOP_ON
    budget: float = BUDGET
    _rows: deque[tuple[float, ...]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=MEMORY))
    _told: list[Finding] = field(default_factory=list)
    _checkpoints: list[float] = field(default_factory=list)
    _sigma: float = math.inf
    _count: int = 0
    _due: bool = False
    _next_look: float = 0.0

    def saved(self, step: int) -> None:
        """A checkpoint was taken at `step`."""
        self._checkpoints = [*self._checkpoints[-50:], float(step)]

    def feed(self, record: Step) -> list[Finding]:
        """Findings that this step adds, most of the time none."""
        values = tuple(math.nan if v is None else float(v) for v in (getattr(record, name) for name in NAMES))
        self._rows.append(values)
        self._count += 1
        self._due = self._shows(values[1]) or self._due or self._count % EVERY == 0
        if self._due and (not math.isfinite(values[1]) or time.perf_counter() >= self._next_look):
            return self._timed_look()
        return []

    def must_stop(self, findings: list[Finding]) -> bool:
        """Whether the policy says to stop for one of them."""
        return any(f.kind in self.stop_on and f.severity == "fault" for f in findings)

    def _shows(self, loss: float) -> bool:
        """Whether the loss is not finite, or out of what the steps before let expect."""
        if not math.isfinite(loss):
            return True
        out = len(self._recent) == MEMORY and loss > median(self._recent) + ALARM * self._sigma
        self._recent.append(loss)
        if self._count % SPREAD_EVERY == 0 and self._count >= 2 * FEW:
            self._sigma = noise_sigma(np.array([row[1] for row in list(self._rows)[-256:] if math.isfinite(row[1])]))
        return out

    def _timed_look(self) -> list[Finding]:
        started = time.thread_time()
        found = self._look()
        self._due = False
        self._next_look = time.perf_counter() + (time.thread_time() - started) / self.budget
        return found

    def _look(self) -> list[Finding]:
        """Run the detectors on the window; keep what was not told before."""
        view = View(self._log(), Events(steps={"checkpoint": np.array(self._checkpoints)} if self._checkpoints else {}))
        with np.errstate(all="ignore"):
            found = refine(view, [f for detector in ALL for f in detector(view)]).findings
        new = [f for f in found if f.severity != "note" and not self._known(f)]
        self._told = [*self._told, *new][-500:]
        return new

    def _known(self, f: Finding) -> bool:
        """A finding goes on: in a stretch that isn't finite each step would be a new one."""
        return any(t.kind == f.kind and (abs(t.step - f.step) <= SAME_STEPS or f.kind in ("queue_drift", "nonfinite")) for t in self._told)

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


def watch(records: Iterable[Step], stop_on: frozenset[str] = STOP_ON) -> Iterator[Finding]:
    """Findings of a stream of step records, as they show; ends where the policy says stop."""
    watcher = Watch(stop_on, budget=math.inf)
    for record in records:
        found = watcher.feed(record)
        yield from found
        if watcher.must_stop(found):
            return
