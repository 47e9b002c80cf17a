"""A batch that is lost or repeated is refused before anything is trained on it, and an early end is no end."""

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from memory_world import NotedSaves

from dflash_core.distributed.gradients import Alone
from dflash_core.errors import NonFiniteError, PipelineError
from dflash_core.training.batches import StepBatch, batches, collated_steps, total_steps, with_features
from dflash_core.training.loop import Hooks, Position, Run, check_order, train_loop
from dflash_core.training.optimizer import make_optimizer
from dflash_core.training.records import SilentLog
from dflash_core.training.side_stream import NOW, Ready
from dflash_core.training.step import agree, train_step


def all_batches(here: Any) -> list[StepBatch]:
    return list(batches(here.plan, here.dataset, here.source, here.config, next_sample=0))


def run_of(here: Any, saved: list[int]) -> Run:
    drafter = here.trainee.drafter
    return Run(
        here.config, here.trainee, make_optimizer(drafter, here.config.training), total_steps(here.plan, here.config), SilentLog(), None,
        Hooks(NotedSaves(saved), None), Alone(drafter),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ((0, 2), r"handed on step 3 from sample \d+, expected step 2 from sample"),
        ((0, 0), r"handed on step 1 from sample 0, expected step 2"),
        ((0, 1, 0), r"handed on step 1 from sample 0, expected step 3"),
        ((1,), r"handed on step 2 .* expected step 1 from sample 0"),
    ],
)
def test_a_lost_or_repeated_batch_is_refused(world: Callable[..., Any], order: tuple[int, ...], message: str) -> None:
    here, saved = world(), []
    made = all_batches(here)
    run = run_of(here, saved)
    good = list(itertools.takewhile(lambda pair: pair[0] == pair[1], enumerate(order)))
    with pytest.raises(PipelineError, match=f"{message}.*a batch is lost or repeated"):
        train_loop(run, iter([made[number] for number in order]), Position(0, 0))
    steps = {int(state["step"]) for state in run.optimizer.state.values()}
    assert steps == {len(good)} - {0}, "nothing was trained on it"


def test_a_pipeline_that_ends_early_is_not_the_end_of_the_run(world: Callable[..., Any]) -> None:
    here, saved = world(), []
    with pytest.raises(PipelineError, match="ended after step 7, expected 8 steps"):
        train_loop(run_of(here, saved), iter(all_batches(here)[:7]), Position(0, 0))
    assert saved == [3, 6]


def test_a_batch_must_begin_where_the_last_one_ended(world: Callable[..., Any]) -> None:
    batch = all_batches(world())[1]
    check_order(batch, Position(1, batch.outline.first_sample))
    for position in (Position(1, batch.outline.first_sample + 1), Position(2, batch.outline.first_sample)):
        with pytest.raises(PipelineError, match="lost or repeated"):
            check_order(batch, position)


class Others(Alone):
    """One process that stands for several: the sums of other ranks are added to its own."""

    def __init__(self, drafter: torch.nn.Module, num_ranks: int, sums: list[float]) -> None:
        super().__init__(drafter)
        self.num_ranks, self._sums = num_ranks, sums

    def sum(self, values: list[float]) -> list[float]:
        return [a + b for a, b in zip(values, self._sums, strict=True)]


def shares_of(here: Any, num_ranks: int) -> list[StepBatch]:
    """The second step's share of each rank."""
    steps = (collated_steps(here.plan, here.dataset, here.config, next_sample=0, rank=r, num_ranks=num_ranks) for r in range(num_ranks))
    return [next(itertools.islice(with_features(s, here.source, here.config), 1, None)) for s in steps]


def test_the_ranks_samples_must_add_up_to_the_plans(world: Callable[..., Any]) -> None:
    here = world()
    drafter, trainee = here.trainee.drafter, here.trainee
    mine, theirs = shares_of(here, 2)
    assert mine.outline == theirs.outline and mine.checksum != theirs.checksum
    assert agree(trainee, mine, Others(drafter, 2, [2.5, theirs.checksum, 2])) == pytest.approx(
        2.5 + sum(trainee.objective.denominator(m.mask_BAS) for m in mine.micro_batches)
    )
    wrong = {
        "lost": [2.5, 0, 2],
        "repeated": [2.5, mine.checksum, 2],
        "of another step": [2.5, theirs.checksum, 3],
    }
    for sums in wrong.values():
        with pytest.raises(PipelineError, match=r"step 2: the samples of its 2 ranks add up to \d+, the plan's to \d+.*lost or repeated"):
            agree(trainee, mine, Others(drafter, 2, sums))
    dropped = replace(mine, micro_batches=mine.micro_batches[1:])
    with pytest.raises(PipelineError, match="lost or repeated"):
        train_step(trainee, make_optimizer(drafter, here.config.training), dropped, 1e-3, here.config.training, Others(drafter, 2, [2.5, theirs.checksum, 2]))
    assert all(p.grad is None for p in drafter.parameters())


def test_a_step_that_isnt_finite_names_the_samples_of_all_ranks(world: Callable[..., Any]) -> None:
    here = world()
    drafter, config = here.trainee.drafter, here.config.training
    mine, theirs = shares_of(here, 2)
    seen = []

    class Poisoned(Others):
        def sum(self, values: list[float]) -> list[float]:
            seen.append(values)
            self._sums = [1.0, theirs.checksum, 2] if len(seen) == 1 else [float("nan"), *[0] * (len(values) - 1)]
            return super().sum(values)

    with pytest.raises(NonFiniteError, match="step 2 has loss nan") as error:
        train_step(here.trainee, make_optimizer(drafter, config), mine, 1e-3, config, Poisoned(drafter, 2, []))
    named = set(re.findall(r"s\d+", str(error.value)))
    assert named == {*mine.sample_ids, *theirs.sample_ids} and theirs.sample_ids


def test_features_of_a_side_stream_are_kept_and_those_of_a_cache_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []

    class Stream:
        wait_event = waited.append

    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    Ready("event").wait([torch.zeros(2)])  # record_stream of a CPU tensor would raise
    NOW.wait([torch.zeros(2)])
    assert waited == ["event"]
