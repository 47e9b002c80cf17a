"""Whole runs that save: they compute what a run without saves does, probe past their end, and lose no save to an error."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from saving_run import SavingRun

from dflash_core.checkpoint.contents import Share
from dflash_core.checkpoint.digests import tensors_digest
from dflash_core.checkpoint.resume import RunDirectory, find_prior_run
from dflash_core.checkpoint.store import CheckpointStore, Committed, Writing
from dflash_core.errors import NonFiniteError, Stopped
from dflash_core.training.loop import Position

BESIDE = {"wait": False}


def losses(records: list[Any]) -> list[tuple[Any, ...]]:
    return [(r.step, r.loss_sum, r.grad_norm, r.streak, r.first_sample, r.last_sample) for r in records]


def test_a_run_that_saves_after_every_step_is_one_that_never_saves(tmp_path: Path, world: Callable[..., Any]) -> None:
    runs = {}
    for every in (1, 1000):
        (tmp_path / str(every)).mkdir()
        run = runs[every] = SavingRun(RunDirectory(tmp_path / str(every)), world(checkpoint=BESIDE | {"every": every}))
        run.run()
    often, seldom = runs.values()
    assert losses(often.records("step")) == losses(seldom.records("step")) and len(often.records("step")) == 8
    assert len(often.records("checkpoint")) >= 2 and [r.step for r in seldom.records("checkpoint")] == [8]
    digests = [run.records("checkpoint")[-1].weights_digest for run in (often, seldom)]
    assert digests[0] == digests[1] == tensors_digest(seldom.here.trainee.drafter.state_dict())


def test_steps_past_the_end_are_logged_as_probes_and_leave_nothing_else(run_dir: RunDirectory, world: Callable[..., Any]) -> None:
    run = SavingRun(run_dir, world(checkpoint={"proof_steps": 3}))
    assert run.run() == Position(8, 48)
    loaded = run_dir.store.load_newest()
    assert loaded.committed.step == 8 and len(run.records("step")) == 8
    probes = run.records("probe")
    assert [r.step for r in probes] == [9, 10, 11] and probes[0].first_sample == 48
    assert all(r.lr == run.here.config.training.learning_rate for r in probes), "moments show only where the weights move"
    assert tensors_digest(run.here.trainee.drafter.state_dict()) != loaded.committed.weights_digest
    assert find_prior_run(run_dir, "auto").finished
    # A replay of the checkpoint comes to the same losses.
    fresh = SavingRun(run_dir, world(checkpoint={"proof_steps": 3}))
    assert fresh.run() == Position(8, 48), "and a session that finds all steps done does the probes again"
    assert losses(fresh.records("probe")) == losses(probes) * 2


def test_a_stop_among_the_probes_leaves_a_run_to_resume_and_no_further_checkpoint(run_dir: RunDirectory, world: Callable[..., Any]) -> None:
    run = SavingRun(run_dir, world(checkpoint={"proof_steps": 3}))
    run.stop_at = 10
    with pytest.raises(Stopped, match="all steps are saved, but not those that the last checkpoint is proven by"):
        run.run()
    assert run_dir.store.names()[-1] == "step-00000008" and not find_prior_run(run_dir, "auto").finished


def test_an_error_of_the_training_keeps_the_save_in_flight(run_dir: RunDirectory, world: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is slow, and the loss of the step after the save isn't finite."""
    genuine = CheckpointStore.write

    def slow(store: CheckpointStore, share: Share, writing: Writing) -> Committed | None:
        time.sleep(0.1)
        return genuine(store, share, writing)

    monkeypatch.setattr(CheckpointStore, "write", slow)
    run = SavingRun(run_dir, world(checkpoint=BESIDE))
    table, calls = run.here.trainee.target, []
    micros = sum(len(run.here.plan.step_number(number).micro_batches) for number in range(3))
    genuine_features = table.features

    def features(*arguments: Any) -> torch.Tensor:
        calls.append(1)
        return genuine_features(*arguments) * (float("nan") if len(calls) > micros else 1.0)

    monkeypatch.setattr(table, "features", features)
    with pytest.raises(NonFiniteError, match="step 4"):
        run.run()
    assert [r.step for r in run.records("checkpoint")] == [3] and run.records("stop")[-1].reason == "error"
    assert run_dir.store.load_newest().committed.step == 3
