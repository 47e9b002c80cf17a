"""Measures what the live watch costs a training loop: the same simulated steps with and without it, interleaved.

    python benchmarks/watch_overhead.py --steps 4000 --step-ms 20

A step multiplies matrices for about --step-ms. Blocks of 200 steps alternate between watched and not, so that other load
on the machine falls on both. The watch's own processor time is measured too, which other load doesn't change.
"""

import argparse
import json
import time
from dataclasses import dataclass

import numpy as np

from dflash_core.diagnosis.live import Watch

BLOCK = 200


@dataclass(frozen=True)
class Row:
    """What the watch reads of a step record."""

    step: int
    loss: float
    grad_norm: float
    lr: float = 1e-4
    streak: float | None = 1.5
    tok_per_s: float = 26000.0
    hs_queue_depth: int = 4
    prefetch_queue_depth: int = 300


def work(matrix: np.ndarray, seconds: float) -> None:
    """Busy for about that long."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        matrix @ matrix


def measure(steps: int, step_s: float) -> dict[str, float]:
    """Medians and means of a step with and without the watch, and the watch's own time."""
    random = np.random.default_rng(0)
    loss = (1 + 5 * np.exp(-np.arange(steps) / 300)) * (1 + 0.02 * random.normal(size=steps))
    watcher, matrix = Watch(), np.ones((64, 64))
    for i in range(BLOCK):  # the first look loads and warms what later ones use
        watcher.feed(Row(i - BLOCK, float(loss[0]), 1.0))
    times: dict[bool, list[float]] = {True: [], False: []}
    own = 0.0
    for i in range(2 * steps):
        watched = i // BLOCK % 2 == 0
        row = Row(i, float(loss[len(times[watched]) % steps]), 1.0)
        started = time.perf_counter()
        work(matrix, step_s)
        if watched:
            before = time.process_time()
            watcher.feed(row)
            own += time.process_time() - before
        times[watched].append(time.perf_counter() - started)
    watched_mean, plain_mean = float(np.mean(times[True])), float(np.mean(times[False]))
    return {
        "step_ms": 1e3 * plain_mean,
        "watched_step_ms": 1e3 * watched_mean,
        "overhead_interleaved": watched_mean / plain_mean - 1,
        "watch_cpu_us_per_step": 1e6 * own / len(times[True]),
        "overhead_by_cpu": own / sum(times[True]),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--step-ms", type=float, default=20.0)
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.steps, arguments.step_ms / 1e3), indent=1))


if __name__ == "__main__":
    main()
