"""Reproduces the loss reset after every save, and shows that it is gone.

    python benchmarks/incident.py --n 400 --json incident.json

The old way: a thread makes batches, one adds up their gradients, the drafter's applies them and saves by itself, blocking. What
doesn't fit into the queue meanwhile is dropped. What does is added to one stale sum, and the accumulation has lost its boundary:
the sum is applied by several updates before it is cleared. The log has a gap and a jump at the saves, and our diagnoser says
so. Our way, from the same data and seed with saves at the same steps: every step is there, and each loss, gradient norm and
the last weights are those of a run that never saves, bit for bit. Exit status 0 means that both hold.
"""

import argparse
import queue
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from memory_world import MemoryWorld, make_world
from results import leave
from saving_run import SavingRun

from dflash_core.checkpoint.resume import RunDirectory
from dflash_core.diagnosis.diagnose import diagnose_file
from dflash_core.distributed.gradients import Alone
from dflash_core.training.batches import StepBatch, batches, total_steps
from dflash_core.training.loop import Timing, step_record
from dflash_core.training.optimizer import make_optimizer, set_learning_rate
from dflash_core.training.records import CheckpointRecord, LogWriter, StepRecord
from dflash_core.training.schedule import learning_rate
from dflash_core.training.step import StepResult, accumulate_gradients, agree, step_result

EVERY = 50
QUEUE_DEPTH = 2
ADDED_WHILE_SAVING = 12  # batches that come through to the sum while the drafter is blocked
STALE_UPDATES = 10  # until the accumulation has found its boundary again, and the sum is cleared
LOSS_FAULTS = {"loss_spike", "level_shift", "divergence", "slow_climb"}
JUMP_SIGMA = 1.5  # of single losses, for a median of 15
TRAINING = {"max_grad_norm": 1e6, "learning_rate": 1e-2, "schedule": "cosine", "num_anchors": 4}


def main(arguments: list[str] | None = None) -> int:
    """Train both ways; see the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=400, help="steps")
    parser.add_argument("--seed", type=int, default=0, help="of the run")
    parser.add_argument("--json", type=Path, help="file to write; default: print it")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="incident-") as directory:
        result = compare(Path(directory), options.n, options.seed)
    return leave(result, options.json, result["holds"])


def compare(directory: Path, n: int, seed: int) -> dict[str, Any]:
    """The old way, ours, and a run that never saves."""
    never, ours = (trained(directory / name, world(n, seed, every)) for name, every in (("never", 10**9), ("ours", EVERY)))
    (directory / "old").mkdir()
    old = OldPipeline(RunDirectory(directory / "old"), world(n, seed, EVERY))
    old.run()
    figures = old.figures() | {"diagnosis": told(old.directory.log_path)}
    digests = [run.records("checkpoint")[-1].weights_digest for run in (ours, never)]
    mine = {
        "saves": len(ours.records("checkpoint")),
        "no_step_missing": [record.step for record in ours.records("step")] == list(range(1, n + 1)),
        "losses_of_a_run_that_never_saves": facts(ours) == facts(never),
        "weights_of_a_run_that_never_saves": digests[0] == digests[1],
        "diagnosis": told(ours.directory.log_path),
    }
    holds = figures["gap_at_every_save"] and figures["jumps"] > 0 and bool(LOSS_FAULTS & set(figures["diagnosis"]["faults"]))
    holds = holds and all(mine[key] for key in ("no_step_missing", "losses_of_a_run_that_never_saves", "weights_of_a_run_that_never_saves"))
    return {"steps": n, "seed": seed, "old": figures, "ours": mine, "holds": holds}


def world(n: int, seed: int, every: int) -> MemoryWorld:
    """The same data and weights for all."""
    training = TRAINING | {"epochs": n, "max_steps": n, "seed": seed}
    return make_world(8, training=training, checkpoint={"every": every, "wait": False}, tokens_per_step=128, tokens_per_microbatch=128)


def trained(place: Path, here: MemoryWorld) -> SavingRun:
    """Our way."""
    place.mkdir()
    run = SavingRun(RunDirectory(place), here)
    run.run()
    return run


def facts(run: SavingRun) -> list[tuple[Any, ...]]:
    """What must not depend on saves."""
    return [(r.step, r.loss_sum, r.denominator, r.grad_norm, r.streak, r.first_sample, r.last_sample) for r in run.records("step")]


def told(log: Path) -> dict[str, Any]:
    """What our diagnoser says of it."""
    diagnosis = diagnose_file(log)
    faults = sorted({f.kind for f in diagnosis.findings if f.severity == "fault"})
    return {"verdict": diagnosis.verdict.word, "sentence": diagnosis.verdict.sentence, "faults": faults}


class OldPipeline:
    """Three threads that wait for one another, unless the drafter saves."""

    def __init__(self, directory: RunDirectory, here: MemoryWorld) -> None:
        self.directory, self._here = directory, here
        self._optimizer = make_optimizer(here.trainee.drafter, here.config.training)
        self._made: queue.Queue[StepBatch | None] = queue.Queue(QUEUE_DEPTH)
        self._added: queue.Queue[tuple[StepBatch, StepResult] | None] = queue.Queue()
        self._applied, self._weights, self._saving = threading.Semaphore(1), threading.Lock(), threading.Event()
        self._records: list[StepRecord] = []
        self._saves: list[int] = []
        self._dropped: list[int] = []
        self._stale, self._total_steps = 0, total_steps(here.plan, here.config)
        self._adder = threading.Thread(target=self._add, daemon=True)

    def run(self) -> None:
        """The drafter's thread: update, log, and every so often save, while the others go on."""
        for thread in (self._adder, threading.Thread(target=self._make, daemon=True)):
            thread.start()
        with LogWriter(self.directory.log_path) as log:
            for batch, result in self._newest():
                self._update(batch)
                self._records.append(step_record(log, batch, result, Timing(0.001, 0.001, 0.0, 0.0, 0.0), (self._made.qsize(), 0)))
                log.append(self._records[-1])
                if self._records[-1].step // EVERY > len(self._saves):
                    self._save(log, self._records[-1].step)
                self._applied.release()

    def figures(self) -> dict[str, Any]:
        """Steps that are missing after saves, and how far the loss is from where it was, in sigma of single losses."""
        steps, losses = ([getattr(record, name) for record in self._records] for name in ("step", "loss"))
        sigma = statistics.median(abs(b - a) for a, b in pairwise(losses)) * 1.4826 / 2**0.5
        places = [steps.index(step) for step in self._saves]
        places = [at for at in places if 15 <= at < len(steps) - 15]
        jumps = [(statistics.median(losses[at + 1 : at + 16]) - statistics.median(losses[at - 14 : at + 1])) / sigma for at in places]
        gaps = [steps[at + 1] - steps[at] - 1 for at in places]
        return {
            "updates": len(steps),
            "batches_dropped": len(self._dropped),
            "steps_missing_after_saves": gaps,
            "gap_at_every_save": all(gap > 0 for gap in gaps) and bool(gaps),
            "jumps_after_saves_in_sigma": [round(jump, 1) for jump in jumps],
            "jumps": sum(jump > JUMP_SIGMA for jump in jumps),
        }

    def _make(self) -> None:
        here = self._here
        for batch in batches(here.plan, here.dataset, here.source, here.config, next_sample=0):
            # Twice as fast as the sum of gradients: while nobody waits for it, every other batch finds the queue full.
            if self._saving.is_set() and batch.outline.step % 2:
                self._dropped.append(batch.outline.step)
            else:
                self._made.put(batch)
        self._made.put(None)

    def _add(self) -> None:
        ranks, trainee = Alone(self._here.trainee.drafter), self._here.trainee
        while (batch := self._made.get()) is not None:
            while not self._saving.is_set() and not self._applied.acquire(timeout=0.01):
                pass
            denominator = agree(trainee, batch, ranks)
            with self._weights:
                tally = accumulate_gradients(trainee, batch.micro_batches, denominator)
                norm = float(torch.nn.utils.get_total_norm([p.grad for p in trainee.drafter.parameters()]))
            self._added.put((batch, step_result(tally, denominator, ranks, norm, self._here.config.training.learning_rate)))
        self._added.put(None)

    def _newest(self) -> Iterator[tuple[StepBatch, StepResult]]:
        """The last of what was added since the update before: one update for all of it."""
        ended = False
        while not ended:
            added = [self._added.get()]
            while not self._added.empty():
                added.append(self._added.get())
            ended = added[-1] is None
            if done := [pair for pair in added if pair is not None]:
                yield done[-1]

    def _update(self, batch: StepBatch) -> None:
        with self._weights:
            set_learning_rate(self._optimizer, learning_rate(batch.outline.step, self._total_steps, self._here.config.training))
            self._optimizer.step()
            self._stale -= 1
            if self._stale < 0:
                self._optimizer.zero_grad(set_to_none=True)

    def _save(self, log: LogWriter, step: int) -> None:
        """Blocks for as long as the other threads need for so many batches, or for the rest of the run."""
        self._saving.set()
        while self._added.qsize() < ADDED_WHILE_SAVING and self._adder.is_alive():
            time.sleep(0.001)
        self._saving.clear()
        self._stale = STALE_UPDATES
        self._saves.append(step)
        log.append(CheckpointRecord(**log.stamp(step), name=f"step-{step}", digest="", weights_digest="", next_sample=0, num_bytes=0, seconds=0.0))


if __name__ == "__main__":
    sys.exit(main())
