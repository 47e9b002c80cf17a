"""Reads one JSON document: a Hugging Face trainer_state.json, a list of rows, or a table of columns."""

import json
from pathlib import Path
from typing import Any

from dflash_core.diagnosis.readers.json_lines import flat
from dflash_core.diagnosis.table import Table, TableBuilder

FACTS = ("max_steps", "save_steps", "eval_steps", "logging_steps", "num_train_epochs", "vocab_size")
ROWS = ("log_history", "history", "rows", "records", "logs", "data", "metrics")
# A document is read at once; a log of this size is a file of lines.
MOST_BYTES = 1 << 29


def read_document(path: Path) -> Table | None:
    """The table in a JSON document; None if the file isn't one document that holds rows."""
    if path.stat().st_size > MOST_BYTES:
        return None
    try:
        tree = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (ValueError, RecursionError):
        return None
    return table_in(tree)


def table_in(tree: Any) -> Table | None:
    """The first list of rows, or dict of columns, that the tree has at its top or under a usual name."""
    if isinstance(tree, list):
        return _from_rows(tree, "JSON list", {})
    if not isinstance(tree, dict):
        return None
    facts = {k: float(v) for k, v in tree.items() if k in FACTS and isinstance(v, int | float) and not isinstance(v, bool)}
    for name in ROWS:
        if isinstance(tree.get(name), list) and any(isinstance(row, dict) for row in tree[name]):
            kind = "Hugging Face trainer state" if name == "log_history" else f"JSON document, {name}"
            return _from_rows(tree[name], kind, facts)
    lists = {k: v for k, v in tree.items() if isinstance(v, list) and v}
    if len(lists) > 1:
        rows = [
            {k: v[i] for k, v in lists.items() if i < len(v) and not isinstance(v[i], list | dict)} for i in range(max(map(len, lists.values())))
        ]
        return _from_rows(rows, "JSON columns", facts)
    return None


def _from_rows(rows: list[Any], form: str, facts: dict[str, float]) -> Table | None:
    builder = TableBuilder(format=form)
    for number, row in enumerate(rows, start=1):
        if isinstance(row, dict):
            builder.add(number, flat(row))
        elif isinstance(row, list) and len(row) == 2 and all(isinstance(v, int | float | None) for v in row):
            builder.add(number, {"step": row[0], "loss": row[1]})
        else:
            builder.reject("entries that are no objects")
    return builder.table(facts=facts) if builder.rows else None
