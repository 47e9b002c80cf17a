"""Damage between the stages, for benchmarks/bad_data_cases.py: to prepared rows, to files, to the plan."""

import dataclasses
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow
import pyarrow.parquet

from dflash_core.data.dataset import MANIFEST, SCHEMA, read_manifest
from dflash_core.data.identity import file_digest
from dflash_core.data.plan import BatchPlan, MicroBatch, joined
from dflash_core.stages import layout

Rows = list[dict[str, Any]]
ROW, OTHER = 3, 5  # of the training split


def prepared_rows(change: Callable[[Rows], list[str]]) -> list[str]:
    """Change the training split under a manifest that agrees with it: no digest gives it away. Gives the planted ids."""
    path = layout.PREPARED / "train.parquet"
    rows = pyarrow.parquet.read_table(path).to_pylist()
    planted = change(rows)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=SCHEMA), path)
    manifest = read_manifest(layout.PREPARED)
    info = dataclasses.replace(manifest.splits["train"], bytes=path.stat().st_size, sha256=file_digest(path), rows=len(rows))
    changed = dataclasses.replace(manifest, splits=manifest.splits | {"train": info})
    (layout.PREPARED / MANIFEST).write_text(changed.to_json(), encoding="utf-8")
    return planted


def retokenized(count: int, change: Callable[[dict[str, Any]], object]) -> Callable[[Rows], list[str]]:
    """Changes the first prepared rows."""

    def apply(rows: Rows) -> list[str]:
        for row in rows[:count]:
            change(row)
        return [row["sample_id"] for row in rows[:count]]

    return apply


def appended(**values: Any) -> Callable[[Rows], list[str]]:
    """Adds a prepared row once more, with other values."""

    def apply(rows: Rows) -> list[str]:
        rows.append(rows[ROW] | values)
        return [rows[-1]["sample_id"]]

    return apply


def flip_byte(path: Path) -> None:
    """One in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def edit_json(path: Path, **values: Any) -> None:
    """Other values in a JSON object."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


class LostRow(BatchPlan):
    """A row is in no step."""

    def _micro_batches(self, rows: np.ndarray) -> list[MicroBatch]:
        return super()._micro_batches(rows[rows != ROW])


class RepeatedRow(BatchPlan):
    """A row takes another one's place as well."""

    def _micro_batches(self, rows: np.ndarray) -> list[MicroBatch]:
        return super()._micro_batches(np.where(rows == OTHER, ROW, rows))


class BatchesTooLarge(BatchPlan):
    """Each step is one micro-batch."""

    def _micro_batches(self, rows: np.ndarray) -> list[MicroBatch]:
        return list(joined(super()._micro_batches(rows), 1 << 30))


class _ApartFromOthers(BatchPlan):
    """One row is in a micro-batch of its own, padded to another length than its bucket's."""

    more = 0

    def _micro_batches(self, rows: np.ndarray) -> list[MicroBatch]:
        batches = super()._micro_batches(rows[rows != ROW])
        return [*batches, MicroBatch((ROW,), int(self._padded_N[ROW]) + self.more)] if ROW in rows else batches


class BatchTooShort(_ApartFromOthers):
    """By a bucket."""

    more = -32


class BatchOfNoBucket(_ApartFromOthers):
    """By a token."""

    more = 1


def dealt_by(plan: type[BatchPlan]) -> Callable[[], AbstractContextManager[object]]:
    """This plan in place of the right one, in every stage."""
    return lambda: mock.patch("dflash_core.data.plan_manifest.BatchPlan", plan)
