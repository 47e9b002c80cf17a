"""Reproduces the loss reset after every save, and shows that it is gone.

    python benchmarks/incident.py --n 400 --json incident.json

The old way: a thread makes batches, one adds up their gradients, the drafter's applies them and saves by itself, blocking. What
doesn't fit into the queue meanwhile is dropped, and gradients of what does are added to the same stale sum, which the update
after the save applies. Its log has a gap and a spike at each save, and our diagnoser says so. Our way, from the same data and
seed with saves at the same steps: every step is there, and each loss, gradient norm and the last weights are those of a run
that never saves, bit for bit. Exit status 0 means that both hold.
"""

import argparse
import json
import queue
import statistics
import sys
import tempfile
import threading
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from memory_world import MemoryWorld, make_world
from saving_run import SavingRun

from dflash_core.checkpoint.resume import RunDirectory
from dflash_core.diagnosis.diagnose import diagnose_file
from dflash_core.distributed.gradients import Alone
from dflash_core.training.batches import StepBatch, batches, total_steps
from dflash_core.training.log_reader import read_log
from dflash_core.training.loop import Timing, step_record
from dflash_core.training.optimizer import set_learning_rate
from dflash_core.training.records import CheckpointRecord, LogWriter
from dflash_core.training.schedule import learning_rate
from dflash_core.training.step import StepResult, accumulate_gradients, agree, step_result

EVERY = 50
QUEUE_DEPTH = 2
SAVE_S = 1.0
PATIENCE_S = 0.04
SPIKE_SIGMA = 6.0
# Adam divides by the root of a mean of squares: a sum of many gradients shows where that mean is long.
TRAINING = {"betas": (0.9, 0.999), "max_grad_norm": 1e6, "learning_rate": 5e-3, "schedule": "constant"}


def main(arguments: list[str] | None = None) -> int:
    """Train both ways; see the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=400, help="steps")
    parser.add_argument("--seed", type=int, default=0, help="of the run")
    parser.add_argument("--json", type=Path, help="file to write; default: print it")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="incident-") as directory:
        result = compare(Path(directory), options.n, options.seed)
    text = json.dumps(result, indent=1) + "\n"
    if options.json:
        options.json.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0 if result["holds"] else 1


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
    holds = figures["gap_at_every_save"] and figures["spikes_after_saves"] > 0 and not {"step_gap", "loss_spike"} & set(mine["diagnosis"]["faults"])
    holds = holds and all(mine[key] for key in ("no_step_missing", "losses_of_a_run_that_never_saves", "weights_of_a_run_that_never_saves"))
    return {"steps": n, "seed": seed, "old": figures, "ours": mine, "holds": holds}


def world(n: int, seed: int, every: int) -> MemoryWorld:
    """The same data and weights for all."""
    training = TRAINING | {"epochs": n, "max_steps": n, "seed": seed}
    return make_world(training=training, checkpoint={"every": every, "wait": False})


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
    """Threads that wait for one another, but not for long: then a batch is dropped, or added to the sum that is there."""

    def __init__(self, directory: RunDirectory, here: MemoryWorld) -> None:
        self.directory, self._here = directory, here
        self._run = SavingRun(directory, here)
        self._made: queue.Queue[StepBatch | None] = queue.Queue(QUEUE_DEPTH)
        self._added: queue.Queue[tuple[StepBatch, StepResult] | None] = queue.Queue()
        self._applied, self._weights = threading.Semaphore(1), threading.Lock()
        self._records: list[Any] = []

    def run(self) -> None:
        """The drafter's thread: update, log, and every so often save, while the others go on."""
        threads = [threading.Thread(target=work, daemon=True) for work in (self._make, self._add)]
        for thread in threads:
            thread.start()
        with LogWriter(self.directory.log_path) as log:
            saved = 0
            while (newest := self._added.get()) is not None:
                while not self._added.empty() and (later := self._added.get()) is not None:
                    newest = later  # one update for all that was added meanwhile
                batch, result = newest
                self._update(batch)
                record = step_record(log, batch, result, Timing(0.001, 0.001, 0.0, 0.0, 0.0), (self._made.qsize(), 0))
                log.append(record)
                self._records.append(record)
                if record.step // EVERY > saved:
                    saved = record.step // EVERY
                    self._save(log, record.step)
                self._applied.release()
        for thread in threads:
            thread.join()

    def figures(self) -> dict[str, Any]:
        """Step ids that are missing after saves, and losses after saves against the batches' own level."""
        steps = [record.step for record in self._records]
        gaps = {a: b - a - 1 for a, b in pairwise(steps) if b > a + 1}
        losses = [record.loss for record in self._records]
        noise = statistics.median(abs(b - a) for a, b in pairwise(losses)) * 1.4826 / 2**0.5
        saves = [record.step for record in read_log(self.directory.log_path) if isinstance(record, CheckpointRecord)]
        places = [steps.index(step) for step in saves if step != steps[-1]]
        jumps = [max(losses[at + 1 : at + 6], default=0.0) - statistics.median(losses[max(0, at - 14) : at + 1]) for at in places]
        return {
            "updates": len(steps),
            "gap_steps_at_saves": [gaps.get(steps[at], 0) for at in places],
            "gap_at_every_save": all(steps[at] in gaps for at in places),
            "jumps_after_saves_in_sigma": [round(jump / noise, 1) for jump in jumps],
            "spikes_after_saves": sum(jump > SPIKE_SIGMA * noise for jump in jumps),
        }

    def _make(self) -> None:
        here = self._here
        for batch in batches(here.plan, here.dataset, here.source, here.config, next_sample=0):
            with suppress(queue.Full):
                self._made.put(batch, timeout=PATIENCE_S)
        self._made.put(None)

    def _add(self) -> None:
        ranks = Alone(self._here.trainee.drafter)
        while (batch := self._made.get()) is not None:
            self._applied.acquire(timeout=PATIENCE_S)
            denominator = agree(self._here.trainee, batch, ranks)
            with self._weights:
                tally = accumulate_gradients(self._here.trainee, batch.micro_batches, denominator)
            self._added.put((batch, step_result(tally, denominator, ranks, 0.0, self._here.config.training.learning_rate)))
        self._added.put(None)

    def _update(self, batch: StepBatch) -> None:
        with self._weights:
            config, optimizer = self._here.config, self._run.optimizer
            set_learning_rate(optimizer, learning_rate(batch.outline.step, total_steps(self._here.plan, config), config.training))
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def _save(self, log: LogWriter, step: int) -> None:
        time.sleep(SAVE_S)  # a large state on a slow disk
        log.append(
            CheckpointRecord(**log.stamp(step), name=f"step-{step}", digest="", weights_digest="", next_sample=0, num_bytes=0, seconds=SAVE_S)
        )


if __name__ == "__main__":
    sys.exit(main())
