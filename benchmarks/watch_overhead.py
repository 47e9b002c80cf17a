"""Measures what the live watch costs a training loop: two runs of the real loop, one watched, take turns step by step.

    python benchmarks/watch_overhead.py --steps 3000 --tokens 512

Both are the same run on a target in memory: the same batches, the same updates, a log on disk each. Since they take turns
at every step, other load on the machine falls on both alike. What the watch does is measured a second time by its own
processor time, which other load doesn't change. The watch's clock runs on while the other run has its turn, so that it
takes up to twice the share of a step's time that it may take in a run alone: the figures are upper bounds.
"""

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from memory_world import MemoryWorld, make_world

from dflash_core.config import WatchConfig
from dflash_core.distributed.gradients import Alone
from dflash_core.stages.watched_log import WatchedLog
from dflash_core.training.batches import StepBatch, batches, total_steps
from dflash_core.training.loop import Hooks, Position, Run, train_loop
from dflash_core.training.optimizer import make_optimizer
from dflash_core.training.records import LogWriter, Record

# The first steps load and warm what later ones use.
WARM = 50


class Turns:
    """One of two threads runs at a time; each hands on to the other."""

    def __init__(self) -> None:
        self._changed, self._mine, self._gone = threading.Condition(), 0, False

    def hand_on(self, me: int) -> None:
        """Let the other run, and wait for my turn."""
        with self._changed:
            self._mine = 1 - me
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._mine == me or self._gone)

    def leave(self, me: int) -> None:
        """The other needs to wait no more."""
        with self._changed:
            self._gone, self._mine = True, 1 - me
            self._changed.notify_all()


@dataclass
class Side:
    """One of the two runs: seconds of its steps, and of the watch in them."""

    me: int
    turns: Turns
    steps_s: list[float] = field(default_factory=list)
    watch_s: list[float] = field(default_factory=list)

    def timed(self, stream: Iterator[StepBatch]) -> Iterator[StepBatch]:
        """Batches; a step lasts from when the loop gets its batch until it asks for the next."""
        for batch in stream:
            self.turns.hand_on(self.me)
            started = time.perf_counter()
            yield batch
            self.steps_s.append(time.perf_counter() - started)


class TimedLog(WatchedLog):
    """A watched log that notes the processor time of each record beyond the write."""

    side: Side

    def append(self, record: Record) -> None:
        """As WatchedLog."""
        started = time.thread_time()
        super().append(record)
        self.side.watch_s.append(time.thread_time() - started)


def train(world: MemoryWorld, directory: Path, side: Side, watched: bool) -> None:
    """The run of one side."""
    optimizer = make_optimizer(world.trainee.drafter, world.config.training)
    stream = side.timed(batches(world.plan, world.dataset, world.source, world.config, next_sample=0))
    with LogWriter(directory / f"{side.me}.jsonl") as writer:
        log = TimedLog(writer, WatchConfig(), print) if watched else writer
        if watched:
            log.side = side
        run = Run(
            world.config, world.trainee, optimizer, total_steps(world.plan, world.config), log, None, Hooks(lambda at: None, None),
            Alone(world.trainee.drafter),
        )  # fmt: skip
        try:
            train_loop(run, stream, Position(0, 0))
        finally:
            side.turns.leave(side.me)


def measure(steps: int, tokens: int) -> dict[str, Any]:
    """Seconds of a step with and without the watch, and the watch's own."""
    torch.set_num_threads(1)
    turns = Turns()
    sides = [Side(0, turns), Side(1, turns)]
    settings = {"training": {"max_steps": steps, "epochs": steps}, "tokens_per_step": tokens, "tokens_per_microbatch": tokens}
    with tempfile.TemporaryDirectory() as directory:
        threads = [
            threading.Thread(target=train, args=(make_world(240, **settings), Path(directory), side, watched))
            for side, watched in zip(sides, (False, True), strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return figures(*(np.array(side.steps_s[WARM:]) for side in sides), np.array(sides[1].watch_s[WARM:]))


def figures(plain: np.ndarray, watched: np.ndarray, own: np.ndarray) -> dict[str, Any]:
    """Means, their ratio with its standard error, and the share of the watch's own processor time, the log's write in it."""
    count = min(len(plain), len(watched))
    differences = watched[:count] - plain[:count]
    mean = float(plain.mean())
    return {
        "steps": count,
        "step_ms": 1e3 * mean,
        "watched_step_ms": 1e3 * float(watched.mean()),
        "overhead": float(differences.mean()) / mean,
        "standard_error": float(differences.std() / np.sqrt(count)) / mean,
        "overhead_of_the_median_step": float(np.median(differences)) / mean,
        "watch_and_write_cpu_us": 1e6 * float(own.mean()),
        "watch_and_write_share_of_step": float(own.mean()) / mean,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--tokens", type=int, default=512, help="of a step, which sets how long it takes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    result = measure(arguments.steps, arguments.tokens)
    print(json.dumps(result, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
