"""Ends a run that was cancelled also where its worker doesn't see to it.

Prefect's worker listens for cancels, and gives up for good where its server is away for some half a minute: the page then
shows Cancelling for ever, and the training goes on. So a run looks at its own state, too.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from uuid import UUID

from prefect import get_run_logger
from prefect.client.orchestration import get_client
from prefect.exceptions import Abort
from prefect.runtime import deployment, flow_run
from prefect.states import Cancelled

POLL_SECONDS = 5.0
PATIENCE_SECONDS = 35.0  # a worker that listens ends the run within 30 s, at last by force
_SIGNAL = signal.SIGUSR1


class _CancelSeen(BaseException):
    """Raised in the main thread; no stage or task may take it for a fault."""


@contextlib.contextmanager
def obeying_cancel(patience: float = PATIENCE_SECONDS, poll: float = POLL_SECONDS) -> Iterator[None]:
    """End the body, in the main thread, where a deployment's run has been Cancelling for so long; it is then Cancelled.

    Raises:
        Abort: that happened; Prefect's engine then leaves the state as it is.
    """
    if not deployment.get_id():  # from a shell, which has Ctrl-C
        yield
        return
    run_id, over = UUID(flow_run.get_id()), threading.Event()
    watcher = threading.Thread(target=_watch, args=(run_id, over, patience, poll), name="cancel-watch", daemon=True)
    before = signal.signal(_SIGNAL, _interrupt)
    watcher.start()
    try:
        yield
    except _CancelSeen:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(run_id, Cancelled(message="The run has ended itself, since its worker did not"), force=True)
        raise Abort("Cancelled while the worker wasn't listening") from None
    finally:
        over.set()
        watcher.join()  # else its signal could come when nobody takes it
        signal.signal(_SIGNAL, before)


def _watch(run_id: UUID, over: threading.Event, patience: float, poll: float) -> None:
    seen = 0.0
    while seen < patience:
        if over.wait(poll):
            return
        seen = seen + poll if _is_cancelling(run_id) else 0.0
    signal.pthread_kill(threading.main_thread().ident, _SIGNAL)


def _is_cancelling(run_id: UUID) -> bool:
    """False also where the server doesn't answer. A client of its own each time, since a kept one waits a minute for a server."""
    try:
        with get_client(sync_client=True) as client:
            state = client.read_flow_run(run_id).state
    except Exception:  # noqa: BLE001 - whatever the server or the network does, the training goes on
        return False
    return state is not None and state.is_cancelling()


def _interrupt(number: int, frame: FrameType | None) -> None:
    get_run_logger().warning("the run is Cancelling, and its worker does nothing: it ends itself")
    raise _CancelSeen
