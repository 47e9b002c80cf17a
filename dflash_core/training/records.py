"""Typed records of train_log.jsonl, and the one writer that appends them.

One JSON object a line, one `kind` each: start, resume, step, checkpoint, eval, finding, probe, stop. Every record
carries the run id, the id of the session (process) that wrote it, the global step, which never restarts, and the
wall time in seconds since 1970. The log is append-only, so steps that a killed session did after its last
checkpoint stay in it and are done again: a `resume` record at step N supersedes every earlier record whose
step exceeds N. `log_reader.read_log` applies that rule. A checkpoint record comes when the checkpoint is known to be
on disk, which is some steps after its own.
"""

import fcntl
import json
import math
import os
import time
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Literal, Protocol, Self

from dflash_core.errors import ConfigError, DataError


@dataclass(frozen=True, kw_only=True)
class Record:
    """What every record holds."""

    kind: ClassVar[str]
    run_id: str
    session_id: str
    step: int
    wall_time: float


@dataclass(frozen=True, kw_only=True)
class StartRecord(Record):
    """A run begins from its initial weights."""

    kind: ClassVar[str] = "start"
    total_steps: int
    samples_per_epoch: int
    config: dict[str, Any]
    identity: dict[str, Any]
    versions: dict[str, str]
    world: dict[str, Any] = field(default_factory=dict)  # ranks and their roles


@dataclass(frozen=True, kw_only=True)
class ResumeRecord(Record):
    """A session continues after step `step`; earlier records with a higher step are superseded."""

    kind: ClassVar[str] = "resume"
    total_steps: int
    next_sample: int
    checkpoint: str | None  # None: no checkpoint had been committed, so the run begins again at step 0
    digest: str | None
    skipped: tuple[str, ...]  # newer checkpoints that were passed over, each with its reason
    config: dict[str, Any]
    versions: dict[str, str]
    world: dict[str, Any] = field(default_factory=dict)  # ranks and their roles
    forced: dict[str, Any] = field(default_factory=dict)  # what differs from the run's identity by a person's will: both values


@dataclass(frozen=True, kw_only=True)
class UpdateRecord(Record):
    """What one optimizer step did."""

    epoch: int
    loss: float  # loss_sum / denominator
    loss_sum: float
    denominator: float
    per_position_accuracy: tuple[float | None, ...]  # slots 1..K-1; None where no label
    per_position_count: tuple[int, ...]
    streak: float | None  # 1 + leading correct slots, mean over blocks with a label
    num_blocks: int
    grad_norm: float  # before clipping
    lr: float
    noise_std: float
    tokens: int  # real tokens of all ranks, padding not counted
    padded_tokens: int
    buckets: tuple[int, ...]  # padded length of each micro-batch, rank after rank
    first_sample: int  # consumed samples are first_sample..last_sample, counted from the run's start
    last_sample: int
    hs_queue_depth: int  # step batches with features that waited when this one was asked for
    prefetch_queue_depth: int  # collated steps that waited for the target
    tok_per_s: float
    data_wait_s: float  # the drafter waited for this batch
    target_s: float  # the target (an average one of several) worked on this batch, while the drafter did where it runs ahead
    drafter_s: float
    checkpoint_s: float  # blocked by a save or an evaluation since the step before
    target_idle_s: float = 0.0  # the target was held back by a full queue before this batch
    imbalance: float = 1.0  # padded tokens of the busiest drafter rank over those of the average one
    checksum: int = 0  # of the ids of the samples that all ranks trained on; 0 in logs that have none


@dataclass(frozen=True, kw_only=True)
class StepRecord(UpdateRecord):
    """One optimizer step of the run."""

    kind: ClassVar[str] = "step"


@dataclass(frozen=True, kw_only=True)
class ProbeRecord(UpdateRecord):
    """One step past the run's end, to prove the last checkpoint by; it is no training, and its weights are thrown away."""

    kind: ClassVar[str] = "probe"


@dataclass(frozen=True, kw_only=True)
class CheckpointRecord(Record):
    """The checkpoint of step `step` was committed; `digest` is its manifest's own."""

    kind: ClassVar[str] = "checkpoint"
    name: str
    digest: str
    weights_digest: str
    next_sample: int
    num_bytes: int
    seconds: float  # beside the training, until it was on disk
    blocked_s: float = 0.0  # the training stood still: the copy, and for the last one of a session the writing as well
    deferred: int = 0  # steps that it was put off, because the one before was still being written


@dataclass(frozen=True, kw_only=True)
class EvalRecord(Record):
    """Numbers measured on held-out data."""

    kind: ClassVar[str] = "eval"
    metrics: dict[str, float | int | None]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class FindingRecord(Record):
    """The watch saw something; `step` is where the run stood when it was told."""

    kind: ClassVar[str] = "finding"
    what: str  # its kind, as the diagnoser names it
    at_step: int  # where it is, or begins
    severity: Literal["warning", "fault"]
    text: str
    stops: bool  # the run was asked to stop because of it


@dataclass(frozen=True, kw_only=True)
class StopRecord(Record):
    """A session ended by itself."""

    kind: ClassVar[str] = "stop"
    reason: Literal["finished", "signal", "finding", "error"]
    message: str


RECORD_TYPES: dict[str, type[Record]] = {
    t.kind: t
    for t in (StartRecord, ResumeRecord, StepRecord, ProbeRecord, CheckpointRecord, EvalRecord, FindingRecord, StopRecord)
}


def to_line(record: Record) -> bytes:
    """One line of the log: `kind` first, floats in full precision, non-finite numbers as null (JSON has none)."""
    tree = {"kind": record.kind} | _finite(asdict(record))
    return json.dumps(tree, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def from_tree(tree: object) -> Record:
    """Parse one line's object.

    Raises:
        DataError: no such kind, or fields that its record doesn't have or lacks.
    """
    if not isinstance(tree, dict) or tree.get("kind") not in RECORD_TYPES:
        raise DataError(f"a record's kind is one of {sorted(RECORD_TYPES)}, found {str(tree)[:80]}. Is this a train_log.jsonl?")
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in tree.items() if k != "kind"}
    try:
        return RECORD_TYPES[tree["kind"]](**fields)
    except TypeError as error:
        raise DataError(
            f"a {tree['kind']} record has other fields than this version writes: {error}. Read it with its own version."
        ) from None


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class LogWriter:
    """Appends records; holds an exclusive lock on the file for as long as it is open.

    The kernel drops the lock with the process, so a killed session leaves none behind. A line that was torn
    by the kill gets its newline, so that the next record starts clean.

    Raises:
        ConfigError: another process holds the lock, or the file can't be made.
    """

    def __init__(self, path: Path) -> None:
        self.run_id = uuid.uuid4().hex[:12]
        self.session_id = uuid.uuid4().hex[:12]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise ConfigError(f"{path} can't be opened: {error.strerror}; a run writes its log there. Correct it.") from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise ConfigError(
                f"{path} is being written by another process; one run has one writer. Wait for it, or choose another run name."
            ) from None
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")

    def adopt(self, run_id: str) -> None:
        """Continue the run that began under `run_id` instead of a new one."""
        self.run_id = run_id

    def stamp(self, step: int) -> dict[str, Any]:
        """The fields that every record has."""
        return {"run_id": self.run_id, "session_id": self.session_id, "step": step, "wall_time": time.time()}

    def append(self, record: Record) -> None:
        """Write one line with one system call; a durable one (not a step or probe) is also synced to disk.

        Raises:
            DataError: the file system refused, or took a part of the line; the reader drops that as torn.
        """
        line = to_line(record)
        try:
            written = os.write(self._fd, line)
            if written == len(line) and not isinstance(record, UpdateRecord):
                os.fsync(self._fd)
        except OSError as error:
            raise DataError(f"the log can't be written: {error.strerror}. Free space or correct permissions, then resume.") from None
        if written != len(line):
            raise DataError(f"the log took {written} of {len(line)} bytes of a record; is the disk full? Free space and resume.")

    def close(self) -> None:
        """Release the lock."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Log(Protocol):
    """Where the loop's records go."""

    def stamp(self, step: int) -> dict[str, Any]: ...
    def append(self, record: Record) -> None: ...


class SilentLog:
    """The log of every rank but the one that writes."""

    run_id = session_id = ""

    def stamp(self, step: int) -> dict[str, Any]:
        return {"run_id": "", "session_id": "", "step": step, "wall_time": time.time()}

    def append(self, record: Record) -> None:
        pass
