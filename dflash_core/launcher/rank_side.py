"""The rank's side of a launch: whether this process is a rank, that it stops when told, and doesn't outlive its launcher."""

import os
import signal
import threading
import time

from dflash_core.launcher.options import GRACE_S
from dflash_core.launcher.processes import stop_when_parent_dies

_POLL_S = 1.0


def is_rank() -> bool:
    """Whether a launcher, ours or torchrun, started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def obey_launcher() -> None:
    """Call in a rank, before anything heavy.

    Until training puts its own handlers, SIGTERM and SIGINT end the process as they do by default: there is nothing to save,
    and a handler in Python isn't reached while ranks wait for each other in C++.

    When the launcher dies, the kernel sends SIGTERM, so that the ranks save; torchrun doesn't see to that, and its ranks train
    on without it. The thread is for a rank that hangs in a collective, which no signal but SIGKILL ends.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    stop_when_parent_dies()
    threading.Thread(target=_kill_orphan, args=(os.getppid(),), daemon=True).start()


def _kill_orphan(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(_POLL_S)
    time.sleep(GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)
