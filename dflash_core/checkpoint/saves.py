"""The saves of a session on one drafter rank: staged in the loop, written beside it, at most one in flight.

At a boundary between two updates the state is copied into kept buffers, and a thread writes them. Every step the ranks add up
who is still writing and who failed, in the sum that they make anyway: so all of them begin a save at the same step, know of a
failure within one step, and log what is on disk. A save that falls due while one is in flight begins at the first boundary
after it. Only the last save of a session is waited for.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dflash_core.checkpoint.contents import Share
from dflash_core.checkpoint.retention import Retention, best_name, prune
from dflash_core.checkpoint.staging import HostBuffers
from dflash_core.checkpoint.store import CheckpointStore, Committed, Writing
from dflash_core.checkpoint.writer import BESIDE_CORES, BESIDE_GPU, BackgroundWriter
from dflash_core.config import Config
from dflash_core.distributed.gradients import Ranks
from dflash_core.errors import CheckpointError
from dflash_core.training.hooks import News, Position
from dflash_core.training.records import CheckpointRecord, Log

_LOOK_S = 0.05
_RESCUE_S = 5.0  # after an error, for other ranks to have written their shards


@dataclass(frozen=True)
class Past:
    """What earlier sessions left of a run."""

    step: int = 0  # of the checkpoint that this session goes on from
    digest: str | None = None
    passed_over: tuple[str, ...] = ()  # newer ones, which are bad
    taus: Mapping[int, float] = field(default_factory=dict)  # acceptance length by step, of those that were measured


@dataclass
class _Flight:
    """One save between its copy and its record."""

    position: Position
    deferred: int
    blocked_s: float


class Saves:
    """As training.hooks.Saves.

    Args:
        share: this rank's part of the live state; None where it writes nothing.
        origin: for the manifests, see lineage.py.
        token: of the session: eight hexadecimal digits, the same in all ranks.
    """

    def __init__(
        self,
        share: Callable[[Position], Share | None],
        buffers: HostBuffers,
        store: CheckpointStore,
        ranks: Ranks,
        log: Log,
        config: Config,
        origin: Mapping[str, Any],
        token: str,
        past: Past | None = None,
    ) -> None:
        past = past or Past()
        self._share, self._buffers, self._store, self._ranks, self._log = share, buffers, store, ranks, log
        self._config, self._origin, self._token = config, origin, token
        self._parent, self._begun_step = past.digest, past.step
        self._passed_over, self._taus = set(past.passed_over), dict(past.taus)
        self._writer = BackgroundWriter()
        self._flight: _Flight | None = None
        self._due_since: int | None = None

    def news(self) -> tuple[float, float]:
        return float(self._writer.busy), float(self._writer.failed)

    def boundary(self, position: Position, due: bool, news: News) -> float:
        began = time.perf_counter()
        acted = self._settle(news)
        if due and self._due_since is None:
            self._due_since = position.step
        if self._due_since is not None and self._flight is None:
            acted = True
            if self._config.checkpoint.wait:
                self._save_now(position)
            else:
                self._begin(position)
        return time.perf_counter() - began if acted else 0.0

    def measured(self, step: int, metrics: Mapping[str, float | None]) -> None:
        if (tau := metrics.get("tau")) is not None:
            self._taus[step] = tau

    def finish(self, position: Position) -> None:
        self._wait()
        if self._begun_step != position.step:
            self._save_now(position)

    def rescue(self) -> None:
        if self._flight is not None:
            self._writer.hurry()
            self._writer.join(_RESCUE_S if self._ranks.lockstep else None)
            self.close()
            self._settle(self.news())

    def close(self) -> None:
        self._writer.give_up()
        self._writer.join()

    def _save_now(self, position: Position) -> None:
        self._begin(position)
        self._wait()

    def _begin(self, position: Position) -> None:
        began = time.perf_counter()
        share = self._share(position)
        staged = share and self._buffers.stage(share)
        due_since, self._due_since = self._due_since or position.step, None
        self._flight = _Flight(position, position.step - due_since, time.perf_counter() - began)
        self._begun_step = position.step
        if staged is not None:
            self._writer.start(lambda: self._write(staged), core_share=BESIDE_GPU if self._buffers.of_gpu else BESIDE_CORES)

    def _write(self, share: Share) -> tuple[Committed | None, float]:
        """In the writer's thread."""
        began = time.perf_counter()
        self._buffers.wait()
        origin = dict(self._origin) | {"parent": self._parent}
        writing = Writing(origin, self._token, self._writer.given_up, self._config.distributed.timeout_s)
        committed = self._store.write(share, writing)
        seconds = time.perf_counter() - began
        if committed is not None:
            self._passed_over.discard(committed.name)  # it took the place of one
            settings = self._config.checkpoint
            best = best_name(self._store, dict(self._taus))
            prune(self._store, Retention(settings.keep_last, settings.keep_every), self._passed_over, best)
        return committed, seconds

    def _wait(self) -> None:
        """Stand still until the save in flight, if there is one, is on disk in all ranks.

        In short looks, at which the ranks meet: the first waits for shards, and one of another rank may have failed.
        """
        while self._flight is not None:
            began = time.perf_counter()
            self._writer.hurry()
            self._writer.join(_LOOK_S)
            news = self._ranks.sum(self.news())
            self._flight.blocked_s += time.perf_counter() - began
            self._settle(news)

    def _settle(self, news: News) -> bool:
        """End a flight that all ranks have ended; whether there was one. Errors as `boundary`."""
        writing, failed = news
        if failed:
            self._writer.give_up()
            if self._writer.failed:
                self._writer.result()
            raise CheckpointError("the checkpoint failed in another rank; the earlier ones are untouched. See that rank's log, then resume.")
        if self._flight is None or writing:
            return False
        flight, self._flight = self._flight, None
        committed, seconds = self._writer.result() or (None, 0.0)
        if committed is not None:
            self._parent = committed.digest
            self._log.append(self._record(committed, flight, seconds))
        return True

    def _record(self, committed: Committed, flight: _Flight, seconds: float) -> CheckpointRecord:
        return CheckpointRecord(
            **self._log.stamp(committed.step),
            name=committed.name,
            digest=committed.digest,
            weights_digest=committed.weights_digest,
            next_sample=flight.position.next_sample,
            num_bytes=committed.num_bytes,
            seconds=seconds,
            blocked_s=flight.blocked_s,
            deferred=flight.deferred,
        )
