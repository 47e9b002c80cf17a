"""Restarts, replays, second writers and counters: one timeline, and what had to be done to it."""

from collections.abc import Callable

import numpy as np
import pytest

from dflash_core.diagnosis.diagnose import Diagnosis
from dflash_core.diagnosis.finding import Finding

Diagnose = Callable[..., Diagnosis]
Rows = list[dict[str, float]]


def loss_at(steps: np.ndarray, seed: int) -> np.ndarray:
    return (1 + 5 * np.exp(-steps / 100)) * (1 + 0.02 * np.random.default_rng(seed).normal(size=len(steps)))


def session(first: int, last: int, seed: int = 0, every: int = 1) -> Rows:
    steps = np.arange(first, last + 1, every)
    return [{"step": int(s), "loss": float(v), "lr": 1e-4} for s, v in zip(steps, loss_at(steps, seed), strict=True)]


def of(diagnosis: Diagnosis, kind: str) -> list[Finding]:
    return [f for f in diagnosis.findings if f.kind == kind]


def test_a_resume_with_other_data_and_with_the_same(diagnose: Diagnose) -> None:
    first = session(1, 500)
    result = diagnose(first + session(451, 900, seed=1))
    (replay,) = of(result, "resume_replay")
    assert (replay.step, replay.detail["last"]) == (451, 500)
    assert replay.detail["same_losses"] is False and replay.detail["same_lr"] is True
    assert result.verdict.word == "healthy_after_resume" and "data_order" in [c.cause for c in result.causes]
    result = diagnose(first + first[450:500] + session(501, 900, seed=1))
    assert of(result, "resume_replay")[0].detail["same_losses"] is True
    assert "data_order" not in [c.cause for c in result.causes]
    assert len(result.log) == 900 and (np.diff(result.log.steps) > 0).all()


def test_starts_that_were_broken_off(diagnose: Diagnose) -> None:
    result = diagnose(session(20, 20, every=20) + session(20, 60, seed=1, every=20) + session(20, 8000, seed=2, every=20))
    assert [(f.detail["first_line"], f.detail["last_line"]) for f in of(result, "aborted_start")] == [(1, 1), (2, 4)]
    assert result.log.lines[0] == 5


def test_two_writers_and_no_single_resume(diagnose: Diagnose) -> None:
    other = session(1, 300, seed=1)
    mixed = [row for pair in zip(session(101, 400), other, strict=True) for row in pair]
    result = diagnose(session(1, 100) + mixed)
    assert of(result, "two_writers") and result.verdict.word == "inconclusive"
    assert not of(diagnose(session(1, 300) + session(251, 500)), "two_writers")


def test_a_counter_of_the_epoch_is_continued(diagnose: Diagnose) -> None:
    steps = np.arange(900)
    rows = [{"step": int(s % 300), "epoch": int(s // 300), "loss": float(v)} for s, v in zip(steps, loss_at(steps, 0), strict=True)]
    result = diagnose(rows)
    assert len(of(result, "counter_change")) == 2 and len(result.log) == 900 and result.log.steps[-1] == 899


def test_a_counter_divided_while_the_loss_goes_on(diagnose: Diagnose) -> None:
    before = [row | {"step": 100 * row["step"]} for row in session(10, 134)]
    after = [row | {"step": 3350 + 25 * i} for i, row in enumerate(session(135, 200, seed=1))]
    (change,) = of(diagnose(before + after), "counter_change")
    assert change.detail["ratio"] == 0.25 and change.severity == "warning"


def test_another_counter_that_begins_again(diagnose: Diagnose) -> None:
    rows = [row | {"usd": 0.1 * (i % 300)} for i, row in enumerate(session(1, 600))]
    (change,) = of(diagnose(rows), "counter_change")
    assert change.detail["field"] == "usd" and change.step == 301


def test_gaps_begin_after_the_save(diagnose: Diagnose) -> None:
    rows = [r for r in session(1, 801, every=2) if not 400 < r["step"] < 427]
    (gap,) = of(diagnose(rows, "checkpoint=400"), "step_gap")
    assert (gap.detail["first_missing"], gap.detail["resumes_at"], gap.detail["missing"]) == (401, 427, 26)
    assert gap.detail["after_checkpoint"] == 400
    assert not of(diagnose(session(1, 801, every=2)), "step_gap")


def test_ranks_that_log_each_step(diagnose: Diagnose) -> None:
    rows = [row for row in session(1, 200) for _ in range(4)]
    result = diagnose(rows)
    assert of(result, "step_repeat")[0].detail["rows"] == 600 and len(result.log) == 200


@pytest.mark.parametrize("steps", [[5, 4, 3, 2, 1] * 300, [1] * 50, [2**60, 1, 2**60], [-3, -2, -1, 0]])
def test_strange_counters_end_in_an_answer(diagnose: Diagnose, steps: list[int]) -> None:
    assert diagnose([{"step": s, "loss": 2.0 + i / 100} for i, s in enumerate(steps)]).verdict.word
