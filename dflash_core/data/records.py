"""Raw rows of a data file: JSONL, a JSON array or Parquet, plain or gzipped, each with the place it came from.

JSONL lines end at "\\n" only. `str.splitlines` would also cut at U+2028 and friends, which are legal inside
JSON strings and do occur in web text, so lines are taken from the bytes before they are decoded.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn

from dflash_core.errors import DataError

KINDS = (".jsonl", ".ndjson", ".json", ".parquet")
PARQUET_ROWS_AT_ONCE = 1024  # about 1 MiB of text; bounds memory for files of any size
UTF8_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Record:
    """One row as it stands in its file; `where` names file and line (or element) for error messages."""

    where: str
    row: dict[str, object]


def read_records(path: Path) -> Iterator[Record]:
    """Yield the rows of one file in their order.

    Raises:
        DataError: missing, a directory, an unknown extension, not UTF-8, broken JSON, NaN, a damaged gzip or
            Parquet file, a row that is not an object, or no rows at all.
    """
    kind = _kind(path)
    count = 0
    try:
        for record in _reader(kind)(path):
            count += 1
            yield record
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{path} is not a whole gzip file ({error}), expected one that unpacks to its end. Copy or pack it again."
        ) from None
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror or error}. Check the file and its permissions.") from None
    if count == 0:
        raise DataError(f"{path} holds 0 rows, expected at least one conversation. Leave it out or fill it.")


def _kind(path: Path) -> str:
    """The extension that decides the format, without .gz."""
    if path.is_dir():
        raise DataError(f"{path} is a directory, expected a file ({', '.join(KINDS)}). Name the files inside it one by one.")
    if not path.exists():
        raise DataError(f"{path} does not exist, expected a conversation file. Correct data.conversations.")
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = suffixes[-1:] == [".gz"]
    kind = (suffixes[:-1] if packed else suffixes)[-1:]
    if not kind or kind[0] not in KINDS or (packed and kind[0] == ".parquet"):
        raise DataError(
            f"{path.name} has the unknown extension {''.join(suffixes) or '(none)'!r}, expected one of {', '.join(KINDS)} "
            "(all but Parquet also with .gz). Rename or convert the file."
        )
    return kind[0]


def _reader(kind: str) -> Callable[[Path], Iterator[Record]]:
    return {".json": _json_rows, ".parquet": _parquet_rows}.get(kind, _jsonl_rows)


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")


def _jsonl_rows(path: Path) -> Iterator[Record]:
    with _open(path) as file:
        for number, line in enumerate(file, start=1):  # a binary file iterates at b"\n" only
            where = f"{path} line {number}"
            if number == 1:
                line = line.removeprefix(UTF8_BOM)
            text = _decode(line, where).strip(" \t\r\n")
            if text:
                yield Record(where, _as_object(parse_json(text, where), where))


def _json_rows(path: Path) -> Iterator[Record]:
    """A JSON array; a .json file whose lines are objects (usual on dataset hubs) is read as JSONL."""
    with _open(path) as file:
        data = file.read().removeprefix(UTF8_BOM)
    text = _decode(data, str(path)).strip(" \t\r\n")
    if not text:
        return
    if text[0] == "{" and _holds_several_values(text):
        yield from _jsonl_rows(path)
        return
    rows = parse_json(text, str(path))
    if not isinstance(rows, list):
        raise DataError(
            f"{path} holds one JSON {_name(rows)}, expected an array of conversations. "
            "Put the rows into an array, or write one object a line and name the file .jsonl."
        )
    for number, row in enumerate(rows, start=1):
        where = f"{path} element {number}"
        yield Record(where, _as_object(row, where))


def _holds_several_values(text: str) -> bool:
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return False
    return bool(text[end:].strip())


def _parquet_rows(path: Path) -> Iterator[Record]:
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=PARQUET_ROWS_AT_ONCE):
                for row in batch.to_pylist():
                    number += 1
                    yield Record(f"{path} row {number}", row)
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} can't be read as Parquet after row {number} ({_one_line(error)}), expected a whole Parquet file. "
            "Write it again."
        ) from None


def _decode(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where} is not UTF-8 (byte 0x{data[error.start]:02x} at {error.start}), expected UTF-8 text. Convert the file."
        ) from None


def parse_json(text: str, where: str) -> object:
    """One JSON value. Raises DataError for what isn't one, NaN, and what Python refuses: thousands of digits, or of levels."""

    def refuse_constant(name: str) -> NoReturn:
        raise DataError(f"{where} holds {name}, which is not JSON; expected text, numbers or null. Write null or drop the key.")

    try:
        return json.loads(text, parse_constant=refuse_constant)
    except RecursionError:
        raise DataError(f"{where} is nested too deeply, expected a flat row. Drop the row.") from None
    except ValueError as error:
        raise DataError(f"{where} is broken JSON ({_one_line(error)}), expected one whole value. Correct the file.") from None


def _as_object(row: object, where: str) -> dict[str, object]:
    if not isinstance(row, dict):
        raise DataError(
            f"{where} is a JSON {_name(row)}, expected an object with a conversation. "
            "Write one object a line in .jsonl, or an array of objects in .json."
        )
    return row


def _name(value: object) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
