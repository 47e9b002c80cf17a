"""Chooses, of a table's columns, the series that a diagnosis looks at, and puts them on the rows of the loss."""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from dflash_core.diagnosis.columns import role_of
from dflash_core.diagnosis.table import Column, Table

# Roles whose numbers belong to a training step and are read on the loss's rows.
ALIGNED = ("lr", "grad_norm", "throughput", "step_time", "tokens", "epoch", "loss_scale", "wall_time")

RUN_NAMES = ("run_id", "run_name", "run", "series", "trial")
# More names than this are no runs.
MOST_RUNS = 200


@dataclass(frozen=True, kw_only=True)
class Series:
    """Numbers at steps of their own."""

    steps: np.ndarray
    values: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Log:
    """A training log as series.

    Fields:
        names: role to the column that fills it, for a person to check.
        lines: the file's line of each row. int64 [N]
        steps: the training step of each row. float64 [N]
        loss: float64 [N]; NaN and infinities are the log's own.
        aligned: role to numbers on the same rows, NaN where a row has none. float64 [N] each
        accuracies: accuracy-like series (higher is better) by column name, on the same rows.
        queues: queue depths by column name, on the same rows.
        counters: other columns that only grow, by name, on the same rows.
        held_out: evaluation series by role.
        recorded: steps of checkpoints, evaluations and resumes that the log itself records.
        stopped_by: steps that raised before they were logged, since their loss or gradient was not finite.
        facts: numbers about the whole run.
        sessions: which writer or restart a row belongs to, as the file names it; None where it doesn't.
    """

    format: str
    names: dict[str, str]
    lines: np.ndarray
    steps: np.ndarray
    loss: np.ndarray
    aligned: dict[str, np.ndarray] = field(default_factory=dict)
    accuracies: dict[str, np.ndarray] = field(default_factory=dict)
    queues: dict[str, np.ndarray] = field(default_factory=dict)
    counters: dict[str, np.ndarray] = field(default_factory=dict)
    held_out: dict[str, Series] = field(default_factory=dict)
    recorded: dict[str, np.ndarray] = field(default_factory=dict)
    stopped_by: np.ndarray = field(default_factory=lambda: np.zeros(0))
    facts: dict[str, float] = field(default_factory=dict)
    unread: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.steps)

    def rows(self, keep: np.ndarray) -> Self:
        """The log with only the rows `keep` chooses (a mask or indices)."""
        pick = {name: {k: v[keep] for k, v in getattr(self, name).items()} for name in ("aligned", "accuracies", "queues", "counters")}
        return replace(self, lines=self.lines[keep], steps=self.steps[keep], loss=self.loss[keep], **pick)

    def noted(self, *notes: str) -> Self:
        """The log with more notes."""
        return replace(self, notes=(*self.notes, *notes))


def log_from(table: Table) -> Log:
    """Series of a table, still in the file's order with its repeats."""
    chosen = _chosen(table)
    main = chosen.get("loss") or chosen.get("eval_loss") or next(iter(_of_role(table, "accuracy") or _of_role(table, "grad_norm")))
    held = table.columns[main]
    keep = held.present & _of_steps(table)
    rows, several = _one_run(table, np.flatnonzero(keep))
    steps, step_name, notes = _steps(table, rows)
    notes += several
    order = np.isfinite(steps)
    rows, steps = rows[order], steps[order]
    used = {"loss": main, "step": step_name} | {r: chosen[r] for r in ALIGNED if r in chosen}
    if chosen.get("loss") is None:
        notes += (f"no training loss is in the log; {main} is read in its place",)
    all_steps = _all_steps(table, step_name)

    def on_rows(name: str) -> np.ndarray:
        return _aligned(table.columns[name], rows, steps, all_steps)

    return Log(
        format=table.format,
        names=used,
        lines=table.lines[rows],
        steps=steps,
        loss=held.values[rows],
        aligned={r: on_rows(chosen[r]) for r in ALIGNED if r in chosen},
        accuracies={n: on_rows(n) for n in _of_role(table, "accuracy")},
        queues={n: on_rows(n) for n in _of_role(table, "queue")},
        counters={n: on_rows(n) for n in _growing(table, rows, {main, step_name})},
        held_out=_held_out(table, chosen, all_steps, main),
        recorded=_recorded(table, all_steps),
        stopped_by=_stopped_by(table, all_steps),
        facts=table.facts,
        unread=table.unread,
        notes=(*table.notes, *notes),
    )


def _of_role(table: Table, role: str) -> list[str]:
    """Columns of a role, the best name first."""
    ranked = [(role_of(n), n) for n in table.columns]
    return [n for known, n in sorted(((k, n) for k, n in ranked if k and k[0] == role), key=lambda pair: (pair[0][1], pair[1]))]


def _chosen(table: Table) -> dict[str, str]:
    """For each role the column with the best name among those that have at least half as many values as the fullest."""
    chosen: dict[str, str] = {}
    for role in ("loss", "eval_loss", "eval_accuracy", *ALIGNED):
        names = _of_role(table, role)
        most = max((table.columns[n].count for n in names), default=0)
        good = [n for n in names if table.columns[n].count * 2 >= most]
        if good:
            chosen[role] = good[0]
    return chosen


def _of_steps(table: Table) -> np.ndarray:
    """Rows that are training steps where the log says so; all of them where it doesn't."""
    kinds = table.words.get("kind")
    ours = kinds is not None and (kinds == "step").any()
    return kinds == "step" if ours else np.ones(table.num_rows, dtype=bool)


def _one_run(table: Table, rows: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """The rows of the run with most of them, where a column names several."""
    for name in RUN_NAMES:
        words = table.words.get(name)
        if words is None:
            continue
        counts = Counter(words[rows].tolist())
        if 1 < len(counts) <= MOST_RUNS:
            (run, most), *_ = counts.most_common(1)
            note = f"the file holds {len(counts)} runs by {name}; {run}, the longest with {most:,} rows, is read"
            return rows[words[rows] == run], (note,)
    return rows, ()


def _steps(table: Table, rows: np.ndarray) -> tuple[np.ndarray, str, tuple[str, ...]]:
    """Step of each row, its column's name, and a note. A counter that never falls is preferred to one that restarts."""
    candidates = [n for n in _of_role(table, "step") if table.columns[n].present[rows].mean() > 0.9] if len(rows) else []
    if not candidates:
        return np.arange(1.0, len(rows) + 1), "line order", ("no step is in the log; rows are counted in the file's order",)

    def falls(name: str) -> int:
        values = table.columns[name].values[rows]
        return int((np.diff(values[np.isfinite(values)]) < 0).sum())

    best = min(candidates, key=lambda n: (falls(n) > 0, candidates.index(n)))
    values = table.columns[best].values[rows]
    return np.where(np.abs(values) < 2**53, values, np.nan), best, ()


def _all_steps(table: Table, name: str) -> np.ndarray:
    """Step of every row of the table, that of the row before where it has none."""
    column = table.columns.get(name)
    if column is None:
        return np.arange(1.0, table.num_rows + 1)
    known = column.present & np.isfinite(column.values)
    last = np.maximum.accumulate(np.where(known, np.arange(len(known)), -1))
    return np.where(last >= 0, column.values[np.maximum(last, 0)], np.nan)


def _aligned(column: Column, rows: np.ndarray, steps: np.ndarray, all_steps: np.ndarray) -> np.ndarray:
    """The column on the loss's rows; where those lack it, what other rows say of the same step."""
    here = np.where(column.present[rows], column.values[rows], np.nan)
    if not len(rows) or column.present[rows].any() or not column.present.any():
        return here
    others = np.flatnonzero(column.present & np.isfinite(all_steps))
    others = others[np.argsort(all_steps[others], kind="stable")]
    if not len(others):
        return here
    place = np.minimum(np.searchsorted(all_steps[others], steps), len(others) - 1)
    return np.where(all_steps[others[place]] == steps, column.values[others[place]], np.nan)


def _growing(table: Table, rows: np.ndarray, used: set[str]) -> list[str]:
    """Columns that count something: they rise on nearly all rows, and fall, if at all, to a small part of what they were."""
    names = []
    for name, column in table.columns.items():
        values = column.values[rows]
        if name in used or not column.present[rows].all() or len(rows) < 8 or not np.isfinite(values).all() or (values < 0).any():
            continue
        change = np.diff(values)
        down = np.flatnonzero(change < 0)
        if (change > 0).mean() > 0.95 and 0 < len(down) <= max(3, len(values) // 50) and (values[down + 1] < 0.75 * values[down]).all():
            names.append(name)
    return names


def _held_out(table: Table, chosen: dict[str, str], all_steps: np.ndarray, main: str) -> dict[str, Series]:
    out = {}
    for role in ("eval_loss", "eval_accuracy"):
        name = chosen.get(role)
        if name is None or name == main:
            continue
        rows = np.flatnonzero(table.columns[name].present & np.isfinite(all_steps))
        if len(rows):
            out[role] = Series(steps=all_steps[rows], values=table.columns[name].values[rows])
    return out


def _recorded(table: Table, all_steps: np.ndarray) -> dict[str, np.ndarray]:
    kinds = table.words.get("kind")
    if kinds is None:
        return {}
    found = {kind: all_steps[kinds == kind] for kind in ("checkpoint", "eval", "resume")}
    return {kind: np.unique(steps[np.isfinite(steps)]) for kind, steps in found.items() if np.isfinite(steps).any()}


def _stopped_by(table: Table, all_steps: np.ndarray) -> np.ndarray:
    """Our own log tells the last step that was done, and that the next had numbers that aren't finite."""
    kinds, what = table.words.get("kind"), table.words.get("what")
    if kinds is None or what is None:
        return np.zeros(0)
    steps = all_steps[(kinds == "finding") & (what == "nonfinite")] + 1
    return np.unique(steps[np.isfinite(steps)])
