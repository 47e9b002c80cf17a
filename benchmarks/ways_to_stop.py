"""The ways in which a flow run is stopped, each with what the run must then show."""

import contextlib
import json
import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psutil
from run_processes import flow_process, launcher_and_ranks
from services_site import Site, read_pid

UNHEARD_S = 30.0  # below the patience of a run that has been cancelled, after which it ends itself
MOST_UNHEARD_S = 55.0


def set_state(place: Site, run_id: str, state: dict[str, str], force: bool) -> None:
    """What a button of the page sends; raises RuntimeError where the server refuses."""
    request = urllib.request.Request(
        f"{place.machine.prefect_api}/flow_runs/{run_id}/set_state",
        json.dumps({"state": state, "force": force}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        said = json.load(answer)
    if said["status"] != "ACCEPT":
        raise RuntimeError(f"the server refuses {state}: {said}")


def _gpu_worker(place: Site) -> int:
    return read_pid(place.machine, "worker-gpu")


def _cancel(place: Site, run_id: str) -> None:
    set_state(place, run_id, {"type": "CANCELLING", "name": "Cancelling"}, force=True)


def _wait_for_time_out(place: Site, run_id: str) -> None:
    """Hold the training until just before: the limit leaves time for a whole run, which would be over by then."""
    run = place.client.read_flow_run(run_id)
    at = run.start_time.timestamp() + run.parameters["time_limit_minutes"] * 60
    with _waiting_ranks(place, run_id):
        time.sleep(max(0.0, at - 1 - time.time()))
    time.sleep(max(0.0, at - time.time()))


def _terminate_flow(place: Site, run_id: str) -> None:
    flow_process(run_id, _gpu_worker(place)).terminate()


def _kill_flow(place: Site, run_id: str) -> None:
    flow_process(run_id, _gpu_worker(place)).kill()


def _kill_worker(place: Site, run_id: str) -> None:
    os.kill(_gpu_worker(place), signal.SIGKILL)


def _kill_launcher(place: Site, run_id: str) -> None:
    launcher_and_ranks(flow_process(run_id, _gpu_worker(place)))[0].kill()


def _kill_rank(place: Site, run_id: str) -> None:
    launcher_and_ranks(flow_process(run_id, _gpu_worker(place)))[1][-1].kill()


def _lose_node(place: Site, run_id: str) -> None:
    doomed = {psutil.Process(_gpu_worker(place)), *place.processes(run_id)}
    for process in doomed:
        process.suspend()  # so that none acts on the death of another, as if the power had gone
    for process in doomed:
        process.kill()


def _restart_server(place: Site, run_id: str, away_s: float = 10) -> None:
    server = psutil.Process(read_pid(place.machine, "prefect"))
    for process in [*server.children(recursive=True), server]:
        process.kill()
    time.sleep(away_s)
    place.services("up")


def _miss_server(place: Site, run_id: str) -> None:
    """For so long that the run seems to be lost when the server is back."""
    with _waiting_ranks(place, run_id):
        _restart_server(place, run_id, away_s=100)


def _cancel_after_absence(place: Site, run_id: str) -> float:
    """The worker has given up listening by then. Gives the seconds that it took, with ranks that go on slowly: they would be at their end."""
    with _waiting_ranks(place, run_id):
        _restart_server(place, run_id, away_s=60)
        _cancel(place, run_id)
        asked = time.monotonic()
        time.sleep(UNHEARD_S)
    while place.state(run_id)[0] == "CANCELLING" and time.monotonic() - asked < MOST_UNHEARD_S:
        with contextlib.suppress(psutil.Error, ValueError, KeyError), _waiting_ranks(place, run_id):  # they may have ended
            time.sleep(0.4)
        time.sleep(0.1)
    return time.monotonic() - asked


@contextlib.contextmanager
def _waiting_ranks(place: Site, run_id: str) -> Iterator[None]:
    """The tiny training would be over before the server is back."""
    _, ranks = launcher_and_ranks(flow_process(run_id, _gpu_worker(place)))
    for rank in ranks:
        rank.suspend()
    try:
        yield
    finally:
        for rank in ranks:
            with contextlib.suppress(psutil.NoSuchProcess):
                rank.resume()


@dataclass(frozen=True)
class Case:
    """A way to stop, which may give how many seconds ago that was, the state that the run must then show, and whether it goes on instead."""

    name: str
    stop: Callable[[Site, str], float | None]
    state: str
    goes_on: bool = False


CASES = {
    case.name: case
    for case in (
        Case("cancel", _cancel, "Cancelled"),
        Case("time-out", _wait_for_time_out, "TimedOut"),
        Case("flow-terminated", _terminate_flow, "Crashed"),
        Case("flow-killed", _kill_flow, "Crashed"),
        Case("worker-killed", _kill_worker, "Crashed"),
        Case("launcher-killed", _kill_launcher, "Failed"),
        Case("rank-killed", _kill_rank, "Failed"),
        Case("server-restarted", _restart_server, "Completed", goes_on=True),
        Case("server-away", _miss_server, "Completed", goes_on=True),
        Case("away-then-cancel", _cancel_after_absence, "Cancelled"),
        Case("node-lost", _lose_node, "Crashed"),
    )
}
