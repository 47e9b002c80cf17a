"""Data and features of a drafter rank, each in a thread of its own, a bounded number of steps ahead of the loop."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from dflash_core.config import Config
from dflash_core.data.dataset import Dataset
from dflash_core.data.plan import BatchPlan
from dflash_core.distributed.transport import FeatureReceiver
from dflash_core.distributed.world import World
from dflash_core.errors import Stopped
from dflash_core.training.batches import CollatedStep, FeatureSource, StepBatch, collated_steps, with_features
from dflash_core.training.run_ahead import RunAhead
from dflash_core.training.serve import unit_stream
from dflash_core.training.side_stream import SideStream


@dataclass(frozen=True)
class Pipeline:
    """Step batches in order, and how many wait."""

    collated: RunAhead[CollatedStep]
    batches: RunAhead[StepBatch]

    def depths(self) -> tuple[int, int]:
        """Steps that wait (with features, for them)."""
        return self.batches.waiting, self.collated.waiting


@contextmanager
def open_pipeline(
    plan: BatchPlan, dataset: Dataset, source: FeatureSource, config: Config, world: World, device: torch.device, *, next_sample: int
) -> Iterator[Pipeline]:
    """Run ahead of the loop from the step that begins at sample `next_sample`; leaving joins both threads.

    Leaving by Stopped ends the stream of received features, too, so that all ranks of the run stop.
    """
    me = world.drafter_ranks.index(world.rank)
    settings = config.distributed
    limits = (settings.queue_depth, settings.timeout_s)
    steps = collated_steps(plan, dataset, config, next_sample=next_sample, rank=me, num_ranks=len(world.drafter_ranks))
    names = [f"rank {world.rank} ({part})" for part in ("data", "target", "drafter")]
    receiver = source.receiver if isinstance(source, ReceivedFeatures) else None
    targets = len(world.drafter_ranks)  # each has its own; the sum over ranks is then what an average one did
    totals = {"busy": lambda: time.perf_counter() / targets, "idle": lambda: ahead.channel.blocked_s / targets}
    if receiver:
        source.start(next_sample)
        totals = {"busy": lambda: receiver.busy_s, "idle": lambda: receiver.idle_s}
    with RunAhead(steps, names[0], names[1], *limits) as collated:
        stream = with_features(collated, source, config, SideStream(device), **totals)
        ahead = RunAhead(_drained(stream, receiver) if receiver else stream, names[1], names[2], *limits)
        with _stream_ends(receiver), ahead, _stream_stops(receiver):
            yield Pipeline(collated, ahead)


def _drained(stream: Iterator[StepBatch], receiver: FeatureReceiver) -> Iterator[StepBatch]:
    """The stream, and then the teams' end, so that they need not wait for the loop's."""
    yield from stream
    receiver.drain()


@contextmanager
def _stream_stops(receiver: FeatureReceiver | None) -> Iterator[None]:
    """Before the join of the thread that receives: it may wait for features that no team will send any more."""
    try:
        yield
    except Stopped:
        if receiver:
            receiver.stop()
        raise


@contextmanager
def _stream_ends(receiver: FeatureReceiver | None) -> Iterator[None]:
    """After the join, since only one thread may receive."""
    try:
        yield
    except Stopped:
        if receiver:
            receiver.drain()
        raise


class ReceivedFeatures:
    """The feature source of a drafter rank in placement `split`: what the target ranks send, in the order of the plan."""

    def __init__(self, receiver: FeatureReceiver, plan: BatchPlan, config: Config, world: World) -> None:
        self.receiver = receiver
        self._plan, self._config, self._world = plan, config, world
        self._units: Iterator | None = None

    def start(self, next_sample: int) -> None:
        """Where the session begins; called once, before the first features."""
        stream = unit_stream(self._plan, self._config, self._world, next_sample)
        self._units = (unit for unit, _, _ in stream if unit.drafter == self._world.rank)

    def __call__(self, rows: Sequence[int], input_ids_BT: Tensor) -> Tensor:
        return self.receiver.receive(next(self._units), tuple(input_ids_BT.shape))


def local_features(features: Callable[[Tensor, Sequence[int]], Tensor], layer_ids: Sequence[int], device: torch.device) -> FeatureSource:
    """The target's own forward on this rank."""
    return lambda rows, input_ids_BT: features(input_ids_BT.to(device), layer_ids)
