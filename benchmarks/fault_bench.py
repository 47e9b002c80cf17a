"""The run that resume faults are put into, and what a fault is: a wrong file, or a session that goes on otherwise."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from dflash_core.checkpoint.contents import Contents
from dflash_core.distributed.gradients import Alone, Ranks
from dflash_core.proof.replay import Setting
from dflash_core.training.batches import StepBatch, batches
from dflash_core.training.records import StepRecord
from dflash_core.training.schedule import learning_rate

Stream = Iterator[StepBatch]


@dataclass(frozen=True)
class Bench:
    """The run that faults are put into, and the checkpoint that they are put behind."""

    setting: Setting
    contents: Contents
    history: Mapping[int, Contents]  # other checkpoints of the run, by step

    def stream(self, next_sample: int | None = None, **training: Any) -> Stream:
        """Batches from the checkpoint's place, or another; `training` changes settings of that section."""
        config = self.setting.config
        config = config.model_copy(update={"training": config.training.model_copy(update=training)})
        start = self.contents.state["next_sample"] if next_sample is None else next_sample
        return batches(self.setting.plan, self.setting.dataset, self.setting.source, config, next_sample=start)

    def sample_at(self, steps: int) -> int:
        """The first sample of the step that is `steps` away from the checkpoint's next."""
        return self.setting.plan.step_number(self.contents.step + steps).first_sample


def planned_stream(bench: Bench) -> Stream:
    return bench.stream()


def planned_rate(bench: Bench, step: int) -> float:
    return learning_rate(step, bench.setting.total_steps, bench.setting.config.training)


@dataclass(frozen=True, kw_only=True)
class Session:
    """How a session goes on; as it is, it does so rightly."""

    contents: Callable[[Bench], Contents] = lambda bench: bench.contents
    stream: Callable[[Bench], Stream] = planned_stream
    rate: Callable[[Bench, int], float] = planned_rate
    logged_rate: Callable[[Bench, int], float] | None = None
    ranks: Callable[[nn.Module, Bench], Ranks] = lambda drafter, _: Alone(drafter)
    before_update: Callable[[int, nn.Module, Bench], None] | None = None
    after_update: Callable[[int, nn.Module, Bench], None] | None = None
    record: Callable[[int, StepRecord, Bench], StepRecord] = lambda offset, record, bench: record


@dataclass(frozen=True)
class ResumeFault:
    """One fault, and the class that the proof should name."""

    name: str
    expected: str
    kind: Literal["file", "session"]
    file: Callable[[Bench], Contents] = lambda bench: bench.contents
    session: Session = Session()
