"""Reads train_log.jsonl and drops what a later session superseded."""

import json
from collections.abc import Iterator
from pathlib import Path

from dflash_core.errors import DataError
from dflash_core.training.records import Record, ResumeRecord, StartRecord, from_tree


def read_log(path: Path) -> tuple[Record, ...]:
    """Records that count, in order: after each resume at step N the earlier ones with a step > N are gone.

    Start records always stay. Lines torn by a kill (the file's last, or those right before a start or resume
    record) are dropped.

    Raises:
        DataError: no such file, or a line that is no record and was not torn by a kill.
    """
    kept: list[Record] = []
    for record in all_records(path):
        if isinstance(record, ResumeRecord):
            kept = [r for r in kept if r.step <= record.step or isinstance(r, StartRecord)]
        kept.append(record)
    return tuple(kept)


def all_records(path: Path) -> Iterator[Record]:
    """Every record in the order of the file, superseded ones too; torn lines and errors as in `read_log`."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}. Expected the log of a training run: run train first, or name another file.") from None
    torn: int | None = None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = from_tree(json.loads(line))
        except (json.JSONDecodeError, UnicodeDecodeError):
            torn = torn or number
            continue
        except DataError as error:
            raise DataError(f"{path} line {number}: {error}") from None
        if torn is not None and not isinstance(record, StartRecord | ResumeRecord):
            raise _broken(path, torn)
        torn = None
        yield record


def _broken(path: Path, number: int) -> DataError:
    return DataError(f"{path} line {number} is not JSON and no resume follows it, so no kill tore it. Restore the file.")
