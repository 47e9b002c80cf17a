"""Runs the pipeline before the loop with slow parts, errors and saves at bad moments, and compares what arrives with the plan.

    python benchmarks/lost_batches.py --n 1000 --seed 0 --json lost.json

A world in memory, with the threads and channels of training and, where targets are ranks of their own, its transport over
gloo. Every 25 steps another part is slow: data, target, consumer or none. At random steps the consumer waits until all
channels are full, notes its position as a save would, stops, and goes on from there as a resumed session would. Every
step's ids must be those of the plan, once and in order, and its features those of its tokens. Then errors are injected,
each into a run of its own: it must surface in the consumer with its own traceback, after every step before it.
Exit status 0 means that all of it holds.
"""

import argparse
import random
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import memory_world
import torch
from forked_ranks import on_ranks
from memory_world import MemoryDataset, MemoryWorld
from results import leave
from torch import Tensor

from dflash_core.data.dataset import Sample
from dflash_core.distributed.transport import FeatureReceiver
from dflash_core.distributed.world import World, join_processes, make_world
from dflash_core.errors import Stopped
from dflash_core.training.batches import StepBatch
from dflash_core.training.pipeline import Pipeline, ReceivedFeatures, open_pipeline
from dflash_core.training.serve import serve_features, unit_stream

SLOW_S = 0.004
PHASE_STEPS = 25
FULL_S = 60.0
TIMEOUT_S = 60.0
STOP_S = 20.0  # a stop that has to wait for the timeout is a stop that hangs
CPU = torch.device("cpu")
LAYOUTS = {"1": (1, 0), "1+1": (2, 1), "1+2": (3, 2), "2+1": (3, 1)}  # processes, and how many of them run the target only
PLACES = ("data", "target", "target's data")


class Injected(Exception):
    """The error that a producer is made to raise."""


@dataclass(frozen=True)
class Trial:
    """One run: after the steps `saves` it stops and goes on, and `error` (place, step) is what goes wrong."""

    size: int
    target_ranks: int
    steps: int
    seed: int
    saves: tuple[int, ...] = ()
    error: tuple[str, int] | None = None

    def world(self) -> MemoryWorld:
        """Rows, plan and target; equal on all ranks."""
        split = {"placement": "split", "target_ranks": self.target_ranks} if self.target_ranks else {}
        training = {"epochs": self.steps, "max_steps": self.steps}
        return memory_world.make_world(48, training=training, distributed={"timeout_s": TIMEOUT_S} | split)

    def slow_part(self, step: int) -> str:
        """Which part dawdles at about this step."""
        return random.Random(f"{self.seed} {step // PHASE_STEPS}").choice((*PLACES, "consumer", "none"))


@dataclass
class Witness:
    """What one rank has seen; `steps` are those that it consumed, with their ids."""

    steps: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    features_right: bool = True
    deepest: int = 0
    full_saves: int = 0
    slowest_stop_s: float = 0.0
    error: str = ""


class Dawdler:
    """A part that sleeps where it is its turn, and raises where the trial says so. `steps` are those of its pieces of work."""

    def __init__(self, part: str, trial: Trial, steps: Iterator[int]) -> None:
        self._part, self._trial, self._steps = part, trial, steps
        self._random = random.Random(f"{trial.seed} {part}")

    def work(self) -> None:
        """Call once for each piece of work."""
        step = next(self._steps)
        if self._trial.error == (self._part, step):
            raise Injected(f"{self._part} broke at step {step}")
        if self._trial.slow_part(step) == self._part:
            time.sleep(self._random.uniform(0, SLOW_S))


class SlowDataset:
    """The rows, read by a dawdler."""

    def __init__(self, dataset: MemoryDataset, dawdler: Dawdler) -> None:
        self._dataset, self._dawdler = dataset, dawdler
        self.lengths, self.sample_id = dataset.lengths, dataset.sample_id

    def sample(self, row: int) -> Sample:
        self._dawdler.work()
        return self._dataset.sample(row)


class RankRun:
    """One rank's part of a trial."""

    def __init__(self, trial: Trial, rank: int, size: int) -> None:
        self._trial, self._rank, self._size = trial, rank, size
        self._here = trial.world()
        self._stopped_at = 0.0
        self.witness = Witness()

    def run(self) -> None:
        """All sessions, or those up to an error."""
        begun = 0
        for stop in (*self._trial.saves, 0):
            world = make_world(self._here.config.distributed, self._rank, self._size)
            session = self._consume if world.trains else self._serve
            try:
                session(world, self._here.plan.step_number(begun).first_sample, stop)
            except Stopped:
                begun = stop
            except Exception:  # noqa: BLE001 - what it is, is looked at
                self.witness.error = traceback.format_exc()
                return

    def _serve(self, world: World, next_sample: int, stop: int) -> None:
        stream = unit_stream(self._here.plan, self._here.config, world, next_sample)
        pieces = [(unit.step, len(rows)) for unit, rows, _ in stream if unit.team(world) == world.team]
        dataset, target = self._parts("target's data", pieces)
        serve_features(
            world, self._here.plan, dataset, target, self._here.config, next_sample=next_sample, stop_requested=lambda: False
        )

    def _consume(self, world: World, next_sample: int, stop: int) -> None:
        plan, config = self._here.plan, self._here.config
        dataset, source = self._parts("data", list(self._own_pieces(world, next_sample)))
        if world.is_split:
            receiver = FeatureReceiver(world, self._here.trainee.drafter.spec.features_size, torch.float32, CPU)
            source = ReceivedFeatures(receiver, plan, config, world)
        with self._timed_stop(), open_pipeline(plan, dataset, source, config, world, CPU, next_sample=next_sample) as pipeline:
            self._consume_all(pipeline, stop)

    def _consume_all(self, pipeline: Pipeline, stop: int) -> None:
        draw = random.Random(f"{self._trial.seed} consumer {self._rank}")
        for batch in pipeline.batches:
            self._note(batch, pipeline)
            if self._trial.slow_part(batch.outline.step) == "consumer":
                time.sleep(draw.uniform(0, SLOW_S))
            if batch.outline.step == stop:
                self.witness.full_saves += self._comes_to_be_full(pipeline)
                self._stopped_at = time.perf_counter()
                raise Stopped("as after a save")

    @contextmanager
    def _timed_stop(self) -> Iterator[None]:
        try:
            yield
        except Stopped:
            self.witness.slowest_stop_s = max(self.witness.slowest_stop_s, time.perf_counter() - self._stopped_at)
            raise

    def _note(self, batch: StepBatch, pipeline: Pipeline) -> None:
        self.witness.steps.append((batch.outline.step, batch.sample_ids))
        self.witness.deepest = max(self.witness.deepest, *pipeline.depths())
        for micro in batch.micro_batches:
            self.witness.features_right &= torch.equal(micro.features_BTF, self._here.source((), micro.batch.input_ids_BT))

    def _comes_to_be_full(self, pipeline: Pipeline) -> bool:
        """Wait for the producers to fill every channel."""
        depth = self._here.config.distributed.queue_depth
        deadline = time.monotonic() + FULL_S
        while pipeline.depths() != (depth, depth) and time.monotonic() < deadline:
            time.sleep(0.001)
        return pipeline.depths() == (depth, depth)

    def _own_pieces(self, world: World, next_sample: int) -> Iterator[tuple[int, int]]:
        """(step, rows) of each micro-batch of this drafter rank."""
        plan = self._here.plan
        while (step := plan.step_at(next_sample)).first_sample < plan.step_number(self._trial.steps).first_sample:
            number = step.epoch * plan.steps_per_epoch + step.index_in_epoch + 1
            for micro in plan.shares(step, len(world.drafter_ranks))[self._rank]:
                yield number, len(micro.rows)
            next_sample = step.next_sample

    def _parts(self, data: str, pieces: Sequence[tuple[int, int]]) -> tuple[SlowDataset, Any]:
        """Data and target that dawdle in these micro-batches."""
        rows = Dawdler(data, self._trial, iter([step for step, num_rows in pieces for _ in range(num_rows)]))
        forwards = Dawdler("target", self._trial, iter([step for step, _ in pieces]))

        def source(rows: Sequence[int], input_ids_BT: Tensor) -> Tensor:
            forwards.work()
            return self._here.source(rows, input_ids_BT)

        return SlowDataset(self._here.dataset, rows), source


def main(arguments: list[str] | None = None) -> int:
    """Run the campaign; see the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=1000, help="steps of each layout")
    parser.add_argument("--seed", type=int, default=0, help="of delays, saves and errors")
    parser.add_argument("--saves", type=int, default=20, help="saves of each layout")
    parser.add_argument("--errors", type=int, default=5, help="errors of each layout at each place")
    parser.add_argument("--layouts", nargs="+", choices=list(LAYOUTS), default=list(LAYOUTS))
    parser.add_argument("--json", type=Path, help="file to write; default: print it")
    options = parser.parse_args(arguments)
    result = campaign(options.layouts, options.n, options.seed, options.saves, options.errors)
    return leave(result, options.json, result["holds"])


def campaign(layouts: Sequence[str], steps: int, seed: int, num_saves: int, num_errors: int) -> dict[str, Any]:
    """All layouts: the long run with its saves, then the runs with an error each."""
    draw = random.Random(seed)
    result: dict[str, Any] = {"steps": steps, "seed": seed}
    for name in layouts:
        size, target_ranks = LAYOUTS[name]
        saves = tuple(sorted(draw.sample(range(2, steps - 10), num_saves)))
        figures = long_run(Trial(size, target_ranks, steps, seed, saves))
        places = PLACES if target_ranks else PLACES[:2]
        figures["errors"] = [
            failing_run(Trial(size, target_ranks, 20, draw.randrange(1000), error=(place, draw.randint(1, 20))))
            for place in places
            for _ in range(num_errors)
        ]
        figures["holds"] &= all(error["holds"] for error in figures["errors"])
        result[name] = figures
        print(f"{name}: {figures}", file=sys.stderr, flush=True)
    return result | {"holds": all(result[name]["holds"] for name in layouts)}


def long_run(trial: Trial) -> dict[str, Any]:
    """Every step arrives once, whatever was slow and wherever it was stopped."""
    began = time.perf_counter()
    witnesses = on_ranks(trial.size, run_rank, trial)
    drafters = witnesses[: trial.size - trial.target_ranks]
    seen = {
        "ids_are_the_plan": [w.steps for w in drafters] == planned(trial, len(drafters)),
        "features_right": all(w.features_right for w in drafters),
        "saves_at_full_channels": [w.full_saves for w in drafters],
        "deepest": max(w.deepest for w in drafters),
        "slowest_stop_s": round(max(w.slowest_stop_s for w in drafters), 2),
        "rank_errors": [w.error for w in witnesses if w.error],
    }
    bounded = seen["deepest"] <= trial.world().config.distributed.queue_depth and seen["slowest_stop_s"] < STOP_S
    full = seen["saves_at_full_channels"] == [len(trial.saves)] * len(drafters)
    holds = seen["ids_are_the_plan"] and seen["features_right"] and full and bounded and not seen["rank_errors"]
    return seen | {"seconds": round(time.perf_counter() - began, 1), "holds": holds}


def failing_run(trial: Trial) -> dict[str, Any]:
    """The error arrives in the first drafter rank in its place and with its traceback; no rank hangs or trains past it."""
    place, step = trial.error
    witnesses = on_ranks(trial.size, run_rank, trial)
    drafters = witnesses[: trial.size - trial.target_ranks]
    plan = planned(trial, len(drafters))
    text = witnesses[0].error
    seen = {
        "place": place,
        "step": step,
        "own_traceback": f"Injected: {place} broke at step {step}" in text and "in work" in text,
        "all_before_it": witnesses[0].steps == plan[0][: step - 1],
        "others_stopped": all(w.error and w.steps == p[: len(w.steps)] for w, p in zip(drafters[1:], plan[1:], strict=True)),
    }
    return seen | {"holds": all(seen[key] for key in ("own_traceback", "all_before_it", "others_stopped"))}


def run_rank(trial: Trial) -> Witness:
    """As one rank."""
    with join_processes(trial.world().config.distributed) as (rank, size):
        # an error strikes one drafter rank only, or the target ranks
        mine = trial if rank == 0 or rank >= size - trial.target_ranks else replace(trial, error=None)
        run = RankRun(mine, rank, size)
        run.run()
    return run.witness


def planned(trial: Trial, num_drafters: int) -> list[list[tuple[int, tuple[str, ...]]]]:
    """What each drafter rank must consume."""
    here = trial.world()
    shares = [here.plan.shares(here.plan.step_number(number), num_drafters) for number in range(trial.steps)]
    return [
        [(number, tuple(here.dataset.sample_id(row) for micro in share[rank] for row in micro.rows)) for number, share in enumerate(shares, 1)]
        for rank in range(num_drafters)
    ]


if __name__ == "__main__":
    sys.exit(main())
