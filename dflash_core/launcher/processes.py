"""The processes of this node's ranks: started so that they end with us, signalled, and the time at which each ended."""

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def stop_when_parent_dies(number: int = signal.SIGTERM) -> None:
    """Have the kernel send this process a signal when the thread that started it ends, whatever ended that; 0: none."""
    _prctl(_PR_SET_PDEATHSIG, number)


@dataclass
class RankProcess:
    """One rank; `sent` are the signals that it has had from us, `code` and `ended_at` (wall clock) are None while it runs."""

    rank: int
    process: subprocess.Popen
    sent: set[int] = field(default_factory=set)
    code: int | None = None
    ended_at: float | None = None

    @property
    def pid(self) -> int:
        """Also its process group and its session."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """It has not been seen to end."""
        return self.code is None

    def send(self, number: int) -> None:
        """Signal the rank; SIGKILL goes to what it has started, too, since nothing else would end that."""
        if not self.running:
            return
        self.sent.add(number)
        try:
            os.killpg(self.pid, number) if number == signal.SIGKILL else os.kill(self.pid, number)
        except ProcessLookupError:
            return  # it ended this moment

    def wait(self) -> None:
        """Block until it has ended; each rank has a thread in here, since the order of ends within a poll would be lost."""
        code = self.process.wait()
        self.ended_at = time.time()
        self.code = code


def start_rank(rank: int, command: Sequence[str], environment: Mapping[str, str], output: BinaryIO) -> RankProcess:
    """Start one rank; call in the main thread, whose end is ours.

    It gets a session of its own: a terminal's Ctrl-C goes to a whole group, and the rank would have it twice, once from us.
    """
    process = subprocess.Popen(
        command,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=stop_when_parent_dies,  # noqa: PLW1509 - one system call, no lock that a fork could leave held
    )
    started = RankProcess(rank, process)
    threading.Thread(target=started.wait, daemon=True).start()
    return started
