"""The loop and its resume: same weights, same losses, same samples; stops, saves and evaluations where they belong."""

import itertools
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dflash_core.checkpoint import saves, writer
from dflash_core.checkpoint.resume import RunDirectory, find_prior_run
from dflash_core.checkpoint.save_request import ask_for_save, take_request
from dflash_core.checkpoint.saves import Past, Saves
from dflash_core.checkpoint.snapshot import restore, take_share
from dflash_core.checkpoint.staging import HostBuffers
from dflash_core.distributed.gradients import Alone
from dflash_core.errors import ConfigError, NonFiniteError, Stopped
from dflash_core.training.batches import batches, total_steps
from dflash_core.training.log_reader import read_log
from dflash_core.training.loop import Hooks, Position, Run, train_loop
from dflash_core.training.optimizer import make_optimizer
from dflash_core.training.progress import ProgressLine
from dflash_core.training.records import CheckpointRecord, LogWriter, StepRecord


@dataclass
class Session:
    """One process's worth of a run, in this process: fresh weights, fresh optimizer, what the store holds put back."""

    directory: RunDirectory
    world: object
    evaluate: Callable[[int], Mapping[str, float]] | None = None
    on_features: Callable[[], None] = lambda: None
    stop_wanted: Callable[[], str | None] = lambda: None

    def run(self) -> Position:
        drafter, config = self.world.trainee.drafter, self.world.config
        optimizer = make_optimizer(drafter, config.training)
        position = Position(0, 0)
        with LogWriter(self.directory.log_path) as log:
            loaded = self.directory.store.load_newest()
            if loaded is not None:
                restore(loaded.contents, drafter, optimizer)
                position = Position(loaded.contents.state["step"], loaded.contents.state["next_sample"])

            def share(at: Position) -> object:
                return take_share(drafter, optimizer, step=at.step, next_sample=at.next_sample, run_id=log.run_id, identity={})

            ranks = Alone(drafter)
            token, past = log.session_id[:8], Past(position.step)
            saves = Saves(share, HostBuffers(), self.directory.store, ranks, log, config, {}, token, past)
            steps = total_steps(self.world.plan, config)
            stream = batches(self.world.plan, self.world.dataset, self.source, config, next_sample=position.next_sample)
            run = Run(
                config, self.world.trainee, optimizer, steps, log, ProgressLine(steps, position.step), Hooks(saves, self.evaluate),
                ranks, stop_wanted=self.stop_wanted, save_asked=lambda: take_request(self.directory.path),
            )  # fmt: skip
            return train_loop(run, stream, position)

    def source(self, rows: object, input_ids_BT: Tensor) -> Tensor:
        self.on_features()
        return self.world.source(rows, input_ids_BT)

    def state(self) -> dict[str, Tensor]:
        return {k: v.clone() for k, v in self.world.trainee.drafter.state_dict().items()}


def interrupt_at(step: int, world: object, action: Callable[[], None], begun: int = 0) -> Callable[[], None]:
    """Call `action` while the first features of this step are taken, in a session that begins after step `begun`."""
    calls = sum(len(world.plan.step_number(number).micro_batches) for number in range(begun, step - 1))
    seen = itertools.count()
    return lambda: action() if next(seen) == calls else None


def kill() -> None:
    raise KeyboardInterrupt


def steps_of(path: Path) -> list[tuple[object, ...]]:
    """What must not depend on where a run was interrupted."""
    return [
        (
            r.step,
            r.epoch,
            r.loss_sum,
            r.denominator,
            r.per_position_accuracy,
            r.streak,
            r.grad_norm,
            r.lr,
            r.buckets,
            r.first_sample,
            r.last_sample,
        )
        for r in read_log(path)
        if isinstance(r, StepRecord)
    ]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_spec7_07_resume_parity(world: Callable, tmp_path: Path, precision: str) -> None:
    """Killed at step 5 (last save at 3) and again at 8, then finished: weights, losses, rates, samples bit-equal."""
    settings = {"precision": precision, "feature_noise": {"std": 0.05, "warmup_steps": 5}}
    whole = Session(RunDirectory(tmp_path / "whole"), world(training=settings))
    assert whole.run().step == 8 and whole.world.plan.steps_per_epoch == 4, "saves at 3 and 6 lie inside epochs"
    pieces = RunDirectory(tmp_path / "pieces")
    for begun, victim in ((0, 5), (3, 8)):
        broken = Session(pieces, world(training=settings))
        broken.on_features = interrupt_at(victim, broken.world, kill, begun)
        with pytest.raises(KeyboardInterrupt):
            broken.run()
        torch.manual_seed(99)  # whatever the next process does with its generators before it resumes
    last = Session(pieces, world(training=settings))
    assert last.run() == Position(8, 48)
    assert all(torch.equal(value, whole.state()[name]) for name, value in last.state().items())
    # these sessions write no resume records, so the newest record of each step counts
    assert list({row[0]: row for row in steps_of(pieces.log_path)}.values()) == steps_of(whole.directory.log_path)
    final = [d.store.load_newest().contents for d in (whole.directory, pieces)]
    assert all(torch.equal(final[0].moments[name], value) for name, value in final[1].moments.items())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_the_step_saves_and_stops(world: Callable, run_dir: Path, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    session = Session(RunDirectory(run_dir), world(), evaluate=lambda step: {"tau": 1.0})
    session.on_features = interrupt_at(2, session.world, lambda: os.kill(os.getpid(), number))
    with pytest.raises(Stopped, match=f"{number.name} came; step 2 of 8 is saved") as stopped:
        session.run()
    assert stopped.value.exit_code == 4 and signal.getsignal(number) == before
    assert session.directory.store.names() == ("step-00000002",)
    kinds = [r.kind for r in read_log(session.directory.log_path)]
    assert kinds == ["step", "step", "checkpoint", "stop"]
    assert read_log(session.directory.log_path)[-1].reason == "signal"


def test_what_watches_the_log_stops_the_run_as_a_signal_does(world: Callable, run_dir: Path) -> None:
    session = Session(RunDirectory(run_dir), world())
    seen = itertools.count()
    session.stop_wanted = lambda: "the finding divergence" if next(seen) >= 1 else None
    with pytest.raises(Stopped, match="the finding divergence came; step 2 of 8 is saved"):
        session.run()
    assert session.directory.store.names() == ("step-00000002",)
    assert read_log(session.directory.log_path)[-1].reason == "finding"


def test_a_signal_beside_a_finding_is_the_reason_that_is_told_and_logged(world: Callable, run_dir: Path) -> None:
    session = Session(RunDirectory(run_dir), world())
    session.stop_wanted = lambda: os.kill(os.getpid(), signal.SIGTERM) or "the finding divergence"
    with pytest.raises(Stopped, match="SIGTERM came; step 1 of 8 is saved"):
        session.run()
    assert read_log(session.directory.log_path)[-1].reason == "signal"


@pytest.mark.parametrize("wait", [True, False])
def test_a_save_that_is_waited_for_does_not_rest(world: Callable, run_dir: Path, monkeypatch: pytest.MonkeyPatch, wait: bool) -> None:
    """Saves at 3, and at 4, where a signal comes: a save that rested would take an hour."""
    monkeypatch.setattr(writer, "_WORTH_A_REST_S", 0.0)
    monkeypatch.setattr(saves, "BESIDE_CORES", 1e-9)
    session = Session(RunDirectory(run_dir), world(checkpoint={"wait": wait}))
    session.on_features = interrupt_at(4, session.world, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Stopped):
        session.run()
    assert session.directory.store.names() == ("step-00000003", "step-00000004")


def test_a_signal_in_the_middle_of_a_save_is_answered_by_a_save_of_its_own(world: Callable, run_dir: Path) -> None:
    """At step 3, saved and then evaluated, the signal comes during the evaluation: step 4 is done and saved."""
    session = Session(RunDirectory(run_dir), world(), evaluate=lambda step: os.kill(os.getpid(), signal.SIGTERM) or {"tau": 1.0})
    with pytest.raises(Stopped, match="step 4"):
        session.run()
    assert session.directory.store.names() == ("step-00000003", "step-00000004")


def test_saves_and_evaluations_come_at_their_steps_and_at_the_end(world: Callable, run_dir: Path) -> None:
    session = Session(RunDirectory(run_dir), world(), evaluate=lambda step: {"tau": 1.0 + step})
    session.run()
    records = read_log(session.directory.log_path)
    events = [(r.kind, r.step) for r in records if r.kind != "step"]
    assert events == [(kind, step) for step in (3, 6, 8) for kind in ("checkpoint", "eval")] + [("stop", 8)]
    saved = [r for r in records if r.kind == "checkpoint"]
    committed = session.directory.store.load_newest({r.name: r.digest for r in saved}).committed
    assert (saved[-1].digest, saved[-1].weights_digest) == (committed.digest, committed.weights_digest)
    steps = [r for r in records if isinstance(r, StepRecord)]
    assert [r.step for r in steps] == list(range(1, 9)) and [r.checkpoint_s > 0 for r in steps] == [
        s in (4, 7) for s in range(1, 9)
    ]
    consumed = [sample for r in steps for sample in range(r.first_sample, r.last_sample + 1)]
    assert consumed == list(range(48)), "every sample of two epochs once"


def test_non_finite_leaves_the_last_checkpoint_alone(world: Callable, run_dir: Path) -> None:
    session = Session(RunDirectory(run_dir), world())
    session.on_features = interrupt_at(5, session.world, lambda: session.world.trainee.target.table_VF.fill_(float("nan")))
    with pytest.raises(NonFiniteError, match="step 5"):
        session.run()
    loaded = session.directory.store.load_newest()
    assert loaded.committed.step == 3 and all(bool(v.isfinite().all()) for v in loaded.contents.weights.values())
    assert read_log(session.directory.log_path)[-1].reason == "error"


def test_a_signal_leaves_the_rescue_of_a_save_alone(world: Callable, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a rank has failed, a launcher sends SIGTERM to the others after two seconds."""
    session = Session(RunDirectory(run_dir), world())
    session.on_features = interrupt_at(2, session.world, lambda: session.world.trainee.target.table_VF.fill_(float("nan")))
    monkeypatch.setattr(Saves, "rescue", lambda saves: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with pytest.raises(NonFiniteError, match="step 2"):
            session.run()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert read_log(session.directory.log_path)[-1].reason == "error"


def test_max_steps_ends_the_run_and_its_schedule(world: Callable, run_dir: Path) -> None:
    session = Session(RunDirectory(run_dir), world(training={"max_steps": 5}))
    assert session.run().step == 5
    assert steps_of(session.directory.log_path)[-1][7] == 0.0, "the cosine ends at the last step done"


def test_a_run_is_begun_continued_or_refused_by_what_its_directory_holds(world: Callable, run_dir: Path) -> None:
    directory = RunDirectory(run_dir)
    assert find_prior_run(directory, "auto") is None and find_prior_run(directory, False) is None
    with pytest.raises(ConfigError, match="holds no run to resume"):
        find_prior_run(directory, True)
    session = Session(directory, world())
    session.on_features = interrupt_at(5, session.world, kill)
    with pytest.raises(KeyboardInterrupt):
        session.run()
    with pytest.raises(ConfigError, match="already holds a run with 1 checkpoints"):
        find_prior_run(directory, False)
    for resume in (True, "auto"):
        prior = find_prior_run(directory, resume)
        assert prior.loaded.committed.step == 3 and not prior.finished and prior.run_id == read_log(directory.log_path)[0].run_id
    Session(directory, world()).run()
    assert find_prior_run(directory, "auto").finished


def twice(number: signal.Signals) -> None:
    """Sends a signal two times, the second when the first has been handled: two that come at once are one."""
    for _ in range(2):
        os.kill(os.getpid(), number)
        time.sleep(0.1)


def test_a_second_ctrl_c_ends_at_once(world: Callable, run_dir: Path) -> None:
    session = Session(RunDirectory(run_dir), world())
    session.on_features = interrupt_at(2, session.world, lambda: twice(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        session.run()


def test_a_second_sigterm_leaves_the_save_alone(world: Callable, run_dir: Path) -> None:
    session = Session(RunDirectory(run_dir), world())
    session.on_features = interrupt_at(2, session.world, lambda: twice(signal.SIGTERM))
    with pytest.raises(Stopped, match="SIGTERM came; step 2 of 8 is saved"):
        session.run()
    assert session.directory.store.names() == ("step-00000002",)


def test_a_save_out_of_turn_is_made_once_somebody_asks(world: Callable, tmp_path: Path) -> None:
    session = Session(RunDirectory(tmp_path / "asked"), world())
    session.on_features = interrupt_at(4, session.world, lambda: ask_for_save(tmp_path / "asked"))
    session.run()
    assert [r.step for r in read_log(session.directory.log_path) if isinstance(r, CheckpointRecord)] == [3, 4, 6, 8]
    assert not take_request(tmp_path / "asked")
