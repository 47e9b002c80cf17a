"""Gathering a report's facts from what the stages leave."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dflash_core.errors import DataError, IdentityError
from dflash_core.evaluation.acceptance import histogram_PK, summarise
from dflash_core.evaluation.record_file import read_record
from dflash_core.evaluation.records import Piece
from dflash_core.evaluation.records import SampleDecode as DecodedSample
from dflash_core.report.collect import _check_same_run, _curves, _sample, _slot_accuracy
from dflash_core.report.evaluation_facts import with_interval
from dflash_core.training.records import EvalRecord, StepRecord


def step(number: int, accuracy: tuple[float | None, ...] = (0.5, None), count: tuple[int, ...] = (2, 0)) -> StepRecord:
    return StepRecord(
        run_id="r", session_id="s", step=number, wall_time=0.0, epoch=0, loss=1.0 / number, loss_sum=1.0, denominator=float(number),
        per_position_accuracy=accuracy, per_position_count=count, streak=1.5, num_blocks=2, grad_norm=1.0, lr=0.1, noise_std=0.0, tokens=1,
        padded_tokens=1, buckets=(32,), first_sample=0, last_sample=0, hs_queue_depth=0, prefetch_queue_depth=0, tok_per_s=1.0,
        data_wait_s=0.0, target_s=0.0, drafter_s=0.0, checkpoint_s=0.0,
    )  # fmt: skip


def test_slot_accuracy_weighs_steps_by_their_labels() -> None:
    found = _slot_accuracy([step(1, (1.0, None), (1, 0)), step(2, (0.0, None), (3, 0))])
    assert found == (pytest.approx(0.25), None)


def test_curves_take_steps_and_measured_evaluations() -> None:
    stamp = {"run_id": "r", "session_id": "s", "wall_time": 0.0, "seconds": 1.0}
    records = (
        step(1),
        EvalRecord(**stamp, step=1, metrics={"tau": 1.2}),
        EvalRecord(**stamp, step=2, metrics={"tau": None}),
        step(2),
    )
    curves = _curves(records)
    assert (curves.steps, curves.loss, curves.eval_steps, curves.eval_tau) == ((1, 2), (1.0, 0.5), (1,), (1.2,))


def test_tokens_of_a_round_make_one_block_and_the_prefills_counts_none() -> None:
    kinds = [("first", 0), ("draft", 1), ("bonus", 1), ("bonus", 2), ("draft", 3)]
    pieces = tuple(Piece(text=letter, kind=kind, round=number) for letter, (kind, number) in zip("abcde", kinds, strict=True))
    sample = _sample(DecodedSample(sample_id="x", category="c", prompt="p", tau=1.3, pieces=pieces))
    assert sample.blocks == ((0, "a"), (2, "bc"), (1, "d"), (1, "e"))


@pytest.mark.parametrize("content", [b'{"format": 1, "subj', b"\xff\xfe", b"[]"])
def test_a_broken_evaluation_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "evaluation.json").write_bytes(content)
    with pytest.raises(DataError, match=r"evaluation\.json is no evaluation of this version .*Run stage evaluate again") as caught:
        read_record(tmp_path / "evaluation.json")
    assert "\n" not in str(caught.value)


def test_a_single_prompts_acceptance_is_shown_without_an_interval() -> None:
    table_PK = histogram_PK([(2, 1, 3)], 4)
    assert with_interval(summarise(table_PK), 2) == "2.00"
    assert with_interval(summarise(np.concatenate([table_PK, table_PK])), 2) == "2.00 (2.00 to 2.00)"


def test_an_evaluation_of_another_run_is_refused() -> None:
    def evaluation(**lineage: str) -> SimpleNamespace:
        return SimpleNamespace(subjects=SimpleNamespace(drafter_lineage=lineage))

    _check_same_run((step(1),), evaluation(run_id="r"))
    _check_same_run((step(1),), evaluation())  # a drafter that another program exported
    with pytest.raises(IdentityError, match="run other.*run r"):
        _check_same_run((step(1),), evaluation(run_id="other"))
