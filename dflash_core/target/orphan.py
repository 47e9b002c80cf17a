"""Ends a worker process when its parent dies, however that dies."""

import os
import threading
from multiprocessing import connection, parent_process


def exit_with_parent() -> None:
    """Watch the parent from a thread of its own, and end this process at once when it is gone; call it first in a worker.

    The sentinel is a pipe that the kernel closes with the parent. Unlike a comparison of getppid() it also notices a parent
    that died before the worker came this far, and unlike PR_SET_PDEATHSIG it isn't bound to the thread that started the worker.
    """
    parent = parent_process()
    assert parent is not None, "not in a process that multiprocessing started"
    threading.Thread(target=_wait_and_exit, args=(parent.sentinel,), daemon=True).start()


def _wait_and_exit(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)  # no clean-up: files appear whole, so none is owed one
