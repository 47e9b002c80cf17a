"""Chooses the reader of a file or directory by what is in it, not by its name."""

from pathlib import Path

from dflash_core.diagnosis.columns import role_of
from dflash_core.diagnosis.readers.console import read_console
from dflash_core.diagnosis.readers.delimited import read_csv, read_parquet
from dflash_core.diagnosis.readers.documents import read_document
from dflash_core.diagnosis.readers.event_files import looks_like_events, read_event_files
from dflash_core.diagnosis.readers.json_lines import parsed, read_json_lines
from dflash_core.diagnosis.table import Table
from dflash_core.errors import DataError

# What a directory of a run may hold, best first.
IN_DIRECTORY = ("train_log.jsonl", "trainer_state.json", "metrics.jsonl", "wandb-history.jsonl", "log.txt", "train.log", "metrics.csv")
BINARY = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}


def read_any(path: Path, pattern: str | None = None) -> Table:
    """The table in a log.

    Args:
        path: a file, or a directory that holds a log or TensorBoard event files.
        pattern: a regular expression with named groups for text that no reader knows.

    Raises:
        DataError: there is nothing to read, or no numbers with a known name in it.
    """
    try:
        table = _read(path, pattern)
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror or error}. Give a training log.") from None
    if table is None or not any(_useful(name) for name in table.columns):
        names = ", ".join(list(table.columns)[:8]) if table else ""
        found = f"numbers named {names}" if names else "no numbers with a name"
        raise DataError(f"{path} holds {found}, but no loss. Give a training log, or name its numbers with --pattern.")
    return table


def _useful(name: str) -> bool:
    role = role_of(name)
    return role is not None and role[0] in ("loss", "eval_loss", "grad_norm", "accuracy")


def _read(path: Path, pattern: str | None) -> Table | None:
    if path.is_dir():
        return _read_directory(path, pattern)
    if not path.is_file():
        raise DataError(f"{path} is no file and no directory. Give a training log.")
    with path.open("rb") as file:
        head = file.read(1 << 16)
    if not head.strip():
        raise DataError(f"{path} is empty. Give a log with at least one line.")
    for magic, name in BINARY.items():
        if head.startswith(magic):
            raise DataError(f"{path} is compressed ({name}). Unpack it first.")
    if pattern is not None:
        return read_console(path, pattern)
    if head.startswith(b"PAR1"):
        return read_parquet(path)
    if looks_like_events(head):
        return read_event_files([path])
    return _read_text(path, head)


def _read_text(path: Path, head: bytes) -> Table | None:
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    lines = [line for line in start.split(b"\n") if line.strip()]
    objects = sum(parsed(line) is not None for line in lines[:50])
    if objects * 2 > min(len(lines), 50) and len(lines) > 1:
        return read_json_lines(path)
    if start[:1] in (b"{", b"["):
        document = read_document(path)
        if document is not None:
            return document
    table = read_csv(path)
    if table is not None and table.num_rows:
        return table
    table = read_json_lines(path) if objects else None
    return table if table is not None and any(map(_useful, table.columns)) else read_console(path)


def _read_directory(path: Path, pattern: str | None) -> Table | None:
    for name in IN_DIRECTORY:
        if (path / name).is_file():
            return _read(path / name, pattern)
    events = sorted(path.glob("events.out.tfevents.*")) or sorted(path.glob("*/events.out.tfevents.*"))
    if events:
        return read_event_files(events)
    raise DataError(f"{path} holds none of {', '.join(IN_DIRECTORY)} and no TensorBoard event file. Name the log itself.")
