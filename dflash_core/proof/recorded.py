"""What a run's own log says: its configuration, its checkpoints, and the steps that were done after each."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dflash_core.checkpoint.resume import RunDirectory
from dflash_core.config import Config, parse_config
from dflash_core.errors import DataError
from dflash_core.training.log_reader import all_records, read_log
from dflash_core.training.records import CheckpointRecord, Record, ResumeRecord, StartRecord, UpdateRecord


@dataclass(frozen=True)
class Window:
    """Consecutive steps after a checkpoint, as one history of the run has them. `resumed` where another session did them."""

    steps: tuple[UpdateRecord, ...]
    session: StartRecord | ResumeRecord
    resumed: bool

    @property
    def num_ranks(self) -> int:
        """Drafter ranks that shared these steps."""
        return len(self.session.world.get("drafter_ranks", ())) or 1

    @property
    def conditions(self) -> dict[str, Any]:
        """Device, threads and library of the session; empty in logs that have none."""
        return self.session.world.get("conditions", {})


class RecordedRun:
    """A run directory and its log, superseded records included: those are what the session that saved had seen.

    Raises:
        DataError: no log, a broken one, or one without its beginning.
    """

    def __init__(self, path: Path) -> None:
        self.directory = RunDirectory(path)
        self.records: tuple[Record, ...] = tuple(all_records(self.directory.log_path))
        starts = [r for r in self.records if isinstance(r, StartRecord)]
        if not starts:
            raise DataError(f"{self.directory.log_path} has no start record, expected one. Is this the log of a training run?")
        self.start = starts[-1]
        self.sessions = tuple(r for r in self.records if isinstance(r, StartRecord | ResumeRecord) and r.run_id == self.start.run_id)

    @cached_property
    def config(self) -> Config:
        """What the run's last session was started with: a person may have changed it by force."""
        return parse_config(self.sessions[-1].config, f"the last session's record in {self.directory.log_path}")

    @cached_property
    def standing(self) -> tuple[Record, ...]:
        """The records that no later session has superseded."""
        return read_log(self.directory.log_path)

    @cached_property
    def counted(self) -> tuple[UpdateRecord, ...]:
        """The steps among them."""
        return _steps(self.standing)

    def identity(self, session_id: str | None) -> dict[str, Any]:
        """The run's identity by dotted key, with what a person has changed by force up to this session."""
        leaves = flat(self.start.identity)
        for session in self.sessions:
            leaves |= {key: now for key, (_, now) in getattr(session, "forced", {}).items()}
            if session.session_id == session_id:
                break
        return leaves

    def checkpoint(self, name: str) -> CheckpointRecord | None:
        """The newest record of this checkpoint; None for one that was committed right before a kill."""
        return next((r for r in reversed(self.records) if isinstance(r, CheckpointRecord) and r.name == name), None)

    def windows(self, step: int, saved_by: str | None) -> tuple[Window, ...]:
        """Histories after `step`: that of the session `saved_by`, then the one that counts, where another session went on from here.

        Args:
            step: the checkpoint's.
            saved_by: id of the session that saved it; None takes the last one that logged the step.
        """
        steps = _steps(self.records)
        saver = saved_by or next((r.session_id for r in reversed(steps) if r.step == step), None)
        own = _following([r for r in steps if r.session_id == saver], step)
        counted = _following(self.counted, step)
        found = [Window(own, self._session(own[0]), resumed=False)] if own else []
        # A session that went back further than this checkpoint did the step itself, and never had this state.
        from_here = any(r.step == step and r.session_id == saver for r in self.counted)
        if counted and counted[0].session_id != saver and (from_here or saver is None):
            found.append(Window(counted, self._session(counted[0]), resumed=True))
        return tuple(found)

    def parts(self, window: Window) -> tuple[Window, ...]:
        """The same steps, a window for each session that did them: a later one may have had other ranks or threads."""
        by_session: dict[str, list[UpdateRecord]] = {}
        for record in window.steps:
            by_session.setdefault(record.session_id, []).append(record)
        return tuple(Window(tuple(steps), self._session(steps[0]), window.resumed) for steps in by_session.values())

    def _session(self, record: Record) -> StartRecord | ResumeRecord:
        return next((r for r in self.sessions if r.session_id == record.session_id), self.start)


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves by dotted key; tuples as JSON gives them back, as lists."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            leaves |= flat(value, f"{prefix}{key}.")
        else:
            leaves[prefix + key] = list(value) if isinstance(value, tuple) else value
    return leaves


def _steps(records: Iterable[Record]) -> tuple[UpdateRecord, ...]:
    """Steps, and those beyond the last checkpoint that a run records and discards so that this one can be proven, too."""
    return tuple(r for r in records if isinstance(r, UpdateRecord))


def _following(records: Sequence[UpdateRecord], step: int) -> tuple[UpdateRecord, ...]:
    """The records of step + 1, step + 2, ... as far as they go without a gap; where a step comes twice, the last."""
    by_step = {r.step: r for r in records}
    found = []
    while (record := by_step.get(step + len(found) + 1)) is not None:
        found.append(record)
    return tuple(found)
