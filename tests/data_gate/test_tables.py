"""The tables against the same facts taken row by row."""

import json
from pathlib import Path

import numpy as np
import pytest

from dflash_core.config import Config
from dflash_core.data.dataset import Dataset
from dflash_core.data_gate import token_table as module
from dflash_core.data_gate.conversation_table import _drift
from dflash_core.data_gate.rows import read_rows, script_of
from dflash_core.data_gate.token_table import token_table
from dflash_core.stages import layout


def test_token_facts_are_those_of_each_row(planned: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 7)  # several slices, whose rows must not run into each other
    datasets = [Dataset.open(layout.PREPARED, split) for split in ("train", "heldout")]
    frame = token_table(datasets, 65, {"row-000"}, {"row-001": "wrong"})
    samples = [dataset.sample(row) for dataset in datasets for row in range(len(dataset))]
    assert frame["row_id"].tolist() == [sample.sample_id for sample in samples]
    for line, sample in zip(frame.itertuples(), samples, strict=True):
        mask, ids = sample.loss_mask, sample.input_ids
        assert (line.num_tokens, line.num_mask, line.lowest_id, line.highest_id) == (len(ids), len(mask), ids.min(), ids.max())
        assert (line.num_supervised, line.first_supervised) == (mask.sum(), np.argmax(mask))
        assert line.num_anchors == (mask[:-1] & mask[1:]).sum() and line.mask_tokens == (ids == 65).sum()
        assert line.known is (sample.sample_id == "row-000") and (line.round_trip_fault == "wrong") is (sample.sample_id == "row-001")


def test_rows_without_tokens_or_supervision_have_no_extremes() -> None:
    low, high = module._extremes(np.array([5, 3, 9]), np.array([0, 0, 2, 2, 3, 3]))
    np.testing.assert_array_equal(low, [np.nan, 3, np.nan, 9, np.nan])
    np.testing.assert_array_equal(high, [np.nan, 5, np.nan, 9, np.nan])
    first = module._first_true(np.array([False, True, False, True]), np.array([0, 0, 2, 3, 4]))
    np.testing.assert_array_equal(first, [np.nan, 1, np.nan, 0])


def test_drift_is_on_the_rows_that_came_in() -> None:
    assert _drift(["a"] * 8 + ["b"] * 2, {"a": 10}) == pytest.approx([0.0] * 8 + [0.2] * 2)
    many = [value for value in "abcde" for _ in range(24)]  # each grew by 4 % at the cost of one that is gone
    assert _drift(many, {value: 16 for value in "abcde"} | {"f": 20}) == pytest.approx([0.2] * len(many))
    assert _drift([None, "a"], {"a": 5}) == [0.0, 0.0]


@pytest.mark.parametrize(("text", "script"), [("abc д", "latin"), ("дом a", "cyrillic"), ("你好 a", "cjk"), ("12 + 3", "none"), ("", "none")])
def test_the_script_of_most_letters(text: str, script: str) -> None:
    assert script_of(text) == script


def test_every_row_of_a_file_is_told_of(tmp_path: Path) -> None:
    good = {"prompt": "Hello?", "response": "Yes."}
    rows = [good | {"id": "a"}, {"id": "b", "text": 1}, good | {"id": ""}, good, good | {"response": "x\x07"}, '{"id": "e"']
    (tmp_path / "r.jsonl").write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    found = list(read_rows([tmp_path / "r.jsonl", tmp_path / "absent.jsonl"], keep={"a"}))
    place = f"{tmp_path}/r.jsonl line"
    assert [row.row_id for row in found[:3]] == ["a", "b", f"{place} 3"] and len(found[3].row_id) == 24
    assert [row.row_id for row in found[5:]] == [f"{place} 6", str(tmp_path / "absent.jsonl")]
    assert [row.shape_fault is not None for row in found] == [False, True, True, False, False, True, True]
    assert [row.garbled for row in found[:5]] == [None, None, None, None, "U+0007"]
    assert [row.conversation is not None for row in found] == [True, False, False, False, False, False, False]
