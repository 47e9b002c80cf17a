"""Runs a save in a thread of low priority, so that the training beside it keeps its pace.

A thread and not a process: it needs no second copy of the state, and every call that takes long (write, fsync, crc32, sha256)
releases the interpreter lock. Linux gives each thread a priority of its own, and derives from it that of its reads and writes.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any

# A tenth of a core's time beside training that takes all of it. At the lowest, 19, it would be a seventieth, and a save that
# takes one second would take a minute.
_NICER_BY = 10


class BackgroundWriter:
    """One job at a time; its outcome is asked for, never waited for by chance."""

    def __init__(self) -> None:
        self._job: Future[Any] | None = None
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """The job has not ended."""
        return self._job is not None and not self._job.done()

    @property
    def failed(self) -> bool:
        """The job has ended by an exception."""
        return self._job is not None and self._job.done() and self._job.exception() is not None

    def start(self, work: Callable[[], Any], *, nicer_by: int = _NICER_BY) -> None:
        """Begin; the job before must have ended. 0 for one that is waited for."""
        assert not self.busy, "one save in flight"
        self._job = Future()
        # A daemon: at a second Ctrl-C the process ends, and what it was writing was never committed.
        self._thread = threading.Thread(target=_run, args=(work, self._job, nicer_by), name="checkpoint writer", daemon=True)
        self._thread.start()

    def hurry(self) -> None:
        """Somebody waits: the job gets their priority, where the system lets a thread have it back."""
        if self.busy and self._thread is not None and self._thread.native_id is not None:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self._thread.native_id, os.getpriority(os.PRIO_PROCESS, 0))

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the end of the job, if there is one."""
        if self._job is not None:
            wait([self._job], timeout_s)

    def result(self) -> Any:
        """What the job returned, once: None where there is none; raises what it raised."""
        job, self._job = self._job, None
        return None if job is None else job.result()


def _run(work: Callable[[], Any], job: "Future[Any]", nicer_by: int) -> None:
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + nicer_by)
    try:
        job.set_result(work())
    except BaseException as error:  # noqa: BLE001 - the loop raises it
        job.set_exception(error)
