"""Measures what the live watch costs a training loop: two runs of the real loop, one watched, take turns step by step.

    python benchmarks/watch_overhead.py --steps 3000 --tokens 512

Both are the same run on a target in memory: the same batches, the same updates, a log on disk each. Since they take turns
at every step, other load on the machine falls on both alike. Steps are measured by the clock and by the processor time of
their thread (one thread computes), which other load doesn't stretch. The watch's clock runs on while the other run has its
turn, so that it takes up to twice the share of a step's time that it may take in a run alone: the figures are upper bounds.
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
from memory_world import MemoryWorld, NotedSaves, make_world

from dflash_core.config import WatchConfig
from dflash_core.distributed.gradients import Alone
from dflash_core.stages.watched_log import WatchedLog
from dflash_core.training.batches import StepBatch, batches, total_steps
from dflash_core.training.loop import Hooks, Position, Run, train_loop
from dflash_core.training.optimizer import make_optimizer
from dflash_core.training.records import Log, LogWriter, Record

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
    """One of the two runs: seconds of its steps by the clock and by processor time, and of what the log did in them."""

    me: int
    turns: Turns
    steps_s: list[float] = field(default_factory=list)
    steps_cpu_s: list[float] = field(default_factory=list)
    append_cpu_s: list[float] = field(default_factory=list)

    def timed(self, stream: Iterator[StepBatch]) -> Iterator[StepBatch]:
        """Batches; a step lasts from when the loop gets its batch until it asks for the next."""
        for batch in stream:
            self.turns.hand_on(self.me)
            started, busy = time.perf_counter(), time.thread_time()
            yield batch
            self.steps_s.append(time.perf_counter() - started)
            self.steps_cpu_s.append(time.thread_time() - busy)


@dataclass(frozen=True)
class TimedLog:
    """A log, and the processor time that it takes for each record."""

    log: Log
    side: Side

    def stamp(self, step: int) -> dict[str, Any]:
        """The log's."""
        return self.log.stamp(step)

    def append(self, record: Record) -> None:
        """The log's."""
        started = time.thread_time()
        self.log.append(record)
        self.side.append_cpu_s.append(time.thread_time() - started)


def train(world: MemoryWorld, directory: Path, side: Side, watched: bool) -> None:
    """The run of one side."""
    optimizer = make_optimizer(world.trainee.drafter, world.config.training)
    stream = side.timed(batches(world.plan, world.dataset, world.source, world.config, next_sample=0))
    with LogWriter(directory / f"{side.me}.jsonl") as writer:
        log = TimedLog(WatchedLog(writer, WatchConfig(), print) if watched else writer, side)
        run = Run(
            world.config, world.trainee, optimizer, total_steps(world.plan, world.config), log, None, Hooks(NotedSaves(), None),
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
    plain, watched = sides
    step_s = float(np.mean(plain.steps_cpu_s[WARM:]))
    own = float(np.mean(watched.append_cpu_s[WARM:]) - np.mean(plain.append_cpu_s[WARM:]))
    return {
        "steps": len(plain.steps_s) - WARM,
        "by_the_clock": compared(plain.steps_s[WARM:], watched.steps_s[WARM:]),
        "by_processor_time": compared(plain.steps_cpu_s[WARM:], watched.steps_cpu_s[WARM:]),
        "watch_cpu_us_per_step": 1e6 * own,
        "watch_share_of_step": own / step_s,
    }


def compared(plain: list[float], watched: list[float]) -> dict[str, float]:
    """Mean step without and with the watch, and what it adds, with the standard error of that."""
    differences, mean = np.subtract(watched, plain), float(np.mean(plain))
    return {
        "step_ms": 1e3 * mean,
        "watched_step_ms": 1e3 * float(np.mean(watched)),
        "overhead": float(differences.mean()) / mean,
        "standard_error": float(differences.std() / np.sqrt(len(plain))) / mean,
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
