"""Reads tables: CSV with any delimiter, and Parquet."""

import csv
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
from pyarrow import parquet

from dflash_core.diagnosis.columns import role_of
from dflash_core.diagnosis.table import Column, Table, number_in
from dflash_core.errors import DataError

TORN = "rows with another number of fields"
LONGEST_LINE = 1 << 16
DELIMITERS = ",\t;|"


def read_parquet(path: Path) -> Table:
    """The table of a Parquet file.

    Raises:
        DataError: it is cut short, damaged, or packed in a way that Arrow doesn't read.
    """
    try:
        table = parquet.read_table(path)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise DataError(f"{path} begins as a Parquet file and can't be read: {reason}. Give a whole one.") from None
    return _from_arrow(table, "Parquet", first_line=1, unread={})


def read_csv(path: Path) -> Table | None:
    """The table of a CSV file; None if its first line names no column that a log has."""
    with path.open("rb") as file:
        head = file.read(1 << 16)
    lines = [line for line in head.decode("utf-8", "replace").splitlines() if line.strip()]
    if not lines:
        return None
    delimiter = max(DELIMITERS, key=lines[0].count)
    names = next(csv.reader(io.StringIO(lines[0]), delimiter=delimiter), [])
    if len(names) < 2 or len(set(names)) < len(names) or not any(role_of(n.strip()) for n in names):
        return None
    data = pa.memory_map(str(path)).read_buffer()
    whole = _regular(data, delimiter)
    # A log that is being written ends in a torn line; without it the rest is regular.
    table = whole if whole is not None else _regular(_without_last_line(data), delimiter)
    if table is None or table.num_columns != len(names):
        return _ragged(path, names, delimiter)
    unread = {} if whole is not None else {TORN: 1}
    return _from_arrow(table.rename_columns([n.strip() for n in names]), "CSV", first_line=2, unread=unread)


def _without_last_line(data: pa.Buffer) -> pa.Buffer:
    tail = data.slice(max(0, data.size - LONGEST_LINE)).to_pybytes()
    return data.slice(0, data.size - len(tail) + tail.rstrip(b"\r\n").rfind(b"\n") + 1)


def _regular(data: pa.Buffer, delimiter: str) -> pa.Table | None:
    """Arrow's reading; None where a row has another number of fields, a column another type half way, or text isn't UTF-8."""
    # An empty field is missing; every other word stays, so that nan and null keep their meaning.
    convert = arrow_csv.ConvertOptions(null_values=[""], strings_can_be_null=True)
    try:
        return arrow_csv.read_csv(pa.BufferReader(data), parse_options=arrow_csv.ParseOptions(delimiter=delimiter), convert_options=convert)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError, pa.ArrowKeyError):  # the plain reader below takes these
        return None


def _ragged(path: Path, names: list[str], delimiter: str) -> Table:
    """The plain reference, row by row: leaves out those with another number of fields."""
    text = path.read_bytes().decode("utf-8", "replace").replace("\0", "")
    cells: list[list[str]] = []
    unread = 0
    reader = csv.reader(text.splitlines()[1:], delimiter=delimiter)
    while True:
        try:
            row = next(reader)
        except StopIteration:
            break
        except csv.Error:
            unread += 1
            continue
        if len(row) == len(names):
            cells.append(row)
        else:
            unread += 1
    columns = {n.strip(): [row[i] or None for row in cells] for i, n in enumerate(names)}
    table = pa.table({n: pa.array(v, pa.string()) for n, v in columns.items()})
    return _from_arrow(table, "CSV", first_line=2, unread={TORN: unread} if unread else {})


def _from_arrow(table: pa.Table, form: str, first_line: int, unread: dict[str, int]) -> Table:
    columns: dict[str, Column] = {}
    words: dict[str, np.ndarray] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        null = column.is_null().to_numpy()
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_boolean(column.type):
            values = column.cast(pa.float64(), safe=False).to_numpy().astype(np.float64)
        elif pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            texts = column.to_pylist()
            numbers = [None if t is None else number_in(t) for t in texts]
            known = np.array([n is not None for n in numbers])
            if known.sum() * 2 < (~null).sum() or not known.any():
                words[name] = np.array(texts, dtype=object)
                continue
            values, null = np.array([np.nan if n is None else n for n in numbers]), ~known
        else:
            continue
        columns[name] = Column(values=values, present=~null)
    lines = np.arange(first_line, first_line + table.num_rows, dtype=np.int64)
    return Table(format=form, columns=columns, words=words, lines=lines, unread=unread)
