"""A run of the loop in memory whose saves go to disk: what benchmarks of saving train."""

from collections.abc import Iterator
from typing import Any

from memory_world import MemoryWorld

from dflash_core.checkpoint.contents import Share
from dflash_core.checkpoint.resume import RunDirectory, find_prior_run
from dflash_core.checkpoint.saves import Past, Saves
from dflash_core.checkpoint.snapshot import restore, take_share
from dflash_core.checkpoint.staging import HostBuffers
from dflash_core.distributed.gradients import Alone
from dflash_core.training.batches import StepBatch, batches, total_steps
from dflash_core.training.log_reader import read_log
from dflash_core.training.loop import Hooks, Position, Run, train_loop
from dflash_core.training.optimizer import make_optimizer
from dflash_core.training.records import LogWriter


class SavingRun:
    """One session: it goes on from the newest checkpoint in the directory. `stop_at` is the step after which it is stopped."""

    def __init__(self, directory: RunDirectory, here: MemoryWorld) -> None:
        self.directory, self.here, self.stop_at = directory, here, 0
        self.optimizer = make_optimizer(here.trainee.drafter, here.config.training)

    def run(self) -> Position:
        """Train to the end. Errors as `train_loop`."""
        here = self.here
        position = self._restore()
        with LogWriter(self.directory.log_path) as log:
            ranks = Alone(here.trainee.drafter)
            token, past = log.session_id[:8], Past(position.step)
            saves = Saves(self.share(log.run_id), HostBuffers(), self.directory.store, ranks, log, here.config, {}, token, past)
            steps = total_steps(here.plan, here.config)
            self._steps_done = position.step
            run = Run(here.config, here.trainee, self.optimizer, steps, log, None, Hooks(saves, None), ranks, stop_elsewhere=self._stops)
            return train_loop(run, self.stream(position), position)

    def share(self, run_id: str) -> Any:
        """What is saved, by position."""

        def share(at: Position) -> Share:
            drafter = self.here.trainee.drafter
            return take_share(drafter, self.optimizer, step=at.step, next_sample=at.next_sample, run_id=run_id, identity={})

        return share

    def stream(self, position: Position) -> Iterator[StepBatch]:
        """What is trained on."""
        here = self.here
        return batches(here.plan, here.dataset, here.source, here.config, next_sample=position.next_sample)

    def records(self, kind: str) -> list[Any]:
        """Of the log, those that count."""
        return [record for record in read_log(self.directory.log_path) if record.kind == kind]

    def _restore(self) -> Position:
        prior = find_prior_run(self.directory, "auto")
        if prior is None or prior.loaded is None:
            return Position(0, 0)
        contents = prior.loaded.contents
        restore(contents, self.here.trainee.drafter, self.optimizer)
        return Position(contents.state["step"], contents.state["next_sample"])

    def _stops(self) -> bool:
        self._steps_done += 1
        return self._steps_done == self.stop_at
