"""The channel is bounded, ordered and honest about errors, and leaves no thread behind."""

import itertools
import random
import threading
import time
import traceback
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_core.errors import PipelineError
from dflash_core.training.channel import Channel, Closed, EndOfStream
from dflash_core.training.run_ahead import RunAhead

LONG_S = 20.0  # never reached, unless something hangs
PRODUCER = "the producer under test"


def ahead(stream: Iterator[int], depth: int, timeout_s: float = LONG_S) -> RunAhead[int]:
    return RunAhead(stream, PRODUCER, "the consumer", depth, timeout_s)


def producers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == PRODUCER]


def wait_until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class Broken(Exception):
    pass


def break_in_the_works(item: int) -> None:
    raise Broken(f"item {item}")


class Counting:
    """Items 0, 1, ..., and how far the producer was ever ahead of what the consumer had asked for."""

    def __init__(self, count: int, delays: random.Random, fail_at: int | None = None) -> None:
        self.asked = self.produced = self.lead = 0
        self._count, self._delays, self._fail_at = count, delays, fail_at

    def __iter__(self) -> Iterator[int]:
        for item in range(self._count):
            self.produced = item + 1
            self.lead = max(self.lead, self.produced - self.asked)
            pause(self._delays)
            if item == self._fail_at:
                break_in_the_works(item)
            yield item


def pause(delays: random.Random) -> None:
    """Mostly none, so that both sides overtake each other."""
    time.sleep(delays.choice((0.0, 0.0, 0.0, 0.0002, 0.001)))


@settings(deadline=None, max_examples=80)
@given(depth=st.integers(1, 4), count=st.integers(0, 25), fail_at=st.none() | st.integers(0, 25), leave_at=st.none() | st.integers(0, 25), seed=st.integers())
def test_whatever_the_pace_items_come_once_in_order_and_the_producer_stays_near(
    depth: int, count: int, fail_at: int | None, leave_at: int | None, seed: int
) -> None:
    delays = random.Random(seed)
    stream, taken, error = Counting(count, random.Random(delays.random()), fail_at), [], None
    with ahead(iter(stream), depth) as items:
        try:
            while leave_at is None or len(taken) < leave_at:
                stream.asked += 1
                taken.append(next(items))
                pause(delays)
        except StopIteration:
            pass
        except Broken as broken:
            error = broken
    expected = min(x for x in (count, fail_at, leave_at) if x is not None)
    assert taken == list(range(expected))
    failing = fail_at is not None and fail_at < count and (leave_at is None or leave_at > fail_at)
    assert (error is not None) == failing
    assert stream.lead <= depth + 1, "items that wait, and the one in work"
    assert not producers()


def test_a_full_channel_holds_the_producer_back_and_says_for_how_long() -> None:
    stream = Counting(100, random.Random(0))
    with ahead(iter(stream), 3) as items:
        wait_until(lambda: items.waiting == 3)
        time.sleep(0.1)
        assert (items.waiting, stream.produced) == (3, 4)
        assert items.channel.blocked_s < 0.05, "counted where the wait ends"
        assert next(items) == 0
        wait_until(lambda: stream.produced == 5)
        assert items.channel.blocked_s >= 0.09


@pytest.mark.parametrize("numbers", [[1], [0, 2], [0, 0], [0, 1, 0]])
def test_a_gap_and_a_repeat_are_refused(numbers: list[int]) -> None:
    channel: Channel[str] = Channel("target", "drafter", 5, LONG_S)
    for number in numbers:
        channel.put(number, "item")
    good = next(place for place, number in enumerate(numbers) if place != number)
    for _ in range(good):
        channel.get()
    with pytest.raises(PipelineError, match=f"target handed item {numbers[good]} to drafter, expected {good}: one is lost or repeated"):
        channel.get()


def test_an_error_arrives_after_what_came_before_it_with_the_producers_own_frames() -> None:
    stream = Counting(5, random.Random(0), fail_at=2)
    with ahead(iter(stream), 4) as items:
        wait_until(lambda: not producers())
        assert [next(items), next(items)] == [0, 1]
        with pytest.raises(Broken, match="item 2") as error:
            next(items)
        with pytest.raises(Broken):  # and again, for whoever asks again
            next(items)
    frames = [frame.name for frame in traceback.extract_tb(error.value.__traceback__)]
    assert {"_produce", "break_in_the_works"} < set(frames)


def test_an_error_of_the_consumer_is_the_one_that_counts() -> None:
    with pytest.raises(KeyError), ahead(iter(Counting(5, random.Random(0), fail_at=1)), 4) as items:
        wait_until(lambda: not producers())
        raise KeyError(next(items))


def test_a_stream_that_has_ended_stays_so() -> None:
    with ahead(iter([7]), 1) as items:
        assert list(items) == [7] and list(items) == []


def test_a_silent_producer_is_named() -> None:
    channel: Channel[int] = Channel("rank 3 (target)", "rank 0 (drafter)", 1, 0.05)
    with pytest.raises(PipelineError, match=r"rank 0 \(drafter\) waited 0.05 s for item 0 of rank 3 \(target\), so rank 3 \(target\) is stuck"):
        channel.get()


def test_a_consumer_that_takes_nothing_is_named() -> None:
    channel: Channel[int] = Channel("rank 3 (target)", "rank 0 (drafter)", 1, 0.05)
    channel.put(0, 0)
    with pytest.raises(PipelineError, match=r"rank 0 \(drafter\) took nothing .* for 0.05 s \(1 items wait, .*so rank 0 \(drafter\) is stuck"):
        channel.put(1, 1)


def test_the_consumer_hears_of_a_producer_that_gave_it_up() -> None:
    with ahead(itertools.count(), 2, timeout_s=0.05) as items:
        wait_until(lambda: not producers())
        assert [next(items), next(items)] == [0, 1]
        with pytest.raises(PipelineError, match="the consumer took nothing"):
            next(items)


def test_leaving_wakes_a_producer_that_is_held_back() -> None:
    began = time.monotonic()
    with ahead(itertools.count(), 1) as items:
        wait_until(lambda: items.waiting == 1)
    assert time.monotonic() - began < LONG_S / 4 and not producers() and items.waiting == 0


def test_a_closed_channel_takes_nothing_more() -> None:
    channel: Channel[int] = Channel("target", "drafter", 2, LONG_S)
    channel.put(0, 0)
    channel.close()
    with pytest.raises(Closed):
        channel.put(1, 1)
    channel.finish()
    with pytest.raises(EndOfStream):
        channel.get()


def stuck(until: threading.Event) -> Iterator[int]:
    yield 0
    until.wait()


def test_a_producer_that_hangs_is_named_where_nothing_else_is_wrong() -> None:
    until = threading.Event()
    with pytest.raises(PipelineError, match=f"{PRODUCER} did not end within 0.1 s of being closed, so it is stuck"), ahead(stuck(until), 1, 0.1) as items:
        next(items)
    with pytest.raises(KeyError), ahead(stuck(until), 1, 0.1) as items:
        raise KeyError(next(items))
    until.set()
    wait_until(lambda: not producers())
