"""Decides when this node's ranks are signalled, and what their end means.

The first of these events sets a timetable of signals, which isn't changed by what follows from it:

| event | signals |
| --- | --- |
| we are asked to stop | the same signal at once; SIGKILL after the grace period |
| a rank ends with exit code 4: all were asked by other ways | none; SIGKILL after the grace period, for others may still be saving |
| a rank fails, here or on another node | SIGTERM after 2 s, in which the others fail by themselves and say why; SIGKILL 10 s later |

torchrun's own process handling sends SIGTERM the moment a rank ends with any code but 0, which would interrupt the rank that
is saving for all, and reports every stop as exit code 1.
"""

import signal
import socket
import time
from collections.abc import Sequence

from dflash_core.errors import Stopped
from dflash_core.launcher.failure import Failure, RunFailed, exited, killed
from dflash_core.launcher.output import RankOutput
from dflash_core.launcher.processes import RankProcess

SETTLE_S = 2.0
FAILING_GRACE_S = 10.0


class Supervision:
    """The state of one launch on this node. `advance` is called until no rank runs, then `raise_outcome`."""

    def __init__(self, ranks: Sequence[RankProcess], output: RankOutput, grace_s: float) -> None:
        self._ranks, self._output, self._grace_s = ranks, output, grace_s
        self._timetable: list[tuple[float, int]] | None = None
        self._began = 0.0  # wall clock
        self._asked: int | None = None
        self._others_stopped = False
        self._other_failures: list[Failure] = []

    @property
    def running(self) -> list[int]:
        """Ranks that run."""
        return [r.rank for r in self._ranks if r.running]

    @property
    def stopped(self) -> bool:
        """A rank has saved and ended, and can be resumed; or it was asked before it had anything to save."""
        return any(r.code == Stopped.exit_code or self._ended_by_us(r) for r in self._ranks)

    @property
    def failure(self) -> Failure | None:
        """The root cause among this node's ranks."""
        failures = [self._failure_of(rank) for rank in self._ranks if self._has_failed(rank)]
        overdue = [rank for rank in self._ranks if rank.code == -signal.SIGKILL and signal.SIGKILL in rank.sent]
        if overdue:
            failures.append(self._overdue(overdue))
        return min(failures, key=lambda f: f.order, default=None)

    def ask_to_stop(self, number: int) -> None:
        """A signal has come to us: pass it on once. A second Ctrl-C, by someone who doesn't want to wait, kills."""
        if self._asked is None:
            self._asked = number
        elif number == signal.SIGINT:
            self._timetable = [(time.monotonic(), signal.SIGKILL)]
            self._began = self._began or time.time()

    def others_stopped(self) -> None:
        """Ranks of another node have saved and ended."""
        self._others_stopped = True

    def others_failed(self, failures: Sequence[Failure]) -> None:
        """Ranks of other nodes have failed, or the nodes have gone."""
        self._other_failures = list(failures)

    def advance(self) -> None:
        """Send what is due."""
        if self._timetable is None:
            self._timetable = self._new_timetable()
            self._began = time.time() if self._timetable else 0.0
        while self._timetable and self._timetable[0][0] <= time.monotonic():
            _, number = self._timetable.pop(0)
            for rank in self._ranks:
                rank.send(number)

    def _new_timetable(self) -> list[tuple[float, int]] | None:
        now = time.monotonic()
        if failure := self._root_cause():
            if self.running:
                self._output.note(f"ending ranks {_listed(self.running)}, since {failure.sentence}")
            return [(now + SETTLE_S, signal.SIGTERM), (now + SETTLE_S + FAILING_GRACE_S, signal.SIGKILL)]
        if self._asked is not None:
            name = signal.Signals(self._asked).name
            self._output.note(f"{name}: ranks {_listed(self.running)} have {self._grace_s:g} s to finish the step and save")
            return [(now, self._asked), (now + self._grace_s, signal.SIGKILL)]
        if self.stopped or self._others_stopped:
            return [(now + self._grace_s, signal.SIGKILL)]
        return None

    def raise_outcome(self) -> None:
        """Once no rank runs: what that means for the run.

        Raises:
            RunFailed: a rank or a node failed, or ranks had to be killed to stop them.
            Stopped: the run can be resumed.
        """
        if failure := self._root_cause():
            raise RunFailed(failure)
        if self.stopped or self._others_stopped:
            saved = [r.rank for r in self._ranks if r.code == Stopped.exit_code]
            raise Stopped(self._output.last_words(saved[0]) if saved else "Stopped. Run the same command again to go on.")

    def _root_cause(self) -> Failure | None:
        here = self.failure
        return min([here, *self._other_failures] if here else self._other_failures, key=lambda f: f.order, default=None)

    def _overdue(self, ranks: list[RankProcess]) -> Failure:
        ended_at = max(rank.ended_at for rank in ranks)
        sentence = (
            f"ranks {_listed([rank.rank for rank in ranks])} on {socket.gethostname()} did not stop within "
            f"{ended_at - self._began:.0f} s and were killed; the newest checkpoint stands. "
            f"Look into {self._output.directory} for what they waited for; run the same command again to resume."
        )
        return Failure(sentence=sentence, exit_code=1, at=ended_at)

    def _ended_by_us(self, rank: RankProcess) -> bool:
        return rank.code is not None and -rank.code in rank.sent and rank.code != -signal.SIGKILL

    def _has_failed(self, rank: RankProcess) -> bool:
        return rank.code not in (None, 0, Stopped.exit_code) and -rank.code not in rank.sent

    def _failure_of(self, rank: RankProcess) -> Failure:
        who = f"rank {rank.rank} (pid {rank.pid} on {socket.gethostname()})"
        if rank.code < 0:
            return killed(who, -rank.code, rank.ended_at)
        return exited(who, rank.code, self._output.last_words(rank.rank), str(self._output.path(rank.rank)), rank.ended_at)


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
