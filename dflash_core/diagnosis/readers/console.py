"""Reads console text: Megatron, DeepSpeed, nanoGPT, modded-nanogpt, dict lines, tqdm tails, wrapped lines, or a pattern.

Names of known meaning followed by a number are collected. Where a line with a loss has its step, each line is a
record. Otherwise a console broke records at its width, and a record goes on until a name comes again.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from dflash_core.diagnosis.columns import RANKS, role_of
from dflash_core.diagnosis.table import Table, TableBuilder, number_in
from dflash_core.errors import DataError

# Colours, borders of a table, and the source column that rich puts on the right, in the middle of a wrapped record.
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[│┃║]|\s\S+\.py:\d+(?=\s*$)", re.MULTILINE)
NUMBER = r"[-+]?(?:\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|NaN|NAN|inf|Inf|Infinity|null|None)"
PREFIX = r"(?:(?:train|training|eval|val|valid|validation|test|metrics)[ _/.])?"
NAMES = "|".join(sorted((re.escape(n).replace("_", "[ _/]") for n in RANKS if len(n) > 1), key=len, reverse=True))
PAIR = re.compile(
    rf"(?<![A-Za-z0-9_])({PREFIX}(?:{NAMES}|\w*queue\w*))['\"]?\s{{0,40}}(?:[:=|]|\s)\s{{0,40}}['\"]?({NUMBER})(?![A-Za-z_]*[A-Za-z_]\w*[:=])([A-Za-z%/]*)",
    re.IGNORECASE,
)
MOST_BYTES = 1 << 29
# Longer lines are no log's; a pattern is only tried on their beginning.
MOST_LINE = 4000
SCALES = {"k": 1e3, "m": 1e6}


def read_console(path: Path, pattern: str | None = None) -> Table:
    """Records found in text.

    Args:
        path: the file.
        pattern: a regular expression with named groups, tried on each line instead of the known names.

    Raises:
        DataError: the pattern is no regular expression, or has no named group.
    """
    with path.open("rb") as file:
        text = file.read(MOST_BYTES).decode("utf-8", "replace").replace("\0", " ")
    lines = [line[:MOST_LINE] for line in re.split(r"\r?\n|\r", ESCAPES.sub(" ", text))]
    if pattern is not None:
        return _by_pattern(lines, pattern)
    found = [dict(_pairs(line)) for line in lines]
    with_loss = [row for row in found if any(_role(n) in ("loss", "eval_loss") for n in row)]
    complete = sum(any(_role(n) == "step" for n in row) for row in with_loss)
    # A line with a learning rate or a norm and neither step nor loss is the rest of a record.
    rests = sum({"lr", "grad_norm", "throughput"} & roles != set() and not {"step", "loss"} & roles for roles in ({*map(_role, r)} for r in found))
    nameless = not any(_role(n) == "step" for row in found for n in row)
    by_line = nameless or (complete * 2 >= len(with_loss) and rests * 2 < len(with_loss))
    return _line_by_line(found) if by_line else _across_lines(lines)


def _role(name: str) -> str:
    known = role_of(name)
    return known[0] if known else ""


def _pairs(line: str) -> Iterator[tuple[str, float]]:
    for match in PAIR.finditer(line):
        number = number_in(match[2])
        if number is None:
            continue
        name = re.sub(r"\s+", " ", match[1]).strip().lower()
        yield name, number * (SCALES.get(match[3].lower(), 1.0) if _role(name) in ("throughput", "tokens") else 1.0)


def _line_by_line(found: list[dict[str, float]]) -> Table:
    builder = TableBuilder(format="text lines")
    for number, row in enumerate(found, start=1):
        if any(_role(name) in ("loss", "eval_loss", "grad_norm") for name in row):
            builder.add(number, row)
    skipped = sum(1 for row in found if not row)
    return builder.table(notes=(f"{skipped:,} lines hold no number of a known name",) if skipped else ())


def _across_lines(lines: list[str]) -> Table:
    """A record ends where a name of it comes again, or a step after its loss."""
    builder = TableBuilder(format="wrapped console text")
    text = " ".join(lines)
    starts, total = [], 0
    for line in lines:
        starts.append(total)
        total += len(line) + 1
    record: dict[str, float] = {}
    first, line = 0, 0
    for match in PAIR.finditer(text):
        number, name = number_in(match[2]), re.sub(r"\s+", " ", match[1]).strip().lower()
        if number is None:
            continue
        while line + 1 < len(starts) and starts[line + 1] <= match.start():
            line += 1
        if name in record:
            _close(builder, first, record)
            record = {}
        first = first if record else line + 1
        record[name] = number
    _close(builder, first, record)
    return builder.table()


def _close(builder: TableBuilder, line: int, record: dict[str, float]) -> None:
    if any(_role(name) in ("loss", "eval_loss") for name in record):
        builder.add(line, record)
    elif record:
        builder.reject("records without a loss")


def _by_pattern(lines: list[str], pattern: str) -> Table:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise DataError(f"--pattern is no regular expression: {error}. Correct it.") from None
    if not compiled.groupindex:
        raise DataError("--pattern names no group; write one a number, as in (?P<step>\\d+) and (?P<loss>\\S+).")
    builder = TableBuilder(format="text by the given pattern")
    for number, line in enumerate(lines, start=1):
        match = compiled.search(line)
        if match is None:
            continue
        values = {name: number_in(text) for name, text in match.groupdict().items() if text is not None}
        builder.add(number, {name: value for name, value in values.items() if value is not None})
    return builder.table()
