"""The rank's side of a launch: whether this process is a rank, that it stops when told, and doesn't outlive its launcher."""

import os
import signal
import threading
import time

from dflash_core.launcher.options import GRACE_S
from dflash_core.launcher.processes import stop_when_parent_dies

_POLL_S = 0.5


def is_rank() -> bool:
    """Whether a launcher, ours or torchrun, started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def obey_launcher() -> None:
    """Call in a rank, before anything heavy.

    Until training puts its own handlers, SIGTERM and SIGINT end the process as they do by default: there is nothing to save,
    and a handler in Python isn't reached while ranks wait for each other in C++.

    When the launcher dies, the rank stops as by SIGTERM, so that it saves; torchrun doesn't see to that, and its ranks train on
    without it. The kernel's own signal is given up for a thread: when a process with several threads is killed, the kernel
    sends it for one after the other, and the second would interrupt the save. A rank that hangs is killed.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    threading.Thread(target=_end_orphan, args=(os.getppid(),), daemon=True).start()
    stop_when_parent_dies(0)


def _end_orphan(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(_POLL_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)
