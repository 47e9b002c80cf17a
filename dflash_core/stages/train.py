"""Stage `train`: opens the inputs, begins or continues the run, and trains it to its end; one process or many.

Every rank runs this. The writer decides where the run stands and tells the others; ranks that only run the target
serve features until the drafter ranks are done.
"""

import platform
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers
from rich.console import Console

from dflash_core.checkpoint.resume import PriorRun, Resume, RunDirectory, find_prior_run, holds_run
from dflash_core.checkpoint.snapshot import check_identity
from dflash_core.checkpoint.store import CheckpointStore
from dflash_core.config import Config
from dflash_core.distributed.world import LEADER, World, join_processes, make_world, split_ranks
from dflash_core.drafter.model import Drafter
from dflash_core.drafter.spec import DrafterSpec
from dflash_core.stages.calibrate import calibrate
from dflash_core.stages.train_inputs import Inputs, open_inputs
from dflash_core.stages.train_ranks import Session, serve, train_drafter
from dflash_core.target.ends import TargetEnds
from dflash_core.target.model import Target
from dflash_core.training.batches import total_steps
from dflash_core.training.determinism import conditions, make_repeatable
from dflash_core.training.loop import Position
from dflash_core.training.records import LogWriter, ResumeRecord, SilentLog, StartRecord


class Evaluation(Protocol):
    """What is measured at every checkpoint. The two halves may run in two ranks."""

    def take(self, target: Target, spec: DrafterSpec) -> Any:
        """Everything that needs the whole target; called once."""
        ...

    def measure(self, taken: Any, ends: TargetEnds, drafter: Drafter, step: int) -> Mapping[str, float | None]:
        """Measure a drafter."""
        ...


@dataclass(frozen=True)
class TrainOutcome:
    """Where training ended; `checkpoint` is the last one committed."""

    run_id: str
    final_step: int
    checkpoint: Path


def train(
    config: Config, workdir: Path, *, resume: Resume, evaluation: Evaluation | None = None, forced: Collection[str] = ()
) -> TrainOutcome | None:
    """Train a drafter, or go on with it.

    Args:
        config: the run; paths in it are relative to `workdir`.
        workdir: holds build/prepared and build/plan, and gets runs/NAME.
        resume: False begins and refuses where a run exists; True continues and refuses where there is none;
            "auto" does what the directory asks for. A finished run is returned as it is.
        evaluation: measured at every checkpoint, where the configuration wants it.
        forced: fields of the run's identity that may differ at a resume.

    Returns:
        The outcome, on the rank that writes; None on others.

    Raises:
        ConfigError, DataError, IdentityError, CheckpointError: inputs or the run directory are not fit.
        Stopped: a signal came, or a finding that stops runs; the state is saved.
        NonFiniteError: a loss or gradient is NaN or infinite; the last checkpoint is untouched.
        PipelineError: another rank is gone, stuck or failed.
    """
    directory = RunDirectory(workdir / config.run_dir)
    with join_processes(config.distributed) as (rank, size), ExitStack() as stack:
        if rank == LEADER:
            holds_run(directory, resume)  # refuse before the minutes that loading may take
        split_ranks(config.distributed, size)  # and a world that is too small for it
        calibration = calibrate(config, workdir, rank, size)
        world = make_world(config.distributed, rank, size, calibration.target_ranks if calibration else None)
        if calibration and world.is_writer:
            Console(stderr=True).print(calibration.sentence(size), highlight=False, soft_wrap=True)
        make_repeatable(config.training.deterministic, config.training.seed)
        inputs = open_inputs(config, workdir, world)
        log = stack.enter_context(LogWriter(directory.log_path)) if world.is_writer else SilentLog()
        prior = find_prior_run(directory, resume) if world.is_writer else None
        changed = check_identity(prior.identity, inputs.identity, directory.path, forced) if prior else {}
        finished = world.tell(prior is not None and prior.finished)
        if not finished:
            described = world.describe() | {"conditions": conditions(inputs.target.device)}
            described |= {"calibration": calibration.describe()} if calibration else {}
            session = _open_session(config, inputs, world, described, log, directory.store, prior, evaluation, changed)
            position = train_drafter(session) if world.trains else serve(session)
        elif world.is_writer:
            position = position_of(prior)
        if not world.is_writer:
            return None
        run_id = prior.run_id if finished else log.run_id
        return TrainOutcome(run_id, position.step, directory.store.root / directory.store.names()[-1])


def _open_session(
    config: Config,
    inputs: Inputs,
    world: World,
    described: Mapping[str, Any],
    log: LogWriter | SilentLog,
    store: CheckpointStore,
    prior: PriorRun | None,
    evaluation: Evaluation | None,
    changed: Mapping[str, Any],
) -> Session:
    """Agree on where the run stands, and take what evaluation needs."""
    # Before the state is put back, since it may draw random numbers.
    evaluation = evaluation if config.checkpoint.evaluate else None
    taken = evaluation.take(inputs.target, inputs.spec) if evaluation and world.serves_writer else None
    taken = world.hand_over(taken, world.target_leader, LEADER) if evaluation else None
    position = world.tell(position_of(prior))
    if world.is_writer:
        _log_session(config, inputs, described, prior, position, log, changed)
    return Session(config, inputs, world, log, store, prior, position, evaluation, taken)


def position_of(prior: PriorRun | None) -> Position:
    """Where the newest good checkpoint stands."""
    if prior is None or prior.loaded is None:
        return Position(0, 0)
    state = prior.loaded.contents.state
    return Position(state["step"], state["next_sample"])


def _log_session(
    config: Config,
    inputs: Inputs,
    world: Mapping[str, Any],
    prior: PriorRun | None,
    position: Position,
    log: LogWriter,
    changed: Mapping[str, Any],
) -> None:
    shared = {
        "total_steps": total_steps(inputs.plan, config),
        "config": config.model_dump(mode="json"),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__},
        "world": dict(world),
    }
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
            forced=dict(changed),
        )
    )
