"""Stage `train`: opens the inputs, begins or continues the run, and trains it to its end."""

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from dflash_core.checkpoint.resume import PriorRun, Resume, RunDirectory, find_prior_run
from dflash_core.checkpoint.snapshot import check_identity, restore, take_snapshot
from dflash_core.checkpoint.store import CheckpointStore, Committed
from dflash_core.config import Config
from dflash_core.drafter.model import Drafter
from dflash_core.stages.train_inputs import Inputs, open_inputs
from dflash_core.training.batches import batches, total_steps
from dflash_core.training.determinism import make_repeatable
from dflash_core.training.loop import Hooks, Position, Run, is_milestone, train_loop
from dflash_core.training.optimizer import make_optimizer
from dflash_core.training.progress import ProgressLine
from dflash_core.training.records import LogWriter, ResumeRecord, StartRecord

Evaluate = Callable[[Drafter, int], Mapping[str, float | None]]


@dataclass(frozen=True)
class TrainOutcome:
    """Where training ended; `checkpoint` is the last one committed."""

    run_id: str
    final_step: int
    checkpoint: Path


def train(
    config: Config, workdir: Path, *, resume: Resume, make_evaluate: Callable[[Inputs], Evaluate] | None = None
) -> TrainOutcome:
    """Train a drafter, or go on with it.

    Args:
        config: the run; paths in it are relative to `workdir`.
        workdir: holds build/prepared and build/plan, and gets runs/NAME.
        resume: False begins and refuses where a run exists; True continues and refuses where there is none;
            "auto" does what the directory asks for. A finished run is returned as it is.
        make_evaluate: called once with the opened inputs; its result is called at every checkpoint.

    Raises:
        ConfigError, DataError, IdentityError, CheckpointError: inputs or the run directory are not fit.
        Stopped: a signal came; the state is saved.
        NonFiniteError: a loss or gradient is NaN or infinite; the last checkpoint is untouched.
    """
    directory = RunDirectory(workdir / config.run_dir)
    find_prior_run(directory, resume)  # refuse before the minutes that loading may take
    make_repeatable(config.training.deterministic, config.training.seed)
    inputs = open_inputs(config, workdir)
    optimizer = make_optimizer(inputs.trainee.drafter, config.training)
    with LogWriter(directory.log_path) as log:
        prior = find_prior_run(directory, resume)
        if prior is not None:
            check_identity(prior.identity, inputs.identity, directory.path)
        # After the check, since building it can take minutes; before the state is put back, since it may draw random numbers.
        measured = make_evaluate is not None and config.checkpoint.evaluate and not (prior is not None and prior.finished)
        evaluate = make_evaluate(inputs) if measured else None
        position = _begin_or_continue(inputs, optimizer, prior)
        if prior is not None and prior.finished:
            return _outcome(prior.run_id, position, directory.store)
        _log_session(config, inputs, prior, position, log)
        position = _train(config, inputs, optimizer, position, log, directory.store, evaluate, prior)
        return _outcome(log.run_id, position, directory.store)


def _begin_or_continue(inputs: Inputs, optimizer: torch.optim.Optimizer, prior: PriorRun | None) -> Position:
    """Put back the state of the newest good checkpoint, if there is one."""
    if prior is None or prior.loaded is None:
        return Position(0, 0)
    restore(prior.loaded.contents, inputs.trainee.drafter, optimizer)
    state = prior.loaded.contents.state
    return Position(state["step"], state["next_sample"])


def _log_session(config: Config, inputs: Inputs, prior: PriorRun | None, position: Position, log: LogWriter) -> None:
    shared = {"total_steps": total_steps(inputs.plan, config), "config": config.model_dump(mode="json"), "versions": _versions()}
    if prior is None:
        log.append(StartRecord(**log.stamp(0), **shared, samples_per_epoch=len(inputs.dataset), identity=dict(inputs.identity)))
        return
    log.adopt(prior.run_id)
    committed = prior.loaded.committed if prior.loaded else None
    log.append(
        ResumeRecord(
            **log.stamp(position.step),
            **shared,
            next_sample=position.next_sample,
            checkpoint=committed.name if committed else None,
            digest=committed.digest if committed else None,
            skipped=prior.loaded.skipped if prior.loaded else (),
        )
    )


def _train(
    config: Config,
    inputs: Inputs,
    optimizer: torch.optim.Optimizer,
    position: Position,
    log: LogWriter,
    store: CheckpointStore,
    evaluate: Evaluate | None,
    prior: PriorRun | None,
) -> Position:
    steps = total_steps(inputs.plan, config)
    drafter = inputs.trainee.drafter
    passed_over = set(prior.loaded.passed_over if prior and prior.loaded else ())

    def save(at: Position) -> Committed:
        contents = take_snapshot(
            drafter, optimizer, step=at.step, next_sample=at.next_sample, run_id=log.run_id, identity=inputs.identity
        )
        committed = store.save(contents)
        passed_over.discard(committed.name)  # it took the place of one
        store.prune(config.checkpoint.keep_last, config.checkpoint.keep_every, passed_over)
        return committed

    def measure(step: int) -> Mapping[str, float | None]:
        drafter.eval()
        try:
            return evaluate(drafter, step)
        finally:  # a left-on eval() is among the faults that a loss curve hides
            drafter.train()

    drafter.train()
    evaluation_due = (
        prior is not None and position.step not in prior.evaluated_steps and is_milestone(config, position.step, steps)
    )
    stream = batches(inputs.plan, inputs.dataset, inputs.source, config, next_sample=position.next_sample)
    with ProgressLine(steps, position.step) as progress:
        for reason in prior.loaded.skipped if prior and prior.loaded else ():
            progress.note(f"passed over: {reason}")
        run = Run(config, inputs.trainee, optimizer, steps, log, progress, Hooks(save, measure if evaluate else None))
        return train_loop(run, stream, position, evaluation_due)


def _outcome(run_id: str, position: Position, store: CheckpointStore) -> TrainOutcome:
    return TrainOutcome(run_id, position.step, store.root / store.names()[-1])


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__}
