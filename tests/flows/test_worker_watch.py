"""A run ends itself where it shows Cancelling and no worker does it, or its worker is gone; and only then."""

import time
from collections.abc import Callable

import pytest
from prefect import Flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import Abort, TerminationSignal
from prefect.states import AwaitingRetry, Cancelling, Crashed, Paused, Running
from prefect.utilities.engine import capture_sigterm

from tasks import worker_watch
from tasks.worker_watch import watching_worker

StateNow = Callable[[], str]


class Logger:
    def warning(self, text: str) -> None:
        pass


@pytest.fixture
def run_in(prefect_server: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[State], StateNow]:
    """Makes this process seem to run a deployment's run in the given state; gives a function that tells its state."""

    def run(state: State) -> StateNow:
        with get_client(sync_client=True) as client:
            run_id = client.create_flow_run(Flow(lambda: None, name="f"), state=Running()).id
            client.set_flow_run_state(run_id, state, force=True)
        monkeypatch.setattr(worker_watch.deployment, "get_id", lambda: "a deployment", raising=False)
        monkeypatch.setattr(worker_watch.flow_run, "get_id", lambda: str(run_id), raising=False)
        monkeypatch.setattr(worker_watch, "get_run_logger", Logger)

        def state_now() -> str:
            with get_client(sync_client=True) as client:
                return client.read_flow_run(run_id).state.name

        return state_now

    return run


def test_a_cancel_that_no_worker_obeys_ends_the_body(run_in: Callable[[State], StateNow]) -> None:
    state_now = run_in(Cancelling())
    ended = False
    with pytest.raises(Abort), watching_worker(patience=0.1, ask=0.05, poll=0.05):
        try:
            time.sleep(120)
        finally:
            ended = True  # as a stage does, which saves
    assert ended and state_now() == "Cancelled"


def test_a_body_is_left_alone_while_its_run_goes_on(run_in: Callable[[State], StateNow]) -> None:
    state_now = run_in(Running())
    with watching_worker(patience=0.1, ask=0.02, poll=0.02):
        time.sleep(0.3)
    assert state_now() == "Running"


def test_a_worker_has_its_time_to_do_it(run_in: Callable[[State], StateNow]) -> None:
    run_in(Cancelling())
    with watching_worker(patience=60, ask=0.02, poll=0.02):
        time.sleep(0.2)


def test_a_server_that_is_away_changes_nothing(run_in: Callable[[State], StateNow], monkeypatch: pytest.MonkeyPatch) -> None:
    run_in(Running())

    def away(**_: object) -> None:
        raise ConnectionError

    monkeypatch.setattr(worker_watch, "get_client", away)
    with watching_worker(patience=0.1, ask=0.02, poll=0.02):
        time.sleep(0.1)


def test_a_worker_that_is_gone_ends_the_body_as_by_a_signal(run_in: Callable[[State], StateNow], monkeypatch: pytest.MonkeyPatch) -> None:
    run_in(Running())
    parents = iter([7, 7, 1])
    monkeypatch.setattr(worker_watch.os, "getppid", lambda: next(parents))
    with capture_sigterm(), pytest.raises(TerminationSignal), watching_worker(poll=0.02):
        time.sleep(120)


def test_a_run_that_waits_for_a_person_waits_again(run_in: Callable[[State], StateNow]) -> None:
    state_now = run_in(Paused(timeout_seconds=60))
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(worker_watch.flow_run.get_id(), Crashed(message=f"{worker_watch.LOST} for 84 s"), force=True)
    with watching_worker(ask=0.02, poll=0.02):
        time.sleep(0.5)
    assert state_now() == "Paused", "a run that goes on would have no answer, which is a no"


def test_a_run_that_a_person_retries_meanwhile_is_left_to_its_retry(run_in: Callable[[State], StateNow]) -> None:
    state_now = run_in(AwaitingRetry())
    worker_watch._take_back(worker_watch.flow_run.get_id())
    assert state_now() == "AwaitingRetry"


@pytest.mark.parametrize(("message", "then"), [(f"{worker_watch.LOST} for 84 s: the node is lost", "Running"), ("by a person", "Crashed")])
def test_a_run_that_is_taken_for_lost_says_that_it_runs(run_in: Callable[[State], StateNow], message: str, then: str) -> None:
    state_now = run_in(Crashed(message=message))
    with watching_worker(ask=0.02, poll=0.02):
        time.sleep(0.5)
    assert state_now() == then
