"""A run's log with the diagnoser's watch behind it: what it finds goes into the same log, and may ask for a stop.

Whatever appends to the log is seen, so that neither the loop nor a writer of checkpoints knows of the watch.
"""

from collections.abc import Callable, Sequence
from typing import Any

from dflash_core.config import WatchConfig
from dflash_core.diagnosis.finding import Finding
from dflash_core.diagnosis.live import STOP_ON, Watch
from dflash_core.errors import NonFiniteError
from dflash_core.training.records import CheckpointRecord, FindingRecord, LogWriter, Record, ResumeRecord, StepRecord, StopRecord


class WatchedLog:
    """Passes records on to the log, and step by step on to the watch.

    Args:
        log: the run's log.
        config: which findings stop the run.
        note: tells a person.
        earlier: what the log holds of earlier sessions, as far as it counts.
        resumed_at: the step after which this session goes on; 0 where it begins.
    """

    def __init__(
        self, log: LogWriter, config: WatchConfig, note: Callable[[str], None], earlier: Sequence[Record] = (), resumed_at: int = 0
    ) -> None:
        self._log, self._note = log, note
        self._stop_wanted: str | None = None
        self._watch: Watch | None = Watch(STOP_ON | set(config.stop_on))
        steps = [r for r in earlier if isinstance(r, StepRecord)]
        told = [Finding(kind=r.what, step=r.at_step, severity=r.severity) for r in earlier if isinstance(r, FindingRecord)]
        self._watch.recall(steps, told)
        for record in earlier:
            if isinstance(record, CheckpointRecord | ResumeRecord):
                self._watch.happened(record.kind, record.step)
        if resumed_at:
            self._watch.happened("resume", resumed_at)

    def stamp(self, step: int) -> dict[str, Any]:
        """As the log's own."""
        return self._log.stamp(step)

    def stop_wanted(self) -> str | None:
        """The finding for which the run is to stop, in words."""
        return self._stop_wanted

    def append(self, record: Record) -> None:
        """Write the record, and what the watch finds because of it.

        Raises:
            DataError: as LogWriter.append.
        """
        if isinstance(record, StopRecord) and record.message.startswith(NonFiniteError.__name__):
            # The step raised before it had a record; the next session, a tracker and a later diagnosis shall know of it.
            self._tell(record.step, [_not_finite(record.step + 1)])
        self._log.append(record)
        if self._watch is None:
            return
        if isinstance(record, CheckpointRecord):
            self._watch.happened("checkpoint", record.step)
        if isinstance(record, StepRecord):
            self._tell(record.step, self._found(self._watch, record))

    def _found(self, watch: Watch, record: StepRecord) -> list[Finding]:
        try:
            return watch.feed(record)
        except Exception as error:  # noqa: BLE001 - watching is never a condition for training, whatever the fault
            self._watch = None
            self._note(f"the watch failed at step {record.step} and is off ({type(error).__name__}: {error}); the run goes on")
            return []

    def _tell(self, step: int, findings: list[Finding]) -> None:
        for f in findings:
            stops = self._watch is not None and self._watch.must_stop([f])
            told = {"what": f.kind, "at_step": int(f.step), "severity": f.severity, "text": f.text, "stops": stops}
            self._log.append(FindingRecord(**self._log.stamp(step), **told))
            self._note(f"step {step}: {f.text}")
            if stops:
                self._stop_wanted = f"the finding {f.kind} at step {f.step:g}, named in watch.stop_on,"


def _not_finite(step: int) -> Finding:
    text = f"the loss or the gradient's norm is not finite at step {step}; the weights were not updated"
    return Finding(kind="nonfinite", step=step, severity="fault", text=text)
