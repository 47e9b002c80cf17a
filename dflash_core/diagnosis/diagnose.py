"""The diagnosis of a log: read, put in order, detect, relate to events, judge."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dflash_core.diagnosis.causes import rank
from dflash_core.diagnosis.cost import Cost, cost
from dflash_core.diagnosis.detectors import ALL
from dflash_core.diagnosis.events import Events, parse_events, placed, with_gaps
from dflash_core.diagnosis.evidence import Cause, Evidence
from dflash_core.diagnosis.finding import Finding
from dflash_core.diagnosis.log import Log, log_from
from dflash_core.diagnosis.readers.detect import read_any
from dflash_core.diagnosis.refine import Refined, refine
from dflash_core.diagnosis.ruled import Ruled, ruled
from dflash_core.diagnosis.table import Table
from dflash_core.diagnosis.timeline import step_gaps, timeline
from dflash_core.diagnosis.verdict import Verdict, judge
from dflash_core.diagnosis.view import ALARM, View
from dflash_core.errors import DataError

MOST = 1e30


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """All that is said of a run."""

    source: str
    view: View
    refined: Refined
    causes: tuple[Cause, ...]
    verdict: Verdict
    cost: Cost
    ruled: tuple[Ruled, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was seen, in order of steps."""
        return self.refined.findings

    @property
    def log(self) -> Log:
        """The cleaned log."""
        return self.view.log


def diagnose_file(path: Path, events: list[str] | None = None, pattern: str | None = None) -> Diagnosis:
    """Diagnose a log file or a run's directory.

    Args:
        path: a log in any known form.
        events: steps of events, see events.parse_events.
        pattern: regular expression for text that no reader knows.

    Raises:
        DataError: nothing in it can be read, or an event can't.
    """
    given = parse_events(events or [])
    return diagnose_table(read_any(path, pattern), given, source=str(path))


def diagnose_table(table: Table, events: Events | None = None, source: str = "table", alarm: float = ALARM) -> Diagnosis:
    """Diagnose rows that something else fetched.

    Args:
        table: the rows.
        events: what is known to have happened beside them.
        source: what to call it.
        alarm: threshold of the loss's detectors in sigma.

    Raises:
        DataError: no row has a loss and a step.
    """
    raw = log_from(table)
    if not len(raw):
        raise DataError(f"{source} has no row with a loss and a step. Give a training log.")
    # Squares and differences of numbers near the largest float overflow; such a loss is no number a run can use.
    with np.errstate(all="ignore"):
        return _diagnose(_bounded(raw), events or Events(), source, alarm)


def _bounded(log: Log) -> Log:
    """Losses beyond 10^30 count as infinite, other numbers as missing."""
    others = {
        name: {k: np.where(np.abs(v) > MOST, np.nan, v) for k, v in getattr(log, name).items()} for name in ("aligned", "accuracies", "queues")
    }
    return replace(log, loss=np.where(np.abs(log.loss) > MOST, np.inf, log.loss), **others)


def _diagnose(raw: Log, events: Events, source: str, alarm: float) -> Diagnosis:
    ordered = timeline(raw)
    view = View(ordered.log, placed(events, ordered.log), alarm)
    gaps = step_gaps(ordered.log, view.events.of("checkpoint"))
    findings = [*ordered.findings, *gaps]
    for detector in ALL:
        findings += detector(view)
    view = replace(view, events=with_gaps(view.events, [f.detail["resumes_at"] for f in gaps if f.kind == "step_gap"]))
    refined = refine(view, findings)
    evidence = Evidence(view, refined)
    causes = rank(evidence)
    return Diagnosis(
        source=source,
        view=view,
        refined=refined,
        causes=causes,
        verdict=judge(evidence, causes),
        cost=cost(evidence),
        ruled=ruled(evidence, causes),
    )
