"""What a rank does in a training session: train the drafter, or serve features to those that do."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from dflash_core.checkpoint.contents import Contents, Share
from dflash_core.checkpoint.lineage import make_origin
from dflash_core.checkpoint.resume import PriorRun
from dflash_core.checkpoint.save_request import take_request
from dflash_core.checkpoint.saves import Past, Saves
from dflash_core.checkpoint.snapshot import gathered, restore, take_share
from dflash_core.checkpoint.staging import HostBuffers
from dflash_core.checkpoint.store import CheckpointStore
from dflash_core.config import Config
from dflash_core.distributed.gradients import Alone, DataParallel, FullyShard, Ranks
from dflash_core.distributed.world import World
from dflash_core.drafter.model import Drafter
from dflash_core.stages.train_inputs import Inputs
from dflash_core.stages.watched_log import WatchedLog
from dflash_core.training.batches import total_steps
from dflash_core.training.loop import Hooks, Position, Run, is_milestone, train_loop
from dflash_core.training.optimizer import make_optimizer
from dflash_core.training.pipeline import Pipeline, open_pipeline
from dflash_core.training.progress import ProgressLine
from dflash_core.training.records import Log, LogWriter, SilentLog
from dflash_core.training.serve import serve_features
from dflash_core.training.stop_request import StopRequest


@dataclass(frozen=True)
class Session:
    """One process's part of a run, from where it stands. `prior` and `taken` are known to the writer only."""

    config: Config
    inputs: Inputs
    world: World
    log: LogWriter | SilentLog
    store: CheckpointStore
    prior: PriorRun | None
    position: Position
    evaluation: Any  # stages.train.Evaluation
    taken: Any


def serve(session: Session) -> Position:
    """A target rank: features for the drafter ranks until they are done. Errors as `serve_features`."""
    inputs, config = session.inputs, session.config
    with StopRequest() as stop:
        serve_features(
            session.world,
            inputs.plan,
            inputs.dataset,
            inputs.source,
            config,
            next_sample=session.position.next_sample,
            stop_requested=lambda: stop.requested,
        )
    return session.position


def train_drafter(session: Session) -> Position:
    """A drafter rank: put the state back, and train to the end. Errors as `train_loop`."""
    config, inputs, world = session.config, session.inputs, session.world
    drafter = inputs.trainee.drafter
    ranks = join_ranks(drafter, config, world)
    optimizer = make_optimizer(drafter, config.training)
    _restore(session, drafter, optimizer)
    drafter.train()
    steps = total_steps(inputs.plan, config)
    begun = session.position
    with (
        open_pipeline(inputs.plan, inputs.dataset, inputs.source, config, world, inputs.target.device, next_sample=begun.next_sample) as pipeline,
        ProgressLine(steps, begun.step) if world.is_writer else nullcontext() as progress,
    ):
        run = _make_run(session, optimizer, ranks, pipeline, progress)
        return train_loop(run, pipeline.batches, begun, _evaluation_due(session, steps))


def join_ranks(drafter: Drafter, config: Config, world: World) -> Ranks:
    """How this rank's drafter becomes one with those of the others; shards it in place under fsdp2."""
    if len(world.drafter_ranks) == 1:
        return Alone(drafter)
    way = FullyShard if config.distributed.parallel == "fsdp2" else DataParallel
    return way(drafter, world.device_group, world.drafters)


def _make_run(
    session: Session, optimizer: torch.optim.Optimizer, ranks: Ranks, pipeline: Pipeline, progress: ProgressLine | None
) -> Run:
    config, inputs, log = session.config, session.inputs, session.log
    drafter, writes = inputs.trainee.drafter, session.world.is_writer
    loaded = session.prior.loaded if session.prior else None
    for reason in loaded.skipped if loaded else ():
        progress.note(f"passed over: {reason}")

    def measure(step: int) -> Mapping[str, float | None]:
        measured = _whole_drafter(drafter, ranks, writes)
        if measured is None:
            return {}
        measured.eval()
        try:
            return session.evaluation.measure(session.taken, inputs.target, measured, step)
        finally:  # a left-on eval() is among the faults that a loss curve hides
            measured.train()

    receiver = getattr(inputs.source, "receiver", None)
    watched = _watched(session, progress)
    return Run(
        config,
        inputs.trainee,
        optimizer,
        total_steps(inputs.plan, config),
        watched or log,
        progress,
        Hooks(_make_saves(session, optimizer, ranks, watched or log), measure if session.evaluation else None),
        ranks,
        pipeline,
        stop_elsewhere=lambda: receiver is not None and receiver.stop_requested,
        stop_wanted=watched.stop_wanted if watched else lambda: None,
        save_asked=lambda: writes and take_request(session.store.root.parent),
    )


def _watched(session: Session, progress: ProgressLine | None) -> WatchedLog | None:
    """The writer's log, watched, where the configuration wants it."""
    if progress is None or not session.config.watch.enabled:
        return None
    earlier = session.prior.recent if session.prior else ()
    return WatchedLog(session.log, session.config.watch, progress.note, earlier, resumed_at=session.position.step)


def _make_saves(session: Session, optimizer: torch.optim.Optimizer, ranks: Ranks, log: Log) -> Saves:
    """Of shards every rank saves its own; of a whole drafter the writer saves all."""
    world, inputs, prior = session.world, session.inputs, session.prior
    index, count = (ranks.index, ranks.num_ranks) if isinstance(ranks, FullyShard) else (0, 1)
    buffers = HostBuffers()
    optimizer.register_step_pre_hook(lambda *_: buffers.before_update())

    def share(at: Position) -> Share | None:
        if count == 1 and not world.is_writer:
            return None
        return take_share(
            inputs.trainee.drafter,
            optimizer,
            step=at.step,
            next_sample=at.next_sample,
            run_id=session.log.run_id,
            identity=inputs.identity,
            index=index,
            count=count,
        )

    loaded = prior.loaded if prior else None
    past = Past(session.position.step)
    if loaded:
        past = Past(loaded.committed.step, loaded.committed.digest, loaded.passed_over, prior.taus)
    origin = make_origin(session.config, inputs.identity, session.log.run_id, session.log.session_id, world.describe()) if world.is_writer else {}
    token = _tell_drafters(world, session.log.session_id[:8])
    return Saves(share, buffers, session.store, ranks, log, session.config, origin, token, past)


def _whole_drafter(drafter: Drafter, ranks: Ranks, wanted: bool) -> Drafter | None:
    """The drafter itself, or a whole copy of a sharded one (collective); None where it isn't `wanted`."""
    if not isinstance(ranks, FullyShard):
        return drafter if wanted else None
    state = gathered(drafter.state_dict(), wanted)
    if not wanted:
        return None
    with torch.random.fork_rng(devices=[]):  # the weights it draws are not the run's, and a checkpoint holds the generators
        whole = Drafter(drafter.spec)
    whole.load_state_dict(state)
    whole.to(next(drafter.parameters()).device)
    return whole


def _evaluation_due(session: Session, steps: int) -> bool:
    """A killed session saved at this step and didn't come to the evaluation. All drafter ranks agree, since it may be collective."""
    prior, at = session.prior, session.position.step
    due = prior is not None and at not in prior.evaluated_steps and is_milestone(session.config, at, steps)
    return bool(_tell_drafters(session.world, due))


def _restore(session: Session, drafter: Drafter, optimizer: torch.optim.Optimizer) -> None:
    """The newest good checkpoint, which only the writer has read, in all drafter ranks."""
    loaded = session.prior.loaded if session.prior else None
    if session.position.step == 0:
        return
    contents = loaded.contents if loaded else None
    if len(session.world.drafter_ranks) > 1:
        contents = _share_contents(session.world, contents)
    restore(contents, drafter, optimizer)


def _share_contents(world: World, contents: Contents | None) -> Contents:
    """Checkpoint contents from the writer to all drafter ranks, tensor by tensor."""
    outline = None
    if contents is not None:
        outline = (contents.step, contents.state, *({k: (v.shape, v.dtype) for k, v in part.items()} for part in (contents.weights, contents.moments)))
    step, state, *shapes = _tell_drafters(world, outline)
    parts = []
    for place, named in enumerate(shapes):
        mine = {} if contents is None else (contents.weights, contents.moments)[place]
        part = {name: mine[name].contiguous() if mine else torch.empty(shape, dtype=dtype) for name, (shape, dtype) in named.items()}
        for tensor in part.values():
            dist.broadcast(tensor, world.drafter_ranks[0], group=world.drafters)
        parts.append(part)
    return Contents(step, parts[0], parts[1], state)


def _tell_drafters(world: World, thing: Any) -> Any:
    """The writer's object in all drafter ranks."""
    if len(world.drafter_ranks) == 1:
        return thing
    box = [thing]
    dist.broadcast_object_list(box, world.drafter_ranks[0], world.drafters)
    return box[0]
