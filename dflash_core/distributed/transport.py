"""Features from target ranks to drafter ranks, micro-batch by micro-batch, device to device.

Both sides read the same plan, so nothing but features and a short header travels. All micro-batches of all drafter
ranks are numbered in one order (step, place in the share, drafter rank); number mod teams is the team that computes
one. Every rank works in that order, so no two can wait for each other.

A drafter rank grants credit for as many micro-batches as it has room for, and a team sends one only against a credit:
it runs ahead by a bounded amount, whatever the network buffers. Headers and credits go by gloo, features by the
device's own backend.

Dims: B batch rows, T tokens (padded), F features width.
"""

import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from dflash_core.distributed.world import World
from dflash_core.errors import DflashError, PipelineError

FEATURES, FAILED = 0, 1
GRANT, STOP = 1, 2
# Micro-batches that one team may have on the way to one drafter rank: one in the network, one in work.
CREDITS = 2
_MICROSECONDS = 1e6


@dataclass(frozen=True)
class Unit:
    """One micro-batch on its way: `number` counts all of the session."""

    number: int
    step: int
    place: int
    drafter: int  # rank

    def team(self, world: World) -> tuple[int, ...]:
        """The ranks that compute it."""
        return world.teams[self.number % len(world.teams)]


def units_of_step(first_number: int, step: int, counts: Sequence[int], world: World) -> Iterator[Unit]:
    """The step's units; `counts` are micro-batches of each drafter rank."""
    order = [(place, rank) for place in range(max(counts)) for rank, count in zip(world.drafter_ranks, counts, strict=True) if place < count]
    for offset, (place, rank) in enumerate(order):
        yield Unit(first_number + offset, step, place, rank)


class FeatureReceiver:
    """A drafter rank's end; used by one thread. `busy_s` and `idle_s` are what the teams say of themselves, averaged."""

    def __init__(self, world: World, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self._world, self._width, self._dtype, self._device = world, width, dtype, device
        self.busy_s = self.idle_s = 0.0
        self.stop_requested = False  # a target rank has got a signal
        self._greeted = False
        # Words that may still be on the way must not be freed; older ones have been taken.
        self._words: deque[tuple[dist.Work, Tensor]] = deque(maxlen=(CREDITS + 2) * len(world.teams))

    def receive(self, unit: Unit, shape_BT: tuple[int, int]) -> Tensor:
        """features_BTF of the next unit of this rank.

        Raises:
            PipelineError: the team is gone, stuck, failed (with its own traceback), or sent something else.
        """
        if not self._greeted:
            self._greet()
        source = unit.team(self._world)[0]
        header = torch.empty(8, dtype=torch.int64)
        self._wait(lambda: dist.recv(header, source, self._world.messages), unit, source)
        kind, number, *shape, busy, idle, stop = header.tolist()
        if kind == FAILED:
            raise PipelineError(f"{self._world.name(source)} failed at step {unit.step}: {self._read_text(source, number)}")
        found, expected = (number, *shape), (unit.number, *shape_BT, self._width)
        if found != expected:
            raise PipelineError(
                f"{self._world.name(source)} sent micro-batch {found[0]} of shape {found[1:]}, {self._world.name(self._world.rank)} "
                f"expected {expected[0]} of shape {expected[1:]}. Do all nodes read the same data? Resume, and report it."
            )
        features_BTF = torch.empty(*shape, dtype=self._dtype, device=self._device)
        self._wait(lambda: dist.recv(features_BTF, source, self._world.features), unit, source)
        self.busy_s += busy / _MICROSECONDS / len(self._world.teams)
        self.idle_s += idle / _MICROSECONDS / len(self._world.teams)
        self.stop_requested |= bool(stop)
        self._send_word(source, GRANT)
        return features_BTF

    def stop(self) -> None:
        """Tell all teams that the drafter ranks have stopped, and wait until they know. A team that is gone needs no telling."""
        words = [self._send_word(team[0], STOP) for team in self._world.teams]
        for work in words:
            with suppress(RuntimeError):
                work.wait()

    def _greet(self) -> None:
        self._greeted = True
        for team in self._world.teams:
            for _ in range(CREDITS):
                self._send_word(team[0], GRANT)

    def _send_word(self, destination: int, word: int) -> dist.Work:
        """Without waiting: the last credits are never taken, since no micro-batch is left for them."""
        tensor = torch.tensor([word])
        work = dist.isend(tensor, destination, self._world.messages)
        self._words.append((work, tensor))
        return work

    def _wait(self, receive: Callable[[], object], unit: Unit, source: int) -> None:
        try:
            receive()
        except RuntimeError as error:
            raise lost(self._world, f"features of step {unit.step}, micro-batch {unit.place}", source, error) from None

    def _read_text(self, source: int, length: int) -> str:
        text = torch.empty(length, dtype=torch.uint8)
        dist.recv(text, source, self._world.messages)
        return text.numpy().tobytes().decode()


class FeatureSender:
    """A team leader's end; used by one thread."""

    def __init__(self, world: World, stop_requested: Callable[[], bool]) -> None:
        self._world, self._stop_requested = world, stop_requested
        self._on_the_way: dict[int, deque[tuple[Sequence[dist.Work], tuple[Tensor, ...]]]] = {}
        self._idle_s = 0.0

    def wait_for_credit(self, unit: Unit) -> int:
        """Block until the drafter rank has room: GRANT, or STOP where it has stopped."""
        word = torch.empty(1, dtype=torch.int64)
        began = time.perf_counter()
        try:
            dist.recv(word, unit.drafter, self._world.messages)
        except RuntimeError as error:
            raise lost(self._world, f"room for step {unit.step}, micro-batch {unit.place}", unit.drafter, error) from None
        self._idle_s += time.perf_counter() - began
        return int(word)

    def send(self, unit: Unit, features_BTF: Tensor, busy_s: float) -> None:
        """Start sending. Buffers are kept until a later credit proves that they have arrived."""
        features_BTF = features_BTF.contiguous()
        times = [int(busy_s * _MICROSECONDS), int(self._idle_s * _MICROSECONDS)]
        header = torch.tensor([FEATURES, unit.number, *features_BTF.shape, *times, int(self._stop_requested())])
        self._idle_s = 0.0
        works = (
            dist.isend(header, unit.drafter, self._world.messages),
            dist.isend(features_BTF, unit.drafter, self._world.features),
        )
        queue = self._on_the_way.setdefault(unit.drafter, deque())
        queue.append((works, (header, features_BTF)))
        if len(queue) > CREDITS:
            _wait_for(queue.popleft()[0])

    def fail(self, unit: Unit, error: Exception) -> None:
        """Put the error in the unit's place, for the drafter rank that waits for it."""
        message = str(error) if isinstance(error, DflashError) else "".join(traceback.format_exception(error))
        text = torch.frombuffer(bytearray(message.encode()), dtype=torch.uint8)
        dist.send(torch.tensor([FAILED, len(text), 0, 0, 0, 0, 0, 0]), unit.drafter, self._world.messages)
        dist.send(text, unit.drafter, self._world.messages)

    def drain(self) -> None:
        """Wait until everything has arrived."""
        for queue in self._on_the_way.values():
            for works, _ in queue:
                _wait_for(works)
        self._on_the_way.clear()


def _wait_for(works: Sequence[dist.Work]) -> None:
    for work in works:
        work.wait()


def lost(world: World, what: str, source: int, error: RuntimeError) -> PipelineError:
    """A wait for another rank that ended without an answer, in words."""
    text = " ".join(str(error).split())
    why = "is stuck" if "timed out" in text.lower() else "is gone"
    return PipelineError(
        f"{world.name(world.rank)} waited for {what} from {world.name(source)}, which {why} ({text[:160]}). Look at that rank's log, then resume."
    )
