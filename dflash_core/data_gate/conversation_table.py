"""The table of conversations: a row for each row of the files, with its faults, its split, near-copies and drift."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import pandas

from dflash_core.data_gate.near_copies import near_pairs
from dflash_core.data_gate.profile import Profile
from dflash_core.data_gate.rows import Row

FACTS = ("row_id", "where", "shape_fault", "order_fault", "shortest_turn", "garbled", "category", "script")


def conversation_table(rows: Sequence[Row], split_of: Mapping[str, str], similarity: float, reference: Profile | None) -> pandas.DataFrame:
    """One line a row.

    Args:
        rows: of all files.
        split_of: the split of each prepared row, by id.
        similarity: from which on two texts are near-copies.
        reference: an earlier version, for the columns of drift.
    """
    frame = pandas.DataFrame({name: [getattr(row, name) for row in rows] for name in FACTS})
    splits = [split_of.get(row.row_id) for row in rows]
    frame["split"] = splits
    frame["near_copy_of"], frame["leak_of"] = _copies(rows, splits, similarity)
    if reference is not None:
        frame["script_drift"] = _drift([row.script for row in rows], reference.scripts)
        frame["category_drift"] = _drift([row.category for row in rows], reference.categories)
    return frame


def _copies(rows: Sequence[Row], splits: Sequence[str | None], similarity: float) -> tuple[list[str | None], list[str | None]]:
    """For each row an earlier one of its split that it nearly copies, and for a held-out one a training row that gives it away.

    A training row gives a held-out one away that it nearly copies, or whose first question it asks.
    """
    number_of: dict[str, int] = {}
    numbers = [number_of.setdefault(row.text, len(number_of)) for row in rows]
    near: dict[int, list[int]] = defaultdict(list)
    for i, j in near_pairs(list(number_of), similarity):
        near[i].append(j)
        near[j].append(i)
    first: dict[tuple[int, str | None], str] = {}
    asked = {row.prompt: row.row_id for row, split in zip(rows, splits, strict=True) if split == "train" and row.prompt}
    copies: list[str | None] = []
    for row, number, split in zip(rows, numbers, splits, strict=True):
        found = (first.get((other, split)) for other in (number, *near[number]))
        copies.append(next(filter(None, found), None) if row.text else None)
        first.setdefault((number, split), row.row_id)
    leaks = [
        asked.get(row.prompt) or next(filter(None, (first.get((other, "train")) for other in (number, *near[number]))), None)
        if split == "heldout" and row.text
        else None
        for row, number, split in zip(rows, numbers, splits, strict=True)
    ]
    return copies, leaks


def _drift(values: Sequence[str | None], reference: Mapping[str, int]) -> list[float]:
    """For rows of a value whose share grew, the share of all rows that moved (total variation); 0 for the others.

    So the rows that fail are those that came in, whether they displace one large value or several small ones.
    """
    counts = Counter(value for value in values if value is not None)
    now, before = max(1, sum(counts.values())), max(1, sum(reference.values()))
    growth = {value: count / now - reference.get(value, 0) / before for value, count in counts.items()}
    moved = sum(change for change in growth.values() if change > 0)
    return [moved if value is not None and growth[value] > 0 else 0.0 for value in values]
