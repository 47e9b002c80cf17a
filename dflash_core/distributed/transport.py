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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from dflash_core.distributed.world import World, lost_because
from dflash_core.errors import DflashError, PipelineError

FEATURES, FAILED, STOPPED = 0, 1, 2  # kinds of header
GRANT, STOP = 1, 2  # words
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
    """A drafter rank's end; used by one thread, `stop` by any.

    `busy_s` and `idle_s` are seconds that teams worked for this rank and were held back before, by the number of teams: the
    sum over drafter ranks is what an average team did.
    """

    def __init__(self, world: World, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self._world, self._width, self._dtype, self._device = world, width, dtype, device
        self.busy_s = self.idle_s = 0.0
        self.stop_requested = False  # a target rank has got a signal
        self._greeted = False
        self._ended: set[int] = set()  # leaders that have sent their last
        # A word that nobody has taken is lost when it is freed. What a leader sends answers one word, and it takes them in
        # order: all but CREDITS and a STOP have been taken. Each has its own, since some may not be needed for long.
        self._words: dict[int, deque[tuple[dist.Work, Tensor]]] = {team[0]: deque(maxlen=CREDITS + 1) for team in world.teams}
        self._stops: list[dist.Work] = []

    def receive(self, unit: Unit, shape_BT: tuple[int, int]) -> Tensor:
        """features_BTF of the next unit of this rank.

        Raises:
            PipelineError: the team is gone, stuck, failed (with its own traceback), or sent something else.
        """
        if not self._greeted:
            self._greet()
        source = unit.team(self._world)[0]
        with _named_loss(self._world, f"features of step {unit.step}, micro-batch {unit.place}", source):
            (kind, number, *shape, busy, idle, stop), content = self._take(source)
        if kind == FAILED:
            raise PipelineError(f"{self._world.name(source)} failed at step {unit.step}: {content.numpy().tobytes().decode()}")
        found, expected = (number, *shape), (unit.number, *shape_BT, self._width)
        if kind == STOPPED or found != expected:
            what = "its end" if kind == STOPPED else f"micro-batch {found[0]} of shape {found[1:]}"
            raise PipelineError(
                f"{self._world.name(source)} sent {what}, {self._world.name(self._world.rank)} expected micro-batch {expected[0]} of "
                f"shape {expected[1:]}. Do all nodes read the same data? Resume, and report it."
            )
        self.busy_s += busy / _MICROSECONDS / len(self._world.teams)
        self.idle_s += idle / _MICROSECONDS / len(self._world.teams)
        self.stop_requested |= bool(stop)
        with _named_loss(self._world, f"features of step {unit.step}, micro-batch {unit.place}", source):
            self._send_word(source, GRANT)
        return content

    def stop(self) -> None:
        """Tell all teams that the drafter ranks stop. They send no more, and the thread that waits for them ends."""
        for team in self._world.teams:
            with suppress(RuntimeError):  # a team that is gone needs no telling
                self._stops.append(self._send_word(team[0], STOP))

    def drain(self) -> None:
        """After the last micro-batch, or after `stop` when the receiving thread has ended: take all up to each team's end.

        A team waits until everything is taken: what nobody takes would be waited for when NCCL's groups are destroyed, for ever.
        And it hears STOP from every drafter rank, so none may go before; a team that was done already hears nothing, and goes.
        """
        for team in self._world.teams:
            with suppress(RuntimeError):
                while team[0] not in self._ended:
                    self._take(team[0])
        for work in self._stops:
            with suppress(RuntimeError):
                work.wait()

    def _take(self, source: int) -> tuple[list[int], Tensor]:
        """A team's next header, and what follows it: features, or the text of an error."""
        header = torch.empty(8, dtype=torch.int64)
        dist.recv(header, source, self._world.messages)
        kind, number, *shape, _, _, _ = header.tolist()
        content = torch.empty(0)
        if kind == STOPPED:
            self._ended.add(source)
        elif kind == FAILED:
            content = torch.empty(number, dtype=torch.uint8)
            dist.recv(content, source, self._world.messages)
        else:
            content = torch.empty(*shape, dtype=self._dtype, device=self._device)
            dist.recv(content, source, self._world.features)
        return header.tolist(), content

    def _greet(self) -> None:
        self._greeted = True
        for team in self._world.teams:
            for _ in range(CREDITS):
                self._send_word(team[0], GRANT)

    def _send_word(self, destination: int, word: int) -> dist.Work:
        """Without waiting: the last credits are never taken, since no micro-batch is left for them."""
        tensor = torch.tensor([word])
        work = dist.isend(tensor, destination, self._world.messages)
        self._words[destination].append((work, tensor))
        return work


class FeatureSender:
    """A team leader's end; used by one thread."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._on_the_way: dict[int, deque[tuple[Sequence[dist.Work], tuple[Tensor, ...]]]] = {rank: deque() for rank in world.drafter_ranks}
        self._idle_s = 0.0

    def wait_for_credit(self, unit: Unit) -> int:
        """Block until the drafter rank has room: GRANT, or STOP where it has stopped. Raises PipelineError as all methods do."""
        began = time.perf_counter()
        word = self._hear(unit.drafter, f"room for step {unit.step}, micro-batch {unit.place}")
        self._idle_s += time.perf_counter() - began
        return word

    def send(self, unit: Unit, features_BTF: Tensor, busy_s: float, stop_requested: bool = False) -> None:
        """Start sending. Buffers are kept until a later credit proves that they have arrived."""
        features_BTF = features_BTF.contiguous()
        times = [int(busy_s * _MICROSECONDS), int(self._idle_s * _MICROSECONDS)]
        header = torch.tensor([FEATURES, unit.number, *features_BTF.shape, *times, int(stop_requested)])
        self._idle_s = 0.0
        with _named_loss(self._world, f"micro-batch {unit.place} of step {unit.step} to be taken", unit.drafter):
            works = (
                dist.isend(header, unit.drafter, self._world.messages),
                dist.isend(features_BTF, unit.drafter, self._world.features),
            )
            queue = self._on_the_way[unit.drafter]
            queue.append((works, (header, features_BTF)))
            if len(queue) > CREDITS:
                _wait_for(queue.popleft()[0])

    def fail(self, unit: Unit, error: Exception) -> None:
        """Put the error in the unit's place, for the drafter rank that waits for it; where that is gone, the caller's own raise remains."""
        message = str(error) if isinstance(error, DflashError) else "".join(traceback.format_exception(error))
        text = torch.frombuffer(bytearray(message.encode()), dtype=torch.uint8)
        with suppress(RuntimeError):
            dist.send(torch.tensor([FAILED, len(text), 0, 0, 0, 0, 0, 0]), unit.drafter, self._world.messages)
            dist.send(text, unit.drafter, self._world.messages)

    def stop(self, told_by: int) -> None:
        """A drafter rank has said STOP: send the others their end, hear it from them, too, and wait until everything is taken."""
        self._send_end()
        for drafter in self._world.drafter_ranks:
            while drafter != told_by and self._hear(drafter, "its stop") != STOP:
                pass  # room that it had granted before
        self._drain()

    def finish(self) -> None:
        """After the last micro-batch: wait until everything is taken, the end as well."""
        self._send_end()
        self._drain()

    def _send_end(self) -> None:
        header = torch.tensor([STOPPED, 0, 0, 0, 0, 0, 0, 0])
        for drafter, queue in self._on_the_way.items():
            with _named_loss(self._world, "the end to be taken", drafter):
                queue.append(((dist.isend(header, drafter, self._world.messages),), (header,)))

    def _drain(self) -> None:
        for drafter, queue in self._on_the_way.items():
            with _named_loss(self._world, "the last micro-batches to be taken", drafter):
                for works, _ in queue:
                    _wait_for(works)
            queue.clear()

    def _hear(self, drafter: int, what: str) -> int:
        word = torch.empty(1, dtype=torch.int64)
        with _named_loss(self._world, what, drafter):
            dist.recv(word, drafter, self._world.messages)
        return int(word)


def _wait_for(works: Sequence[dist.Work]) -> None:
    for work in works:
        work.wait()


@contextmanager
def _named_loss(world: World, what: str, source: int) -> Iterator[None]:
    """A wait for another rank that ends without an answer, in words."""
    try:
        yield
    except RuntimeError as error:
        text = " ".join(str(error).split())
        raise PipelineError(
            f"{world.name(world.rank)} waited for {what} from {world.name(source)}, which {lost_because(text)} ({text[:160]}). "
            "Look at that rank's log, then resume."
        ) from None
