"""evaluation.json on disk: written whole or not at all, read strictly."""

import os
import tempfile
import uuid
from pathlib import Path

from pydantic import ValidationError

from dflash_core.errors import CheckpointError, DataError
from dflash_core.evaluation.records import EvaluationRecord

FILE = "evaluation.json"


def check_place(out_path: Path) -> None:
    """Make the directory and see that it takes files: hours of decoding must not end where they can't be written. Raises CheckpointError."""
    try:
        out_path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out_path.parent).close()
    except OSError as error:
        raise _unwritable(out_path, error) from None


def write_record(record: EvaluationRecord, out_path: Path) -> None:
    """Write evaluation.json whole or not at all. Raises CheckpointError where the file system refuses."""
    temporary = out_path.with_name(f".{out_path.name}.{uuid.uuid4().hex[:8]}")
    try:
        out_path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, out_path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise _unwritable(out_path, error) from None


def _unwritable(out_path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"{out_path} can't be written: {error.strerror or error}. Free space, or correct the path or its permissions.")


def record_path(path: Path) -> Path:
    """An evaluation.json, or the one in a directory, which may have any name."""
    return path if path.suffix == ".json" and not path.is_dir() else path / FILE


def read_record(path: Path) -> EvaluationRecord:
    """Read what `record_path` gives. Raises DataError."""
    path = record_path(path)
    try:
        return EvaluationRecord.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}, expected the output of stage evaluate. Run evaluate first.") from None
    except (UnicodeDecodeError, ValidationError) as error:
        fault = str(error).splitlines()[0]
        raise DataError(f"{path} is no evaluation of this version ({fault}). Run stage evaluate again.") from None
