"""The training loop: step after step from one progress integer, with saving and evaluating as injected calls."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import torch

from dflash_core.config import Config
from dflash_core.distributed.gradients import Ranks
from dflash_core.distributed.world import naming_lost_ranks
from dflash_core.errors import DflashError, PipelineError, Stopped
from dflash_core.training.batches import StepBatch
from dflash_core.training.hooks import Hooks, News, Position
from dflash_core.training.progress import ProgressLine
from dflash_core.training.records import EvalRecord, Log, ProbeRecord, StepRecord, StopRecord
from dflash_core.training.schedule import learning_rate
from dflash_core.training.step import StepResult, Trainee, train_step
from dflash_core.training.stop_request import StopRequest


@dataclass(frozen=True)
class Timing:
    """Wall seconds of one step."""

    data_wait_s: float
    drafter_s: float
    checkpoint_s: float
    target_s: float
    target_idle_s: float


class Queues(Protocol):
    """How many step batches wait: with features, and for them."""

    def depths(self) -> tuple[int, int]:
        """(with features, collated)."""
        ...


class NoQueues:
    """Data and target run in the loop's own thread."""

    def depths(self) -> tuple[int, int]:
        return 0, 0


@dataclass(frozen=True)
class Run:
    """The parts of a run that stay the same from step to step."""

    config: Config
    trainee: Trainee
    optimizer: torch.optim.Optimizer
    total_steps: int
    log: Log
    progress: ProgressLine | None
    hooks: Hooks
    ranks: Ranks
    queues: Queues = field(default_factory=NoQueues)
    stop_elsewhere: Callable[[], bool] = lambda: False  # a rank that doesn't train was asked to stop
    stop_wanted: Callable[[], str | None] = lambda: None  # what watches the log wants a stop, and why
    save_asked: Callable[[], bool] = lambda: False  # somebody wants a save out of turn


def train_loop(run: Run, batches: Iterator[StepBatch], position: Position, evaluation_due: bool = False) -> Position:
    """Train from `position` to the last step; saves and evaluates every `checkpoint.every` steps and at the end.

    After the last save come `checkpoint.proof_steps` steps that leave nothing but their records. `evaluation_due` makes up for
    the evaluation at `position` that a killed session didn't come to.

    Raises:
        Stopped: SIGTERM or SIGINT came, or a finding that stops runs; the step was finished and saved.
        NonFiniteError: from the step; nothing was saved after it.
        CheckpointError: a save failed; the ones before it are untouched.
        PipelineError: a batch is lost or repeated, or another rank.
    """
    saves = run.hooks.saves
    with StopRequest() as stop:  # over the rescue, too: where a rank has failed, a launcher sends SIGTERM to the others
        try:
            with naming_lost_ranks(run.ranks.index):
                blocked_s = _evaluate(run, position) if evaluation_due else 0.0
                while position.step < run.total_steps:
                    done = _step(run, batches, position, lambda: _signalled(run, stop) or run.stop_wanted() is not None, blocked_s)
                    position = done.position
                    run.log.append(done.record)
                    if run.progress:
                        run.progress.update(done.record)
                    blocked_s = _milestone(run, done)
                    if done.stopping:
                        raise Stopped(_stopped(run, stop, f"step {position.step} of {run.total_steps} is saved"))
                saves.finish(position)
                _probe(run, batches, position, stop)
        except Exception as error:
            reason = "error" if not isinstance(error, Stopped) else "finding" if run.stop_wanted() and not stop.requested else "signal"
            # A full disk may be what stopped the run; its own message counts.
            with suppress(DflashError):
                saves.rescue()
            with suppress(DflashError):
                run.log.append(StopRecord(**run.log.stamp(position.step), reason=reason, message=f"{type(error).__name__}: {error}"))
            raise
        finally:
            saves.close()
    run.log.append(StopRecord(**run.log.stamp(position.step), reason="finished", message=""))
    return position


@dataclass(frozen=True)
class Done:
    """One step, and what all ranks know after it."""

    position: Position
    record: StepRecord
    stopping: bool
    save_asked: bool
    news: News


def _step(run: Run, batches: Iterator[StepBatch], position: Position, stops: Callable[[], bool], blocked_s: float) -> Done:
    began = time.perf_counter()
    depths = run.queues.depths()
    batch = next(batches, None)
    if batch is None:
        raise PipelineError(
            f"the pipeline ended after step {position.step}, expected {run.total_steps} steps: batches are lost. Resume, and report it."
        )
    check_order(batch, position)
    ready = time.perf_counter()
    rate = learning_rate(batch.outline.step, run.total_steps, run.config.training)
    result = train_step(run.trainee, run.optimizer, batch, rate, run.config.training, run.ranks)
    drafter_s = time.perf_counter() - ready
    # Whether to stop is read once, and agreed on: all ranks must stop after the same step, and a signal during a
    # milestone must wait for the next step's save. The same goes for saves, which all ranks begin at the same step.
    wishes = (stops(), run.save_asked())
    stopping, asked, target_s, target_idle_s, *news = run.ranks.sum([*wishes, batch.target_s, batch.target_idle_s, *run.hooks.saves.news()])
    timing = Timing(ready - began, drafter_s, blocked_s, target_s, target_idle_s)
    record = step_record(run.log, batch, result, timing, depths)
    return Done(Position(batch.outline.step, batch.outline.next_sample), record, stopping > 0, asked > 0, news)


def _probe(run: Run, batches: Iterator[StepBatch], position: Position, stop: StopRequest) -> None:
    """Steps past the end: a replay of the last checkpoint has to come to the same losses."""
    for _ in range(run.config.checkpoint.proof_steps):
        done = _step(run, batches, position, lambda: _signalled(run, stop), 0.0)
        position = done.position
        run.log.append(ProbeRecord(**vars(done.record)))
        if done.stopping:
            raise Stopped(_stopped(run, stop, "all steps are saved, but not those that the last checkpoint is proven by"))


def _signalled(run: Run, stop: StopRequest) -> bool:
    return stop.requested or run.stop_elsewhere()


def _stopped(run: Run, stop: StopRequest, state: str) -> str:
    return f"{stop.signal_name or run.stop_wanted() or 'a signal to another rank'} came; {state}. Resume to go on."


def check_order(batch: StepBatch, position: Position) -> None:
    """Raise PipelineError unless this is the batch that comes next: none is lost, none is trained on twice."""
    found, expected = (batch.outline.step, batch.outline.first_sample), (position.step + 1, position.next_sample)
    if found != expected:
        raise PipelineError(
            f"the pipeline handed on step {found[0]} from sample {found[1]}, expected step {expected[0]} from sample {expected[1]}: "
            "a batch is lost or repeated. Nothing was trained on it; resume, and report it."
        )


def step_record(log: Log, batch: StepBatch, result: StepResult, timing: Timing, depths: tuple[int, int]) -> StepRecord:
    """The log's view of one step."""
    outline = batch.outline
    return StepRecord(
        **log.stamp(outline.step),
        epoch=outline.epoch,
        loss=result.loss,
        loss_sum=result.loss_sum,
        denominator=result.denominator,
        per_position_accuracy=result.accuracy_S,
        per_position_count=result.count_S,
        streak=result.streak,
        num_blocks=result.num_blocks,
        grad_norm=result.grad_norm,
        lr=result.learning_rate,
        noise_std=batch.noise_std,
        tokens=outline.tokens,
        padded_tokens=outline.padded_tokens,
        buckets=outline.buckets,
        imbalance=outline.imbalance,
        checksum=outline.checksum,
        first_sample=outline.first_sample,
        last_sample=outline.next_sample - 1,
        hs_queue_depth=depths[0],
        prefetch_queue_depth=depths[1],
        tok_per_s=outline.tokens / (timing.data_wait_s + timing.drafter_s),
        **vars(timing),
    )


def is_milestone(config: Config, step: int, total_steps: int) -> bool:
    """A checkpoint and an evaluation come after this step."""
    return step > 0 and (step == total_steps or step % config.checkpoint.every == 0)


def _milestone(run: Run, done: Done) -> float:
    """Save and evaluate where it is time for it; a run that is stopping saves, and waits for that. Returns the seconds it took."""
    if done.stopping:
        run.hooks.saves.finish(done.position)
        return 0.0
    due = is_milestone(run.config, done.position.step, run.total_steps)
    blocked_s = run.hooks.saves.boundary(done.position, due or done.save_asked, done.news)
    return blocked_s + (_evaluate(run, done.position) if due else 0.0)


def _evaluate(run: Run, position: Position) -> float:
    if run.hooks.evaluate is None:
        return 0.0
    began = time.perf_counter()
    metrics = dict(run.hooks.evaluate(position.step))
    seconds = time.perf_counter() - began
    run.hooks.saves.measured(position.step, metrics)
    if run.progress:
        run.log.append(EvalRecord(**run.log.stamp(position.step), metrics=metrics, seconds=seconds))
        shown = ", ".join(f"{key} {value:.3f}" for key, value in metrics.items() if isinstance(value, float))
        run.progress.note(f"step {position.step}: {shown}")
    return seconds
