"""A table of numbers as a reader found it: columns under their own names, rows in the file's order."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Column:
    """Numbers of one name. A row has it or not; where it has it, the number may still be NaN or infinite."""

    values: np.ndarray  # float64 [rows]
    present: np.ndarray  # bool [rows]

    @property
    def count(self) -> int:
        """Rows that have it."""
        return int(self.present.sum())


@dataclass(frozen=True, kw_only=True)
class Table:
    """What a reader understood.

    Fields:
        format: the reader's name for what it read.
        columns: numeric columns.
        words: text columns that tell rows apart (kind, run, session, timestamp); None where a row has none.
        lines: the file's line number of each row, from 1.
        facts: numbers about the run as a whole (max_steps, save_steps, vocab_size).
        unread: what could not be used, and how often.
        notes: what a person should know of the reading.
    """

    format: str
    columns: dict[str, Column]
    words: dict[str, np.ndarray] = field(default_factory=dict)
    lines: np.ndarray
    facts: dict[str, float] = field(default_factory=dict)
    unread: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def num_rows(self) -> int:
        """Rows of every column."""
        return len(self.lines)


@dataclass(kw_only=True)
class TableBuilder:
    """Collects rows one by one where no faster way exists."""

    format: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    unread: dict[str, int] = field(default_factory=dict)

    def add(self, line: int, row: dict[str, Any]) -> None:
        """Keep a row of flat names."""
        self.rows.append(row)
        self.lines.append(line)

    def reject(self, reason: str) -> None:
        """Count something that could not be used."""
        self.unread[reason] = self.unread.get(reason, 0) + 1

    def table(self, *, facts: dict[str, float] | None = None, notes: tuple[str, ...] = ()) -> Table:
        """Columns of the rows so far."""
        columns, words = columns_of(self.rows)
        return Table(
            format=self.format,
            columns=columns,
            words=words,
            lines=np.asarray(self.lines, dtype=np.int64),
            facts=facts or {},
            unread=self.unread,
            notes=notes,
        )


def columns_of(rows: list[dict[str, Any]]) -> tuple[dict[str, Column], dict[str, np.ndarray]]:
    """Numeric and text columns of flat rows; a null counts as a number that isn't finite, since JSON has no NaN."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns: dict[str, Column] = {}
    words: dict[str, np.ndarray] = {}
    for name in names[:MOST_COLUMNS]:
        values = np.full(len(rows), np.nan)
        present = np.zeros(len(rows), dtype=bool)
        texts: dict[int, str] = {}
        for i, row in enumerate(rows):
            if name not in row:
                continue
            number = as_number(row[name])
            if number is None:
                texts[i] = str(row[name])[:200]
            else:
                values[i], present[i] = number, True
        if present.any() and len(texts) <= present.sum():
            columns[name] = Column(values=values, present=present)
        if texts:
            words[name] = np.array([texts.get(i) for i in range(len(rows))], dtype=object)
    return columns, words


# A broken file can invent a name a line; a log has a few dozen.
MOST_COLUMNS = 400
WORDS_FOR_NAN = {"nan", "+nan", "-nan", "null", "none", "inf", "+inf", "-inf", "infinity", "+infinity", "-infinity"}


def as_number(value: Any) -> float | None:
    """The value as a float; None if it isn't a number. A null is NaN, a number too large for a float infinite."""
    if value is None:
        return float("nan")
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return float("inf")
    if isinstance(value, str):
        return number_in(value)
    return None


def number_in(text: str) -> float | None:
    """A number written as text: 1,024, 3.5%, 12k, nan; None if it is something else."""
    word = text.strip().rstrip("%").replace(",", "")
    if word.lower() in WORDS_FOR_NAN:
        return float(word) if "inf" in word.lower() else float("nan")
    factor = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9}.get(word[-1:], 1.0)
    digits = word[:-1] if factor != 1.0 else word
    if not digits or digits[-1:] not in "0123456789." or "_" in digits:
        return None
    try:
        return float(digits) * factor
    except ValueError:
        return None
