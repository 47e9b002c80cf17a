"""Pipeline, loop and transport together: all ranks stop after one step, errors of a target surface, nothing is lost."""

import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from memory_world import NotedSaves
from torch import Tensor

from dflash_core.distributed.gradients import Alone, DataParallel
from dflash_core.distributed.transport import FeatureReceiver
from dflash_core.distributed.world import World
from dflash_core.errors import PipelineError, Stopped
from dflash_core.training.batches import total_steps
from dflash_core.training.loop import Hooks, Position, Run, train_loop
from dflash_core.training.optimizer import make_optimizer
from dflash_core.training.pipeline import ReceivedFeatures, open_pipeline
from dflash_core.training.records import SilentLog
from dflash_core.training.serve import serve_features
from dflash_core.training.stop_request import StopRequest

CPU = torch.device("cpu")
START = Position(0, 0)
pytestmark = pytest.mark.distributed


@dataclass(frozen=True)
class Mishap:
    """What a rank does when the target's forward number `at` of its own comes: a signal to itself, or an error."""

    rank: int
    at: int
    kind: str


class Target:
    """The table, with its mishap."""

    def __init__(self, here: Any, world: World, mishap: Mishap | None) -> None:
        self._here, self._mishap = here, mishap if mishap and mishap.rank == world.rank else None
        self._calls = 0

    def __call__(self, rows: Sequence[int], input_ids_BT: Tensor) -> Tensor:
        self._calls += 1
        if self._mishap and self._calls == self._mishap.at:
            if self._mishap.kind == "signal":
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                self._fall_over()
        return self._here.source(rows, input_ids_BT)

    def _fall_over(self) -> None:
        raise ZeroDivisionError("in the forward")


def session(world: World, make_memory_world: Callable[..., Any], settings: dict[str, Any], mishap: Mishap | None) -> str:
    """One rank's part of a run, in words: where it ended, and how. No thread of it is left."""
    here = make_memory_world(distributed=settings | {"timeout_s": 30.0})
    target = Target(here, world, mishap)
    try:
        ended = drafter(world, here, target) if world.trains else team(world, here, target)
    except Stopped as stopped:
        ended = f"stopped: {stopped}"
    except (PipelineError, ZeroDivisionError) as error:
        ended = f"{type(error).__name__}: {error}"
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("rank ")]
    return ended if not left else f"threads are left: {left}"


def team(world: World, here: Any, target: Target) -> str:
    with StopRequest() as stop:
        serve_features(
            world, here.plan, here.dataset, target, here.config, next_sample=0, stop_requested=lambda: stop.requested
        )
    return "served"


def drafter(world: World, here: Any, target: Target) -> str:
    model, source, receiver = here.trainee.drafter, target, None
    if world.is_split:
        receiver = FeatureReceiver(world, model.spec.features_size, torch.float32, CPU)
        source = ReceivedFeatures(receiver, here.plan, here.config, world)
    ranks = Alone(model) if len(world.drafter_ranks) == 1 else DataParallel(model, world.device_group, world.drafters)
    saved: list[int] = []
    try:
        # The target runs ahead: its signal may come before the loop listens.
        with StopRequest() as early, open_pipeline(here.plan, here.dataset, source, here.config, world, CPU, next_sample=0) as pipeline:
            run = Run(
                here.config, here.trainee, make_optimizer(model, here.config.training), total_steps(here.plan, here.config), SilentLog(), None,
                Hooks(NotedSaves(saved), None), ranks, pipeline,
                stop_elsewhere=lambda: early.requested or (receiver is not None and receiver.stop_requested),
            )  # fmt: skip
            position = train_loop(run, pipeline.batches, START)
    except Stopped:
        assert saved, "it stops after a save"
        raise
    return f"trained {position.step}, digest {sum(float(p.double().sum()) for p in model.parameters()):.6f}"


SPLIT_2_1 = {"placement": "split", "target_ranks": 1}
SPLIT_1_2 = {"placement": "split", "target_ranks": 2}
SPLIT_2_2_TOGETHER = {"placement": "split", "target_ranks": 2, "tensor_parallel": 2}


@pytest.mark.parametrize(("size", "settings"), [(2, {}), (3, SPLIT_2_1), (3, SPLIT_1_2), (4, SPLIT_2_2_TOGETHER)])
def test_a_run_ends_in_all_ranks(in_ranks: Callable[..., list], memory_world: Callable[..., Any], size: int, settings: dict[str, Any]) -> None:
    found = in_ranks(size, settings, session, memory_world, settings, None)
    targets = settings.get("target_ranks", 0)
    assert found[size - targets :] == ["served"] * targets
    assert len(set(found[: size - targets])) == 1 and found[0].startswith("trained 8, "), "weights are equal in all ranks"


@pytest.mark.parametrize(
    ("size", "settings", "signalled"),
    [(2, {}, 0), (2, {}, 1), (3, SPLIT_2_1, 2), (3, SPLIT_1_2, 2), (4, SPLIT_2_2_TOGETHER, 2), (4, SPLIT_2_2_TOGETHER, 3)],
)
def test_a_signal_to_any_rank_stops_all_after_one_step(
    in_ranks: Callable[..., list], memory_world: Callable[..., Any], size: int, settings: dict[str, Any], signalled: int
) -> None:
    """A target rank, a team's second one included, hands the word on with its features."""
    found = in_ranks(size, settings, session, memory_world, settings, Mishap(signalled, 4, "signal"))
    targets = settings.get("target_ranks", 0)
    drafters = found[: size - targets]
    steps = {text.split("; ")[1] for text in drafters}
    assert all(text.startswith("stopped: ") for text in drafters) and len(steps) == 1 and "of 8 is saved" in steps.pop()
    assert all(text == "stopped: The drafter ranks stopped after a signal and saved. Resume to go on." or text == "served" for text in found[size - targets :])


def test_an_error_of_a_target_ends_all_ranks_and_says_where_it_was(in_ranks: Callable[..., list], memory_world: Callable[..., Any]) -> None:
    first, second, target = in_ranks(3, SPLIT_2_1, session, memory_world, SPLIT_2_1, Mishap(2, 5, "error"))
    assert target == "ZeroDivisionError: in the forward"
    told = [text for text in (first, second) if text.startswith("PipelineError: rank 2 (target) failed at step")]
    assert told and all("in _fall_over" in text for text in told)
    assert all(text.startswith("PipelineError: ") for text in (first, second))
