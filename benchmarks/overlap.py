"""Measures what running target and drafter at the same time gains, in either placement, against the parts alone.

    python benchmarks/overlap.py --workspace workspaces/demo --n 6 --rounds 5 --json overlap.json

`split`: one target rank and one drafter rank, each pinned to a core of its own with one thread; in turns with either side alone,
pinned in the same way: the target computes the same features and sends them nowhere, the drafter trains on features that are
already there. The split's tokens per second over those of its slower side say what the channel costs.

`colocated`: one process, with the target running ahead in a thread of its own against the same without, with one thread
an operation and with two, in turns. The workspace must hold the results of prepare and bucket; nothing is written to it.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from forked_ranks import on_ranks
from results import leave
from step_speed import ratio

from dflash_core.config import Config, load_config, parse_config
from dflash_core.data.plan_manifest import write_plan
from dflash_core.distributed.gradients import Alone
from dflash_core.distributed.world import World, join_processes, make_world
from dflash_core.stages import layout
from dflash_core.stages.train_inputs import Inputs, open_inputs
from dflash_core.training.batches import StepBatch, batches, collated_steps
from dflash_core.training.optimizer import make_optimizer
from dflash_core.training.pipeline import open_pipeline
from dflash_core.training.serve import serve_features
from dflash_core.training.step import train_step

WARM_UP = 2  # steps before the clock starts: new shapes cost oneDNN a second each, and queues fill
DRAFTER_CORE, TARGET_CORE = 0, 1


def main(arguments: list[str] | None = None) -> int:
    """Run both campaigns; see the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workspace", type=Path, required=True, help="with build/prepared and build/plan")
    parser.add_argument("--n", type=int, default=6, help="timed steps a measurement")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each way, in turns")
    parser.add_argument("--tokens-per-step", type=int, default=1024, help="short steps make a short campaign")
    parser.add_argument("--json", type=Path, help="file to write; default: print it")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="overlap-") as directory:
        tree = planned(options.workspace.resolve(), Path(directory), options.n + WARM_UP, options.tokens_per_step)
        split = {"drafter alone": drafter_alone, "target alone": target_alone, "split": split_run}
        ways = {name: lambda way=way: way(Path(directory), tree) for name, way in split.items()}
        found = {"split": summary_of_split(in_turns(ways, options.rounds))}  # first: forks are for processes without a thread pool
        found["colocated"] = summary_of_colocated(colocated(Path(directory), tree, options.rounds))
    return leave({"n": options.n, "rounds": options.rounds, "cores": os.cpu_count(), **found}, options.json, holds=True)


def planned(workspace: Path, directory: Path, steps: int, tokens_per_step: int) -> dict[str, Any]:
    """The workspace's configuration with the target online, a few short steps long; their plan is made in `directory`."""
    tree = load_config(workspace / "params.yaml").model_dump(mode="json")
    tree["target"]["path"] = str((workspace / tree["target"]["path"]).resolve())
    tree["training"] |= {"feature_source": "online", "max_steps": steps}
    tree["bucket"] |= {"tokens_per_step": tokens_per_step, "tokens_per_microbatch": tokens_per_step}
    tree["distributed"] = {"timeout_s": 300.0}
    prepared = directory / layout.PREPARED
    prepared.parent.mkdir()
    prepared.symlink_to(workspace / layout.PREPARED)
    write_plan(parse_config(tree, "overlap"), prepared, directory / layout.PLAN)
    return tree


def in_turns(ways: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Tokens per second of each way in each round, the order turned round every time."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in sorted(ways, reverse=bool(number % 2)):
            rates[name].append(ways[name]())
            print(f"{name}: {rates[name][-1]:.0f} tok/s", file=sys.stderr, flush=True)
    return rates


def summary_of_split(rates: dict[str, list[float]]) -> dict[str, Any]:
    """The split over its slower side, and over what the two sides would do one after the other."""
    slower = min(("target alone", "drafter alone"), key=lambda side: statistics.median(rates[side]))
    in_turn = [1 / (1 / target + 1 / drafter) for target, drafter in zip(rates["target alone"], rates["drafter alone"], strict=True)]
    return {
        "tokens_per_s": {name: round(statistics.median(values), 1) for name, values in rates.items()},
        "slower_side": slower,
        "split_over_slower_side": ratio(rates["split"], rates[slower]),
        "split_over_one_after_the_other": ratio(rates["split"], in_turn),
    }


def summary_of_colocated(rates: dict[str, list[float]]) -> dict[str, Any]:
    """With the target ahead over without, by threads, and over the better of the two without."""
    return {
        "tokens_per_s": {name: round(statistics.median(values), 1) for name, values in rates.items()},
        "ahead_over_in_turn": {f"{threads} threads": ratio(rates[f"ahead, {threads}"], rates[f"in turn, {threads}"]) for threads in (1, 2)},
        "ahead_1_over_in_turn_2": ratio(rates["ahead, 1"], rates["in turn, 2"]),
    }


def split_run(workspace: Path, tree: dict[str, Any]) -> float:
    """Both sides, each in a process on a core of its own."""
    tree = tree | {"distributed": tree["distributed"] | {"placement": "split", "target_ranks": 1}}
    return on_ranks(2, _split_rank, workspace, tree)[0]


def drafter_alone(workspace: Path, tree: dict[str, Any]) -> float:
    """Updates on features that were made before."""
    return on_ranks(1, _drafter_rank, workspace, tree)[0]


def target_alone(workspace: Path, tree: dict[str, Any]) -> float:
    """Features for the same steps, for nobody."""
    return on_ranks(1, _target_rank, workspace, tree)[0]


def colocated(workspace: Path, tree: dict[str, Any], rounds: int) -> dict[str, list[float]]:
    """Both in this process, with and without a thread for the target."""
    config = parse_config(tree, "overlap")
    inputs = open_inputs(config, workspace)

    def measure(streamed: Callable[..., Any], threads: int) -> float:
        torch.set_num_threads(threads)
        with streamed(inputs, config) as stream:
            return _trained(stream, inputs, config)

    ways = {f"ahead, {n}": (_ahead, n) for n in (1, 2)} | {f"in turn, {n}": (_in_turn, n) for n in (1, 2)}
    return in_turns({name: lambda way=way: measure(*way) for name, way in ways.items()}, rounds)


@contextmanager
def _ahead(inputs: Inputs, config: Config) -> Iterator[Iterable[StepBatch]]:
    with open_pipeline(inputs.plan, inputs.dataset, inputs.source, config, World(), inputs.target.device, next_sample=0) as pipeline:
        yield pipeline.batches


@contextmanager
def _in_turn(inputs: Inputs, config: Config) -> Iterator[Iterable[StepBatch]]:
    yield batches(inputs.plan, inputs.dataset, inputs.source, config, next_sample=0)


def _split_rank(workspace: Path, tree: dict[str, Any]) -> float:
    config = parse_config(tree, "overlap")
    with join_processes(config.distributed) as (rank, size):
        os.sched_setaffinity(0, {TARGET_CORE if rank else DRAFTER_CORE})
        world = make_world(config.distributed, rank, size)
        inputs = open_inputs(config, workspace, world)
        dist.barrier()
        if not world.trains:
            serve_features(world, inputs.plan, inputs.dataset, inputs.source, config, next_sample=0, stop_requested=lambda: False)
            return 0.0
        with open_pipeline(inputs.plan, inputs.dataset, inputs.source, config, world, inputs.target.device, next_sample=0) as pipeline:
            return _trained(pipeline.batches, inputs, config)


def _drafter_rank(workspace: Path, tree: dict[str, Any]) -> float:
    os.sched_setaffinity(0, {DRAFTER_CORE})
    config = parse_config(tree, "overlap")
    inputs = open_inputs(config, workspace)
    return _trained(list(batches(inputs.plan, inputs.dataset, inputs.source, config, next_sample=0)), inputs, config)


def _target_rank(workspace: Path, tree: dict[str, Any]) -> float:
    os.sched_setaffinity(0, {TARGET_CORE})
    config = parse_config(tree, "overlap")
    inputs = open_inputs(config, workspace)
    ends, tokens = [], []
    for step in collated_steps(inputs.plan, inputs.dataset, config, next_sample=0):
        for rows, batch in zip(step.rows, step.batches, strict=True):
            inputs.source(rows, batch.input_ids_BT)
        ends.append(time.perf_counter())
        tokens.append(step.outline.tokens)
    return _rate(ends, tokens)


def _trained(stream: Iterable[StepBatch], inputs: Inputs, config: Config) -> float:
    """Updates on all of the stream, at a rate of zero so that every round does the same; tokens per second."""
    drafter = inputs.trainee.drafter
    optimizer, ranks = make_optimizer(drafter, config.training), Alone(drafter)
    ends, tokens = [], []
    for batch in stream:
        train_step(inputs.trainee, optimizer, batch, 0.0, config.training, ranks)
        ends.append(time.perf_counter())
        tokens.append(batch.outline.tokens)
    return _rate(ends, tokens)


def _rate(ends: list[float], tokens: list[int]) -> float:
    """Tokens per second of the steps after the warm-up: the median of the steps' own rates would hide waits that alternate."""
    seconds = sum(after - before for before, after in pairwise(ends[WARM_UP - 1 :]))
    return sum(tokens[WARM_UP:]) / seconds


if __name__ == "__main__":
    sys.exit(main())
