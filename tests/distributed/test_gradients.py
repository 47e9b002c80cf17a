"""One update over many ranks: the same as one process makes, in one order, however uneven the shares."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from dflash_core.checkpoint.contents import Contents
from dflash_core.checkpoint.snapshot import gathered, restore, state_tensors, take_share
from dflash_core.distributed import gradients
from dflash_core.distributed.gradients import Alone, DataParallel, FullyShard, _in_buckets
from dflash_core.distributed.world import World
from dflash_core.training.batches import StepBatch, collated_steps, with_features
from dflash_core.training.optimizer import make_optimizer
from dflash_core.training.step import StepResult, Trainee, train_step

STEPS = 4
SMALL_BUCKET = 2048  # bytes: the tiny drafter then has several
ADDED_DIFFERENTLY = 2e-5  # relative; weights moved by AdamW, whose steps don't know how large a gradient is

pytestmark = pytest.mark.distributed


@dataclass(frozen=True)
class Trained:
    """What a few steps left, as NumPy arrays, which travel between processes."""

    weights: dict[str, np.ndarray]
    losses: tuple[float, ...]
    norms: tuple[float, ...]
    micro_batches: tuple[tuple[int, ...], ...]  # of each rank, step by step
    snapshot: Contents | None  # of arrays


def ranks_of(world: World, trainee: Trainee, way: str) -> gradients.Ranks:
    if world.size == 1:
        return Alone(trainee.drafter)
    if way == "fsdp2":
        return FullyShard(trainee.drafter, world.device_group, world.drafters)
    return DataParallel(trainee.drafter, world.device_group, world.drafters, SMALL_BUCKET)


def steps_of(world: World, here: Any, next_sample: int = 0) -> Any:
    steps = collated_steps(here.plan, here.dataset, here.config, next_sample=next_sample, rank=world.rank, num_ranks=world.size)
    return with_features(steps, here.source, here.config)


def train(world: World, make_memory_world: Callable[..., Any], way: str, settings: dict[str, Any], begun: Contents | None = None) -> Trained:
    """A few steps from the start or from contents; every rank calls it."""
    here = make_memory_world(**settings)
    config, drafter = here.config.training, here.trainee.drafter
    ranks = ranks_of(world, here.trainee, way)
    optimizer = make_optimizer(drafter, config)
    done = 0
    if begun is not None:
        restore(converted(begun, torch.from_numpy), drafter, optimizer)
        done = begun.step
    results: list[StepResult] = []
    batches: list[StepBatch] = list(itertools.islice(steps_of(world, here, here.plan.step_number(done).first_sample), STEPS))
    for batch in batches:
        results.append(train_step(here.trainee, optimizer, batch, config.learning_rate, config, ranks))
    assert all(p.grad is None for p in drafter.parameters())
    next_sample = batches[-1].outline.next_sample
    snapshot = whole_state(drafter, optimizer, done + STEPS, next_sample, world.is_writer)
    return Trained(
        {name: gradients.full(weight).numpy().copy() for name, weight in drafter.state_dict().items()},
        tuple(result.loss for result in results),
        tuple(result.grad_norm for result in results),
        tuple(batch.outline.micro_batches for batch in batches),
        as_arrays(snapshot),
    )


def whole_state(drafter: Any, optimizer: Any, step: int, next_sample: int, keep: bool) -> Contents | None:
    """What a checkpoint holds, gathered from the ranks."""
    weights, moments = (gathered(part, keep) for part in state_tensors(drafter, optimizer))
    share = take_share(drafter, optimizer, step=step, next_sample=next_sample, run_id="r", identity={})
    return Contents(step, weights, moments, share.state) if keep else None


def as_arrays(contents: Contents | None) -> Contents | None:
    return contents and converted(contents, lambda tensor: tensor.detach().numpy().copy())


def converted(contents: Contents, convert: Callable[[Any], Any]) -> Contents:
    parts = ({name: convert(value) for name, value in part.items()} for part in (contents.weights, contents.moments))
    return Contents(contents.step, *parts, contents.state)


def alone(make_memory_world: Callable[..., Any], settings: dict[str, Any], begun: Contents | None = None) -> Trained:
    return train(World(), make_memory_world, "ddp", settings, begun)


def assert_near(found: Trained, expected: Trained) -> None:
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-5)
    np.testing.assert_allclose(found.norms, expected.norms, rtol=1e-4)
    apart = sum(float(np.square(found.weights[name] - expected.weights[name]).sum()) for name in expected.weights) ** 0.5
    moved = sum(float(np.square(weight).sum()) for weight in expected.weights.values()) ** 0.5
    assert apart / moved < ADDED_DIFFERENTLY


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert np.array_equal(found[name], value), name


@pytest.mark.parametrize("objective", ["decayed_ce", "dpace"])
@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
def test_uneven_ranks_train_as_one_process_does_and_repeat_it_to_the_bit(
    in_ranks: Callable[..., list], memory_world: Callable[..., Any], way: str, objective: str
) -> None:
    settings = {"objective": objective, "tokens_per_step": 192}
    first, again = (in_ranks(3, {}, train, memory_world, way, settings) for _ in range(2))
    assert any(max(counts) > min(counts) for counts in first[0].micro_batches), "or it says nothing of uneven ranks"
    assert_near(first[0], alone(memory_world, settings))
    for rank in range(3):
        assert_equal(first[rank].weights, first[0].weights)
        assert_equal(again[rank].weights, first[0].weights)
        assert (first[rank].losses, first[rank].norms) == (again[0].losses, again[0].norms)


@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
def test_a_rank_without_rows_follows(in_ranks: Callable[..., list], memory_world: Callable[..., Any], way: str) -> None:
    settings = {"rows": 8, "tokens_per_step": 16, "tokens_per_microbatch": 16}
    found = in_ranks(2, {}, train, memory_world, way, settings)
    assert (1, 0) in found[0].micro_batches
    assert_near(found[0], alone(memory_world, settings))
    assert_equal(found[1].weights, found[0].weights)


def test_buckets_hold_every_parameter_once_from_the_last_to_the_first(memory_world: Callable[..., Any]) -> None:
    drafter = memory_world().trainee.drafter
    buckets = _in_buckets(drafter, SMALL_BUCKET)
    flat = [parameter for bucket in buckets for parameter in bucket]
    assert [id(p) for p in flat] == [id(p) for p in reversed(list(drafter.parameters()))]
    assert len(buckets) > 4 and all(len(b) == 1 or sum(4 * p.numel() for p in b) <= SMALL_BUCKET for b in buckets)
    assert len(_in_buckets(drafter, 1 << 20)) == 1


def watch_reductions(world: World, make_memory_world: Callable[..., Any]) -> Any:
    """(micro-batches begun, numbers reduced) at every all-reduce of a bucket, and those of each bucket."""
    here = make_memory_world(tokens_per_step=256)
    ranks = DataParallel(here.trainee.drafter, world.device_group, world.drafters, SMALL_BUCKET)
    seen: list[tuple[str, int, int]] = []
    state = {"begun": 0, "where": "before"}
    genuine, before, finish = gradients.dist.all_reduce, ranks.before_backward, ranks.finish_gradients

    def all_reduce(tensor: torch.Tensor, *args: Any, **how: Any) -> Any:
        if how.get("group") is world.device_group:
            seen.append((state["where"], state["begun"], tensor.numel()))
        return genuine(tensor, *args, **how)

    def begin(last: bool) -> None:
        state.update(begun=state["begun"] + 1, where="backward")
        before(last)

    def end() -> None:
        state["where"] = "finish"
        finish()

    gradients.dist.all_reduce, ranks.before_backward, ranks.finish_gradients = all_reduce, begin, end
    batch = next(iter(steps_of(world, here)))
    optimizer = make_optimizer(here.trainee.drafter, here.config.training)
    train_step(here.trainee, optimizer, batch, 1e-3, here.config.training, ranks)
    return len(batch.micro_batches), seen, [bucket.flat.numel() for bucket in ranks._buckets]


def test_buckets_are_reduced_once_in_order_during_the_last_backward(
    in_ranks: Callable[..., list], memory_world: Callable[..., Any]
) -> None:
    for num_micro_batches, seen, sizes in in_ranks(2, {}, watch_reductions, memory_world):
        assert num_micro_batches > 1 and len(sizes) > 4
        assert [size for _, _, size in seen] == sizes
        assert {begun for _, begun, _ in seen} == {num_micro_batches}, "none before the last micro-batch"
        assert [where for where, _, _ in seen].count("backward") >= len(sizes) - 1, "while the backward goes on"


def clip_to(world: World, make_memory_world: Callable[..., Any], way: str) -> Any:
    """The norm before, and what is left of the gradients after clipping to a thousandth."""
    here = make_memory_world(training={"max_grad_norm": 1e-3})
    ranks = ranks_of(world, here.trainee, way)
    optimizer, kept = make_optimizer(here.trainee.drafter, here.config.training), {}

    def keep(*_: Any) -> None:
        kept.update({name: gradients.full(p.grad).clone().numpy() for name, p in here.trainee.drafter.named_parameters()})

    optimizer.register_step_pre_hook(keep)
    result = train_step(here.trainee, optimizer, next(iter(steps_of(world, here))), 1e-3, here.config.training, ranks)
    return result.grad_norm, kept


@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
def test_gradients_and_their_norm_are_those_of_one_process(
    in_ranks: Callable[..., list], memory_world: Callable[..., Any], way: str
) -> None:
    norm, expected = clip_to(World(), memory_world, way)
    assert norm > 0.01
    for found_norm, found in in_ranks(2, {}, clip_to, memory_world, way):
        assert found_norm == pytest.approx(norm, rel=1e-5)
        assert sum(float(np.square(g.astype(np.float64)).sum()) for g in found.values()) ** 0.5 == pytest.approx(1e-3, rel=1e-2)
        for name, gradient in expected.items():
            np.testing.assert_allclose(found[name], gradient, rtol=1e-3, atol=1e-8, err_msg=name)


def pass_through(world: World, make_memory_world: Callable[..., Any], way: str, contents: Contents) -> Contents | None:
    """Contents to this world's ranks and back."""
    here = make_memory_world()
    ranks_of(world, here.trainee, way)
    optimizer = make_optimizer(here.trainee.drafter, here.config.training)
    restore(converted(contents, torch.from_numpy), here.trainee.drafter, optimizer)
    kept = whole_state(here.trainee.drafter, optimizer, contents.step, 0, world.is_writer)
    return as_arrays(kept)


@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
def test_a_checkpoint_survives_its_way_into_ranks_and_back(
    in_ranks: Callable[..., list], memory_world: Callable[..., Any], way: str
) -> None:
    whole = alone(memory_world, {}).snapshot
    for size in (2, 3):  # three cut the rows of 16 unevenly
        found, *others = in_ranks(size, {}, pass_through, memory_world, way, whole)
        assert others == [None] * (size - 1), "only the writer keeps it"
        assert found.step == STEPS and len(found.moments) == 3 * len(found.weights)
        assert_equal(found.weights, whole.weights)
        assert_equal(found.moments, whole.moments)


@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
def test_a_run_goes_on_in_a_world_of_another_size(in_ranks: Callable[..., list], memory_world: Callable[..., Any], way: str) -> None:
    settings = {"training": {"epochs": 3}}
    begun = in_ranks(3, {}, train, memory_world, way, settings)[0].snapshot
    expected = alone(memory_world, settings, alone(memory_world, settings).snapshot)
    assert_near(in_ranks(2, {}, train, memory_world, way, settings, begun)[0], expected)
    assert_near(alone(memory_world, settings, begun), expected)
