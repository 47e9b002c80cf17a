"""Runs a save in a thread that rests between its chunks, so that the training beside it keeps its pace.

A thread and not a process: it needs no second copy of the state, and every call that takes long (write, fsync, crc32, sha256)
releases the interpreter lock. Rests and not a low priority (`nice`): where the training computes on the cores, all its threads
wait for the one that shares its core with the writer, and the pace beside a write of 200 MB on two cores was 0.49 of the usual
at ten steps of nice, 0.93 with rests (benchmarks/save_stall.py); and few systems let a thread have its priority back when
somebody comes to wait for it.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

BESIDE_CORES = 0.1  # of one core, where the training computes on the cores
BESIDE_GPU = 0.5
_WORTH_A_REST_S = 0.002  # of work: small tensors are many to one rest


class BackgroundWriter:
    """One job at a time; its outcome is asked for, never waited for by chance."""

    def __init__(self) -> None:
        self._job: Future[Any] | None = None
        self._hurried, self._given_up = threading.Event(), threading.Event()
        self._core_share, self._rested_at_s = 1.0, 0.0

    @property
    def busy(self) -> bool:
        """The job has not ended."""
        return self._job is not None and not self._job.done()

    @property
    def failed(self) -> bool:
        """The job has ended by an exception."""
        return self._job is not None and self._job.done() and self._job.exception() is not None

    def start(self, work: Callable[[], Any], *, core_share: float = 1.0) -> None:
        """Begin; the job before must have ended. `core_share`: of a core's time the job takes at most that, until somebody waits."""
        assert not self.busy, "one save in flight"
        self._job, self._core_share = Future(), core_share
        self._hurried.clear()
        # A daemon: at a second Ctrl-C the process ends, and what it was writing was never committed.
        threading.Thread(target=self._run, args=(work, self._job), name="checkpoint writer", daemon=True).start()

    def given_up(self) -> bool:
        """For the job to ask between two chunks, in its own thread: rests first, then tells whether the job is called off."""
        used_s = time.thread_time() - self._rested_at_s
        if used_s > _WORTH_A_REST_S:
            self._hurried.wait(used_s * (1 / self._core_share - 1))
            self._rested_at_s = time.thread_time()
        return self._given_up.is_set()

    def hurry(self) -> None:
        """Somebody waits: no more rests in this job."""
        self._hurried.set()

    def give_up(self) -> None:
        """Call this job off, and each that would follow."""
        self._given_up.set()
        self.hurry()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the end of the job, if there is one."""
        if self._job is not None:
            wait([self._job], timeout_s)

    def result(self) -> Any:
        """What the job returned, once: None where there is none; raises what it raised."""
        job, self._job = self._job, None
        return None if job is None else job.result()

    def _run(self, work: Callable[[], Any], job: "Future[Any]") -> None:
        self._rested_at_s = time.thread_time()
        try:
            job.set_result(work())
        except BaseException as error:  # noqa: BLE001 - the loop raises it
            job.set_exception(error)
