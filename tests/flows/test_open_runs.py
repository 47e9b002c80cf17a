"""A run that seems to go on is missed, whoever went down with its node."""

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.states import Cancelling, Completed, Crashed, Paused, Pending, Running, Scheduled

from tasks import open_runs


@flow
def nothing() -> None:
    pass


def test_a_sign_of_life_is_waited_for_of_each_open_run(prefect_server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, str]] = []
    monkeypatch.setattr(open_runs, "emit_event", lambda event, resource: told.append((event, resource["prefect.resource.id"])))
    with get_client(sync_client=True) as client:
        seeming = [client.create_flow_run(nothing, state=state).id for state in (Running(), Cancelling(), Pending(), Paused(timeout_seconds=9))]
        others = [client.create_flow_run(nothing, state=state).id for state in (Scheduled(), Completed(), Crashed())]
        open_runs.expect_signs_of_life(client)
        for run_id in (*seeming, *others):  # the server is other tests' too
            client.delete_flow_run(run_id)
    assert {("prefect.flow-run.heartbeat", f"prefect.flow-run.{run_id}") for run_id in seeming} <= set(told)
    assert not {f"prefect.flow-run.{run_id}" for run_id in others} & {resource for _, resource in told}
