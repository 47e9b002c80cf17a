"""The loop of a target rank: features for every micro-batch of its team, in the order of the plan."""

import time
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from dflash_core.config import Config
from dflash_core.data.dataset import Dataset
from dflash_core.data.plan import BatchPlan
from dflash_core.distributed.transport import STOP, FeatureSender, Unit, units_of_step
from dflash_core.distributed.world import World
from dflash_core.errors import Stopped
from dflash_core.training.batches import FeatureSource, pad_ids, stream_steps
from dflash_core.training.run_ahead import RunAhead


def unit_stream(plan: BatchPlan, config: Config, world: World, next_sample: int) -> Iterator[tuple[Unit, Sequence[int], int]]:
    """(unit, dataset rows, padded length) of every micro-batch of every drafter rank, to the stream's end."""
    last, number = stream_steps(plan, config), 0
    while True:
        planned = plan.step_at(next_sample)
        step = planned.epoch * plan.steps_per_epoch + planned.index_in_epoch + 1
        if step > last:
            return
        shares = plan.shares(planned, len(world.drafter_ranks))
        for unit in units_of_step(number, step, tuple(map(len, shares)), world):
            micro = shares[world.drafter_ranks.index(unit.drafter)][unit.place]
            yield unit, micro.rows, micro.padded_length
            number = unit.number + 1
        next_sample = planned.next_sample


def serve_features(
    world: World,
    plan: BatchPlan,
    dataset: Dataset,
    source: FeatureSource,
    config: Config,
    *,
    next_sample: int,
    stop_requested: Callable[[], bool],
) -> None:
    """Compute and send to the end of the run.

    Raises:
        Stopped: the drafter ranks stopped after a signal.
        PipelineError: a drafter rank is gone or stuck.
        Exception: of the data or the target's forward, after it was handed to the drafter rank that waits.
    """

    def own_units() -> Iterator[tuple[Unit, Sequence[int], int]]:
        return (item for item in unit_stream(plan, config, world, next_sample) if item[0].team(world) == world.team)

    def tokens() -> Iterator[Tensor]:
        for _, rows, length in own_units():
            yield pad_ids([dataset.sample(row).input_ids for row in rows], length)

    sender = FeatureSender(world)
    settings = config.distributed
    names = (f"rank {world.rank} (data)", f"rank {world.rank} (target)")
    with RunAhead(tokens(), *names, settings.queue_depth, settings.timeout_s) as stream:
        for unit, rows, _ in own_units():
            word, stopping = _agree_in_team(world, sender, unit, stop_requested())
            if word == STOP:
                if world.leads_team:
                    sender.stop(unit.drafter)
                raise Stopped("The drafter ranks stopped after a signal and saved. Resume to go on.")
            _serve_one(world, sender, source, unit, rows, stream, stopping)
        if world.leads_team:
            sender.finish()


def _agree_in_team(world: World, sender: FeatureSender, unit: Unit, stop_requested: bool) -> tuple[int, bool]:
    """The drafter rank's word, which the leader gets and the team follows, and whether any of the team was asked to stop."""
    told = torch.tensor([sender.wait_for_credit(unit) if world.leads_team else 0, int(stop_requested)])
    if len(world.team) > 1:
        dist.all_reduce(told, dist.ReduceOp.MAX, group=world.team_words)
    word, stopping = told.tolist()
    return word, bool(stopping)


def _serve_one(
    world: World, sender: FeatureSender, source: FeatureSource, unit: Unit, rows: Sequence[int], tokens: Iterator[Tensor], stopping: bool
) -> None:
    try:
        input_ids_BT = next(tokens)
        began = time.perf_counter()
        features_BTF = source(rows, input_ids_BT)
        if features_BTF.is_cuda:  # the time of the work, not of handing it to the GPU; and its errors
            torch.cuda.current_stream().synchronize()
    except Exception as error:
        if world.leads_team:
            sender.fail(unit, error)
        raise
    if world.leads_team:
        sender.send(unit, features_BTF, time.perf_counter() - began, stopping)
