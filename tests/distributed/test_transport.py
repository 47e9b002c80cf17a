"""Features reach the drafter ranks whole, in the plan's order and within bounds; who is gone, stuck or broken is named."""

import multiprocessing
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from dflash_core.distributed.transport import CREDITS, GRANT, STOP, FeatureReceiver, FeatureSender, Unit, units_of_step
from dflash_core.distributed.world import World
from dflash_core.errors import ConfigError, PipelineError

WIDTH = 3
CPU = torch.device("cpu")
SHAPE_BT = (2, 5)
ONE_TARGET = {"placement": "split", "target_ranks": 1}
TWO_TARGETS = {"placement": "split", "target_ranks": 2}
Counts = Sequence[Sequence[int]]  # micro-batches of each drafter rank, step by step

pytestmark = pytest.mark.distributed


def units(world: World, counts: Counts) -> list[Unit]:
    found: list[Unit] = []
    for step, of_ranks in enumerate(counts, 1):
        found += units_of_step(len(found), step, of_ranks, world)
    return found


def features_of(unit: Unit, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Differs from unit to unit in every element."""
    return (torch.arange(2 * 5 * WIDTH).view(*SHAPE_BT, WIDTH) + 1000 * unit.number).to(dtype)


def receiver(world: World, dtype: torch.dtype = torch.float32) -> FeatureReceiver:
    return FeatureReceiver(world, WIDTH, dtype, CPU)


def serve_all(world: World, counts: Counts, dtype: torch.dtype = torch.float32) -> None:
    """A team of one that does its share."""
    sender = FeatureSender(world)
    for unit in units(world, counts):
        if unit.team(world) == world.team:
            assert sender.wait_for_credit(unit) == GRANT
            sender.send(unit, features_of(unit, dtype), busy_s=0.5)
    sender.finish()


def text_of(action: Callable[[], object]) -> str:
    """What it raises."""
    try:
        action()
    except PipelineError as error:
        return str(error)
    return "nothing was raised"


def test_micro_batches_are_numbered_by_place_then_rank_and_dealt_to_teams_in_turn(split_world: Callable[..., World]) -> None:
    world = split_world(3, 2, width=2)
    found = list(units_of_step(10, 4, (2, 0, 1), world))
    assert found == [Unit(10, 4, 0, 0), Unit(11, 4, 0, 2), Unit(12, 4, 1, 0)]
    assert [unit.team(world) for unit in found] == [(3, 4), (5, 6), (3, 4)]
    assert list(units_of_step(13, 5, (0, 0, 0), world)) == []


def move(world: World, counts: Counts, dtype: torch.dtype) -> Any:
    if not world.trains:
        serve_all(world, counts, dtype)
        return None
    here = receiver(world, dtype)
    right = [torch.equal(here.receive(unit, SHAPE_BT), features_of(unit, dtype)) for unit in units(world, counts) if unit.drafter == world.rank]
    here.drain()
    return right, here.busy_s


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_features_arrive_bit_by_bit_in_order(in_ranks: Callable[..., list], dtype: torch.dtype) -> None:
    (right, busy_s), _ = in_ranks(2, ONE_TARGET, move, [(3,), (1,), (2,)], dtype)
    assert right == [True] * 6 and busy_s == pytest.approx(3.0)


def test_a_credit_survives_until_a_team_that_was_not_needed_for_long_takes_it(in_ranks: Callable[..., list]) -> None:
    """With two of each, a drafter rank is served by one team only until the numbers of micro-batches differ once."""
    counts = [(1, 1)] * 12 + [(1, 0)] + [(1, 1)] * 6 + [(0, 2)] + [(1, 1)] * 3
    found = in_ranks(4, TWO_TARGETS | {"timeout_s": 30.0}, move, counts, torch.float32)
    assert [len(right) for right, _ in found[:2]] == [22, 23] and all(all(right) for right, _ in found[:2])


def test_what_the_teams_did_adds_up_over_the_drafter_ranks(in_ranks: Callable[..., list]) -> None:
    """Two teams, 0.5 s a micro-batch, 12 of them: 3 s for an average team."""
    found = in_ranks(4, TWO_TARGETS, move, [(1, 2)] * 4, torch.float32)
    assert sum(busy_s for _, busy_s in found[:2]) == pytest.approx(3.0)
    assert [busy_s for _, busy_s in found[:2]] == [pytest.approx(1.0), pytest.approx(2.0)]


def run_ahead(world: World, sent: Any) -> Any:
    work = units(world, [(20,)])
    if not world.trains:
        sender = FeatureSender(world)
        for unit in work:
            assert sender.wait_for_credit(unit) == GRANT
            sender.send(unit, features_of(unit), 0.0)
            sent.value += 1
        sender.finish()
        return None
    here, seen = receiver(world), []
    for unit in work:
        here.receive(unit, SHAPE_BT)
        if unit.number in (0, 7):
            time.sleep(0.5)
            seen.append(sent.value)
    here.drain()
    return seen


def test_a_team_is_never_more_micro_batches_ahead_than_it_has_credit_for(in_ranks: Callable[..., list]) -> None:
    seen, _ = in_ranks(2, ONE_TARGET, run_ahead, multiprocessing.get_context("fork").Value("i", 0))
    assert seen == [1 + CREDITS, 8 + CREDITS]


def expect_otherwise(world: World, skip: int, shape_BT: tuple[int, int]) -> str | None:
    if not world.trains:
        return text_of(lambda: serve_all(world, [(2,)]))  # its peer leaves it
    return text_of(lambda: receiver(world).receive(units(world, [(2,)])[skip], shape_BT))


@pytest.mark.parametrize(
    ("skip", "shape_BT", "message"),
    [
        (1, SHAPE_BT, r"rank 1 \(target\) sent micro-batch 0 of shape \(2, 5, 3\), rank 0 \(drafter\) expected micro-batch 1 of shape \(2, 5, 3\)"),
        (0, (5, 2), r"sent micro-batch 0 of shape \(2, 5, 3\), .* expected micro-batch 0 of shape \(5, 2, 3\)\. Do all nodes read the same data"),
    ],
)
def test_another_micro_batch_than_the_next_is_refused(
    in_ranks: Callable[..., list], skip: int, shape_BT: tuple[int, int], message: str
) -> None:
    found, _ = in_ranks(2, ONE_TARGET, expect_otherwise, skip, shape_BT)
    assert re.search(message, found)


def compute_the_impossible() -> None:
    raise ZeroDivisionError("a forward that fails")


def fail(world: World, ours: bool) -> str | None:
    work = units(world, [(1, 1), (1, 1)])
    if not world.trains:
        sender = FeatureSender(world)
        for unit in work[:2]:
            sender.wait_for_credit(unit)
            sender.send(unit, features_of(unit), 0.0)
        try:
            if ours:
                raise ConfigError("The target is not what it was. Put it back.")
            compute_the_impossible()
        except (ConfigError, ZeroDivisionError) as error:
            sender.fail(work[2], error)
        for _ in range(CREDITS):  # the other has taken its first; it would tell of that one's loss instead
            sender.wait_for_credit(work[3])
        return None
    here = receiver(world)
    mine = [unit for unit in work if unit.drafter == world.rank]
    assert torch.equal(here.receive(mine[0], SHAPE_BT), features_of(mine[0]))
    return text_of(lambda: here.receive(mine[1], SHAPE_BT))


def test_an_error_of_a_target_is_raised_in_the_rank_that_waits_for_it_with_its_traceback(in_ranks: Callable[..., list]) -> None:
    waiting, other, _ = in_ranks(3, ONE_TARGET, fail, False)
    assert waiting.startswith("rank 2 (target) failed at step 2: Traceback (most recent call last)")
    assert "in compute_the_impossible" in waiting and waiting.endswith("ZeroDivisionError: a forward that fails\n")
    assert other.startswith("rank 1 (drafter) waited for features of step 2, micro-batch 0 from rank 2 (target), which is gone")
    waiting, _, _ = in_ranks(3, ONE_TARGET, fail, True)
    assert waiting == "rank 2 (target) failed at step 2: The target is not what it was. Put it back."


def stop_early(world: World) -> Any:
    counts = [(2, 1)] * 10
    if not world.trains:
        sender = FeatureSender(world)
        for unit in units(world, counts):
            if unit.team(world) == world.team:
                if sender.wait_for_credit(unit) == STOP:
                    time.sleep(0.2)  # the other drafter rank could be gone by now
                    sender.stop(unit.drafter)
                    return unit.step, sum(map(len, sender._on_the_way.values()))
                sender.send(unit, features_of(unit), 0.0, stop_requested=unit.step == 3)
        return "to the end"
    here, mine = receiver(world), [unit for unit in units(world, counts) if unit.drafter == world.rank]
    for unit in mine[: len(mine) // 2]:
        here.receive(unit, SHAPE_BT)
    here.stop()
    here.drain()
    return here.stop_requested, here._ended == {2, 3}


def test_a_stop_reaches_the_teams_and_leaves_nothing_on_the_way(in_ranks: Callable[..., list]) -> None:
    found = in_ranks(4, TWO_TARGETS | {"timeout_s": 30.0}, stop_early)
    assert found[:2] == [(True, True)] * 2, "a target rank had a signal; both teams said their last word"
    assert all(5 < step <= 10 and on_the_way == 0 for step, on_the_way in found[2:])


def stop_after_the_end(world: World) -> str:
    if not world.trains:
        serve_all(world, [(2,)])
    else:
        here = receiver(world)
        for unit in units(world, [(2,)]):
            here.receive(unit, SHAPE_BT)
        time.sleep(0.3)
        here.stop()
        here.drain()
    return "done"


def test_a_stop_after_the_last_micro_batch_finds_a_team_that_is_done(in_ranks: Callable[..., list]) -> None:
    assert in_ranks(2, ONE_TARGET | {"timeout_s": 30.0}, stop_after_the_end) == ["done"] * 2


def wait_for_the_other(world: World, leaves: int, lingers_s: float) -> str:
    unit = units(world, [(1,)])[0]
    if world.rank == leaves:
        time.sleep(lingers_s)
        return "left"
    wait = (lambda: receiver(world).receive(unit, SHAPE_BT)) if world.trains else (lambda: FeatureSender(world).wait_for_credit(unit))
    return text_of(wait)


@pytest.mark.parametrize(
    ("leaves", "lingers_s", "message"),
    [
        (0, 0.0, "rank 1 (target) waited for room for step 1, micro-batch 0 from rank 0 (drafter), which is gone"),
        (1, 0.0, "rank 0 (drafter) waited for features of step 1, micro-batch 0 from rank 1 (target), which is gone"),
        (0, 5.0, "rank 1 (target) waited for room for step 1, micro-batch 0 from rank 0 (drafter), which is stuck"),
        (1, 5.0, "rank 0 (drafter) waited for features of step 1, micro-batch 0 from rank 1 (target), which is stuck"),
    ],
)
def test_a_rank_that_is_gone_or_stuck_is_named(in_ranks: Callable[..., list], leaves: int, lingers_s: float, message: str) -> None:
    found = in_ranks(2, ONE_TARGET | {"timeout_s": 3.0 if lingers_s else 30.0}, wait_for_the_other, leaves, lingers_s)
    assert found[1 - leaves].startswith(message)
