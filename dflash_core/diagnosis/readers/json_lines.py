"""Reads JSON lines: our train_log.jsonl, and any other with flat or nested rows.

A file of a million lines goes through Arrow's parser by blocks, ten times as fast as one line at a time; a block that
it refuses (a torn line, a bare NaN, a number where text was) is read line by line. Both give the same table.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as arrow_json

from dflash_core.diagnosis.columns import role_of
from dflash_core.diagnosis.table import Column, Table, columns_of

# Blocks of 16 MB take half as long again: what a block needs of memory is fresh each time, and fits no cache.
BLOCK_BYTES = 1 << 22
# Below this, one line at a time takes under half a second, and nothing has to be guessed.
SMALL_BYTES = 1 << 22
# A 32-bit number in Arrow; a longer line it refuses.
MOST_BLOCK_BYTES = (1 << 31) - 1
SAMPLE_LINES = 200
MOST_POSITIONS = 256
# Arrow parses without holding the interpreter: two threads take half the time of one.
PARSERS = 2
WORDS = ("kind", "run_id", "run_name", "run", "what")
# Parts of our records that describe the whole run or a file, not a step.
NOT_NUMBERS = ("config", "identity", "versions")
_Part = tuple[dict[str, Column], dict[str, np.ndarray], np.ndarray]  # columns, words, lines of a block


def read_json_lines(path: Path) -> Table:
    """The table of a JSONL file."""
    schema = _schema(path) if path.stat().st_size > SMALL_BYTES else None
    with ThreadPoolExecutor(PARSERS) as pool:
        blocks = list(pool.map(lambda ends: _read_block(path, *ends, schema), pairwise(_cuts(path))))
    unread: Counter[str] = Counter()
    parts, first_line = [], 1
    for columns, words, lines, num_lines, missed in blocks:
        parts.append((columns, words, first_line + lines))
        first_line += num_lines
        unread += missed
    return _joined(parts, dict(unread))


def _cuts(path: Path) -> list[int]:
    """Where blocks of whole lines begin, and where the last one ends; a torn last line is a block of its own."""
    size, cuts = path.stat().st_size, [0]
    with path.open("rb") as file:
        while cuts[-1] < size:
            file.seek(cuts[-1] + BLOCK_BYTES)
            while (piece := file.read(1 << 16)) and b"\n" not in piece:
                pass
            cuts.append(min(size, file.tell() - len(piece) + piece.find(b"\n") + 1 if piece else size))
        file.seek(cuts[-2] if len(cuts) > 1 else 0)
        torn = file.tell() + file.read().rfind(b"\n") + 1
    return sorted({*cuts, torn})


def _read_block(path: Path, begin: int, end: int, schema: pa.Schema | None) -> tuple[*_Part, int, Counter[str]]:
    """A block's rows with their lines counted from 0, the number of its lines, and what couldn't be read."""
    with path.open("rb") as file:
        file.seek(begin)
        block = file.read(end - begin)
    unread: Counter[str] = Counter()
    part = (schema and _fast(block, schema)) or _slow(block, unread)
    return *part, block.count(b"\n"), unread


def _slow(block: bytes, unread: Counter[str]) -> _Part:
    """The plain reference: one line at a time."""
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    for number, line in enumerate(block.split(b"\n")):
        line = line.strip(b" \t\r\x00")
        if not line:
            continue
        row = parsed(line)
        if row is None:
            unread["lines that are no JSON object"] += 1
            continue
        rows.append(row)
        lines.append(number)
    return *columns_of(rows), np.asarray(lines, dtype=np.int64)


def parsed(line: bytes | str) -> dict[str, Any] | None:
    """One object with flat names; None if the text isn't one."""
    try:
        tree = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return flat(tree) if isinstance(tree, dict) else None


def flat(tree: dict[str, Any], prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """Nested names joined by a slash; a list of numbers becomes its mean, as accuracies by position do."""
    out: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            if depth < 3 and key not in NOT_NUMBERS:
                out |= flat(value, f"{prefix}{key}/", depth + 1)
        elif isinstance(value, list):
            if len(value) <= MOST_POSITIONS and all(v is None or isinstance(v, int | float) for v in value):
                out[prefix + key] = _mean(value)
        else:
            out[prefix + key] = value
    return out


def _mean(values: list[Any]) -> float | None:
    numbers = [v for v in values if v is not None and not math.isnan(v)]
    return sum(numbers) / len(numbers) if numbers and all(abs(n) < 1e300 for n in numbers) else None


def _schema(path: Path) -> pa.Schema | None:
    """Arrow types of the names with a role, from lines all over the file; None where rows are nested."""
    kinds: dict[str, pa.DataType] = {}
    for line in _sampled(path):
        try:
            tree = json.loads(line)
        except (ValueError, RecursionError):
            continue
        for key, value in tree.items() if isinstance(tree, dict) else ():
            if key in WORDS and isinstance(value, str):
                kinds[key] = pa.string()
            elif role_of(key) and isinstance(value, int | float):
                kinds[key] = pa.float64()
            elif role_of(key) and isinstance(value, list):
                kinds[key] = pa.list_(pa.float64())
            elif isinstance(value, dict) and "kind" not in tree:
                return None
    return pa.schema(list(kinds.items())) if kinds else None


def _sampled(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    with path.open("rb") as file:
        for place in np.linspace(0, max(0, size - (1 << 16)), 24).astype(int):
            file.seek(int(place))
            lines = file.read(1 << 16).split(b"\n")
            yield from lines[1 if place else 0 : SAMPLE_LINES]


def _fast(block: bytes, schema: pa.Schema) -> _Part | None:
    """Arrow's reading of a block; None where it refuses, or where it can't tell a null from a missing name."""
    parsing = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    # One piece, without the parser's own threads: a third less time than pieces of its usual 1 MB.
    reading = arrow_json.ReadOptions(use_threads=False, block_size=min(len(block), MOST_BLOCK_BYTES))
    try:
        table = arrow_json.read_json(pa.BufferReader(block), read_options=reading, parse_options=parsing)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # the plain reading takes the block, and counts what it can't use
        return None
    if table.num_rows != block.count(b"\n") + (not block.endswith(b"\n")):
        return None  # empty lines: line numbers would be wrong
    words = {name: _strings(table[name]) for name in table.column_names if pa.types.is_string(table[name].type)}
    ours = words["kind"] == "step" if "kind" in words else None
    columns: dict[str, Column] = {}
    for name in table.column_names:
        if name in words:
            continue
        values = _numbers(table[name])
        null = table[name].is_null().to_numpy(zero_copy_only=False)
        if null.any() and ours is None:
            return None
        # Of our own records those of kind step have every field, so that a null there is a number that isn't finite.
        present = ~null if ours is None else ~null | ours
        columns[name] = Column(values=values, present=present & ~((name == "epoch") & null))
    return columns, words, np.arange(table.num_rows, dtype=np.int64)


def _strings(column: pa.ChunkedArray) -> np.ndarray:
    coded = column.combine_chunks().dictionary_encode()
    words = np.array([*coded.dictionary.to_pylist(), None], dtype=object)
    return words[coded.indices.fill_null(len(words) - 1).to_numpy(zero_copy_only=False)]


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    """Values as float64; of a list its mean, NaN for an empty one."""
    if not pa.types.is_list(column.type):
        return column.to_numpy().astype(np.float64)
    rows = column.combine_chunks()
    rows = rows.chunk(0) if isinstance(rows, pa.ChunkedArray) else rows
    flat_values, parents = rows.flatten(), rows.value_parent_indices()
    numbers = flat_values.to_numpy(zero_copy_only=False)
    known = ~np.isnan(numbers)
    owner = parents.to_numpy()[known]
    total = np.bincount(owner, weights=numbers[known], minlength=len(rows))
    count = np.bincount(owner, minlength=len(rows))
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _joined(parts: list[_Part], unread: dict[str, int]) -> Table:
    sizes = [len(lines) for _, _, lines in parts]
    names = list(dict.fromkeys(n for columns, _, _ in parts for n in columns))
    words = list(dict.fromkeys(n for _, texts, _ in parts for n in texts))
    columns = {
        n: Column(
            values=np.concatenate([c[n].values if n in c else np.full(k, np.nan) for (c, _, _), k in zip(parts, sizes, strict=True)]),
            present=np.concatenate([c[n].present if n in c else np.zeros(k, bool) for (c, _, _), k in zip(parts, sizes, strict=True)]),
        )
        for n in names
    }
    texts = {
        n: np.concatenate([w[n] if n in w else np.full(k, None, object) for (_, w, _), k in zip(parts, sizes, strict=True)])
        for n in words
    }
    lines = np.concatenate([lines for _, _, lines in parts]) if parts else np.zeros(0, np.int64)
    return Table(format="JSON lines", columns=columns, words=texts, lines=lines, unread=unread)
