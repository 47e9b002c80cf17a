"""What ended a run before its time: one sentence, its exit code, and which of several came first."""

import json
import signal
from dataclasses import asdict, dataclass
from typing import Self

from dflash_core.errors import DflashError

# Ranks whose peer has gone raise, or are aborted by their communication library. They are never ended by one of these, which
# come first even where the victim, whose memory takes seconds to give back, is seen to end after its peers.
_NEVER_A_CONSEQUENCE = {signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A rank or a node that failed. `at` is wall-clock time, which nodes share to milliseconds where a time service runs."""

    sentence: str
    exit_code: int
    at: float
    is_a_cause: bool = False

    @property
    def order(self) -> tuple[bool, float]:
        """Least for the root cause."""
        return not self.is_a_cause, self.at

    def to_json(self) -> str:
        """For another node."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What another node wrote."""
        return cls(**json.loads(text))


class RunFailed(DflashError):
    """A distributed run ended before its time; `exit_code` is the root cause's."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.sentence)
        self.exit_code = failure.exit_code


def killed(who: str, number: int, at: float) -> Failure:
    """A process that a signal ended, which we didn't send."""
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    hint = ' If nobody killed it, look for "Out of memory" in the kernel\'s log.' if number == signal.SIGKILL else ""
    return Failure(
        sentence=f"{who} was killed by {name}; the other ranks were ended, too.{hint} Run the same command again to resume.",
        exit_code=1,
        at=at,
        is_a_cause=number in _NEVER_A_CONSEQUENCE,
    )


def exited(who: str, code: int, last_words: str, log: str, at: float) -> Failure:
    """A process that ended by itself with an exit code other than 0 and 4; errors.py has the meaning of 2 and 3."""
    return Failure(
        sentence=f"{who} ended with exit code {code}: {last_words} Its whole output is in {log}.",
        exit_code=code if code in (2, 3) else 1,
        at=at,
    )
