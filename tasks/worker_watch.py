"""Does for a run what its worker would, where that is gone or listens no more, and what the server can't know.

When a worker is killed, nobody tells the flow's process, which would go on with nobody to stop it. A worker gives up listening
for cancels where its server is away for some 20 seconds: the page then shows Cancelling for ever, and the training goes on.
And a server that was away for longer than a lost node is waited for takes every run for lost at once.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from uuid import UUID

from prefect import get_run_logger
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import Abort
from prefect.runtime import deployment, flow_run
from prefect.states import Cancelled, Running

LOST = "No heartbeat"  # so begins the message of a state that is only the server's guess

POLL_SECONDS = 1.0
ASK_SECONDS = 5.0
PATIENCE_SECONDS = 35.0  # a worker that listens ends the run within 30 s, at last by force
_CANCEL = signal.SIGUSR1


class _CancelSeen(BaseException):
    """Raised in the main thread; no stage or task may take it for a fault."""


@contextlib.contextmanager
def watching_worker(patience: float = PATIENCE_SECONDS, ask: float = ASK_SECONDS, poll: float = POLL_SECONDS) -> Iterator[None]:
    """End the body, in the main thread of a deployment's run: as by SIGTERM when the worker has died, which makes the run Crashed.
    And when the run has been Cancelling for so long; it is then Cancelled. A run that is taken for lost is what it was again.

    Raises:
        TerminationSignal: the worker is gone.
        Abort: the run was cancelled; Prefect's engine then leaves the state as it is.
    """
    if not deployment.get_id():  # from a shell, which has Ctrl-C
        yield
        return
    run_id, over = UUID(flow_run.get_id()), threading.Event()
    watcher = threading.Thread(target=_watch, args=(run_id, over, patience, ask, poll), name="worker-watch", daemon=True)
    before = signal.signal(_CANCEL, _interrupt)
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
        signal.signal(_CANCEL, before)


def _watch(run_id: UUID, over: threading.Event, patience: float, ask: float, poll: float) -> None:
    worker, asked, cancelling_since = os.getppid(), time.monotonic(), None
    while not over.wait(poll):
        if os.getppid() != worker:
            os.kill(os.getpid(), signal.SIGTERM)
            return
        now = time.monotonic()
        if now - asked < ask:
            continue
        asked, state = now, _state_of(run_id)
        if state is not None and _is_guess(state):
            _take_back(run_id)
        cancelling_since = (cancelling_since or now) if state is not None and state.is_cancelling() else None
        if cancelling_since is not None and now - cancelling_since >= patience:
            signal.pthread_kill(threading.main_thread().ident, _CANCEL)
            return


def _state_of(run_id: UUID) -> State | None:
    """None also where the server doesn't answer. A client of its own each time, since a kept one waits a minute for a server."""
    with contextlib.suppress(Exception), get_client(sync_client=True) as client:  # whatever happens to it, the training goes on
        return client.read_flow_run(run_id).state
    return None


def _take_back(run_id: UUID) -> None:
    """The state before the server's guess: Running, or Paused with the form that a person still has to fill in."""
    with contextlib.suppress(Exception), get_client(sync_client=True) as client:  # it is asked again soon
        states = sorted(client.read_flow_run_states(run_id), key=lambda state: state.timestamp)
        before = [state for state in states if state.is_running() or state.is_paused()]
        if _is_guess(client.read_flow_run(run_id).state):  # else a person has retried it meanwhile; a node's clock may differ from the server's
            client.set_flow_run_state(run_id, before[-1].fresh_copy() if before else Running(), force=True)


def _is_guess(state: State) -> bool:
    return state.is_crashed() and (state.message or "").startswith(LOST)


def _interrupt(number: int, frame: FrameType | None) -> None:
    get_run_logger().warning("the run is Cancelling, and its worker does nothing: it ends itself")
    raise _CancelSeen
