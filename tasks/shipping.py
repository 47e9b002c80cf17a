"""Delivers a run's log to MLflow, each record once, from a place in the log that is kept on disk.

The log is the truth and MLflow a copy of it. A cursor beside the log says, for each server, which MLflow run the copy is
and up to which byte of the log it goes. It moves when the server has taken a batch. A batch that was taken but not
noted, because we were killed in between, is sent again: MLflow keeps the same name, time, step and value once.
Nothing here runs in the process that trains.
"""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tasks import lineage, log_records, mlflow_store
from tasks.log_tail import new_records

LOG, SYSTEM_LOG, CURSOR, LOCK = "train_log.jsonl", "system_metrics.jsonl", "mlflow.json", "mlflow.lock"
RUN_TAG = "dflash.run_id"
KIND_TAG = "dflash.kind"
PART_BYTES = 8 << 20
TAIL_BYTES = 4096  # several records, with their times: no two stretches of logs are the same


@dataclass
class Cursor:
    """How much of a run one server has.

    Fields:
        log_run: the log's own run id; a log of another run beside this cursor starts anew.
        mlflow_run: id of the copy.
        offset, system_offset: bytes delivered of the log, and of the machine's load.
        tail, system_tail: `tail_of` what was delivered; empty in a cursor of an earlier version.
        last_step: highest step delivered.
        sent: digest of what else was delivered, by name.
    """

    log_run: str
    mlflow_run: str
    offset: int = 0
    system_offset: int = 0
    tail: str = ""
    system_tail: str = ""
    last_step: int = 0
    sent: dict[str, str] = field(default_factory=dict)


class Delivery:
    """One process's turn at delivering a run to one server; made by `delivering`, which keeps others out."""

    def __init__(self, uri: str, run_dir: Path, start: dict[str, Any]) -> None:
        self.uri = uri
        self.run_dir = run_dir
        self.start = start
        self.client = mlflow_store.client_of(uri)
        self.experiment = mlflow_store.experiment_id(self.client, uri)
        self.cursor = self._open_cursor()

    @property
    def run_id(self) -> str:
        """The MLflow run."""
        return self.cursor.mlflow_run

    def send_log(self) -> None:
        """Send what the log and the machine's load have beyond the cursor."""
        self._send_training()
        self._send_load()

    def once(self, name: str, digest: str) -> bool:
        """Whether this output still has to be sent; say so with `sent` when it is."""
        return self.cursor.sent.get(name) != digest

    def sent(self, name: str, digest: str) -> None:
        """Note that the server has an output."""
        self.cursor.sent[name] = digest
        self._save()

    def child(self, kind: str, key: str, name: str) -> str:
        """The nested run of this kind and key, made where there is none."""
        tags = {mlflow_store.PARENT_TAG: self.run_id, KIND_TAG: kind, "dflash.key": key}
        if found := mlflow_store.find_runs(self.client, self.experiment, tags):
            return found[0].info.run_id
        return self.client.create_run(self.experiment, run_name=name, tags=tags).info.run_id

    def _send_training(self) -> None:
        log, cursor = self.run_dir / LOG, self.cursor
        cursor.offset = known_end(log, cursor.offset, cursor.tail)
        repeats = log_records.Repeats(cursor.last_step, records_before(log, cursor.offset))
        for records, after in parts(log, cursor.offset):
            tail = tail_of(log, after)  # before the server is asked, which takes time
            self._send([r for r in records if r not in repeats])
            cursor.offset, cursor.tail = after, tail
            cursor.last_step = max([cursor.last_step, *(r["step"] for r in records if r.get("kind") == "step")])
            self._save()

    def _send(self, records: list[dict[str, Any]]) -> None:
        metrics = [
            metric
            for record in records
            for metric in mlflow_store.metrics_of(log_records.measurements(record), record.get("step", 0), log_records.milliseconds(record))
        ]
        mlflow_store.log_metrics(self.client, self.run_id, metrics)
        mlflow_store.log_tags(self.client, self.run_id, dict(tag for record in records for tag in log_records.tags(record)))
        changes = [(status, log_records.milliseconds(r)) for r in records if (status := log_records.status(r))]
        if changes:
            self.set_status(*changes[-1])

    def set_status(self, status: str, milliseconds: int | None = None) -> None:
        """RUNNING, or how it ended and when."""
        if status == "RUNNING":
            self.client.update_run(self.run_id, status=status)
        else:
            self.client.set_terminated(self.run_id, status, milliseconds)

    def _send_load(self) -> None:
        log, cursor = self.run_dir / SYSTEM_LOG, self.cursor
        for records, after in parts(log, known_end(log, cursor.system_offset, cursor.system_tail)):
            tail = tail_of(log, after)
            self._send(records)
            cursor.system_offset, cursor.system_tail = after, tail
            self._save()

    def _open_cursor(self) -> Cursor:
        log_run = self.start["run_id"]
        cursor = _known_cursor(self.uri, self.run_dir)
        if cursor and cursor.log_run == log_run and self._has(cursor.mlflow_run):
            return cursor
        cursor = Cursor(log_run, self._find_or_create(log_run))
        mlflow_store.log_params(self.client, cursor.mlflow_run, self.start.get("config", {}))
        return cursor

    def _has(self, run_id: str) -> bool:
        """False for a server whose database was made anew."""
        try:
            return bool(self.client.get_run(run_id))
        except Exception as error:
            if mlflow_store.is_missing(error):
                return False
            raise

    def _find_or_create(self, log_run: str) -> str:
        if found := mlflow_store.find_runs(self.client, self.experiment, {RUN_TAG: log_run, KIND_TAG: "train"}):
            return found[0].info.run_id
        identity = {f"dflash.{key}": str(value) for key, value in self.start.get("identity", {}).items() if isinstance(value, str)}
        tags = {RUN_TAG: log_run, KIND_TAG: "train", **identity}
        name, began = self.start.get("config", {}).get("run", self.run_dir.name), log_records.milliseconds(self.start)
        return self.client.create_run(self.experiment, start_time=began, run_name=name, tags=tags).info.run_id

    def _save(self) -> None:
        """Whole or not at all, so that a kill can't leave half a cursor."""
        tree = _read_cursors(self.run_dir) | {mlflow_store.without_secret(self.uri): asdict(self.cursor)}
        temporary = self.run_dir / f".{CURSOR}.{os.getpid()}"
        temporary.write_text(json.dumps(tree, indent=1), encoding="utf-8")
        os.replace(temporary, self.run_dir / CURSOR)


@contextlib.contextmanager
def delivering(uri: str, run_dir: Path) -> Iterator[Delivery | None]:
    """A turn at delivering this run; None where its log has no record yet. What is left of the log is not sent by itself.

    Raises:
        Exception: the server, its database or the network fail.
    """
    start = first_record(run_dir / LOG)
    if start is None:
        yield None
        return
    mlflow_store.check_listening(uri)
    with (run_dir / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Delivery(uri, run_dir, start)


def ship(uri: str, run_dir: Path) -> str | None:
    """Deliver what the server lacks of a run's log; gives the MLflow run. Errors as `delivering`."""
    with delivering(uri, run_dir) as delivery:
        if delivery is None:
            return None
        delivery.send_log()
        return delivery.run_id


def known_run(uri: str, run_dir: Path) -> str | None:
    """The MLflow run that a run was delivered to; asks no server."""
    known = _known_cursor(uri, run_dir)
    return known.mlflow_run if known else None


def first_record(log: Path) -> dict[str, Any] | None:
    """The record that a log begins with, which names the run; None without one."""
    records, _ = new_records(log, 0, PART_BYTES)
    return next((record for record in records if "run_id" in record), None)


def known_end(log: Path, offset: int, tail: str) -> int:
    """The offset, if what is before it was delivered; else 0, for the log was cut or brought back from a copy, and may have grown since.

    What is sent again changes nothing. Without a tail, a line has to end there.
    """
    if offset <= 0 or not log.exists():
        return 0
    with log.open("rb") as file:
        file.seek(offset - 1)
        ends_line = file.read(1) == b"\n"
    return offset if ends_line and tail in ("", tail_of(log, offset)) else 0


def tail_of(log: Path, end: int) -> str:
    """Digest of the log's last bytes before `end`."""
    start = max(0, end - TAIL_BYTES)
    with log.open("rb") as file:
        file.seek(start)
        return hashlib.sha256(file.read(end - start)).hexdigest()


def parts(log: Path, offset: int) -> Iterator[tuple[list[dict[str, Any]], int]]:
    """The log's records from an offset on, some at a time, each with the offset after them."""
    while True:
        records, after = new_records(log, offset, PART_BYTES)
        if after == offset:
            return
        yield records, after
        offset = after


def records_before(log: Path, end: int) -> Iterator[dict[str, Any]]:
    """The records before an offset that `parts` gave."""
    offset = 0
    while offset < end:
        records, offset = new_records(log, offset, min(PART_BYTES, end - offset))
        yield from records


def _known_cursor(uri: str, run_dir: Path) -> Cursor | None:
    """None where there is none, or a damaged one: a second delivery changes nothing."""
    try:
        cursor = Cursor(**_read_cursors(run_dir).get(mlflow_store.without_secret(uri), {}))
    except TypeError:
        return None
    blank = Cursor("", "")
    whole = all(type(value) is type(getattr(blank, name)) for name, value in vars(cursor).items())
    return cursor if whole and all(isinstance(digest, str) for digest in cursor.sent.values()) else None


def _read_cursors(run_dir: Path) -> dict[str, Any]:
    return lineage.read_json(run_dir / CURSOR)
