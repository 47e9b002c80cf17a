"""Finds flow runs that seem to go on, and whose node and server went down together: nobody was left to miss them."""

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import StateType
from prefect.events import emit_event

SEEMING = [StateType.RUNNING, StateType.CANCELLING, StateType.PAUSED, StateType.PENDING]


def expect_signs_of_life(client: SyncPrefectClient) -> int:
    """Begin the wait of automation find-lost-nodes for each open run; gives their number.

    It waits from a heartbeat on, and a server that has restarted knows of none. So one is sent in the run's name: the next
    is its own, or it has crashed. A run that lives sends one every few seconds, so that this changes nothing for it.
    """
    seeming = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=SEEMING)))
    runs = client.read_flow_runs(flow_run_filter=seeming)
    for run in runs:
        emit_event("prefect.flow-run.heartbeat", {"prefect.resource.id": f"prefect.flow-run.{run.id}", "prefect.resource.name": run.name})
    return len(runs)
