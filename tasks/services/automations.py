"""What Prefect's server does by itself: finds lost nodes, tidies up after crashes, tells the webhook, evaluates proven checkpoints."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import StateType
from prefect.events.actions import CallWebhook, ChangeFlowRunState, RunDeployment
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification
from prefect.exceptions import ObjectNotFound

from tasks.events import CHECKPOINT_PROVEN, CHECKPOINT_REJECTED, CHECKPOINT_UNPROVEN, DATA_REFUSED, DRAFTER_REFUSED
from tasks.worker_watch import LOST

FLOW_RUN = "prefect.flow-run."
BEATS_MISSED = 3
WEBHOOK = "dflash-alarm"
FAILURES = frozenset(f"{FLOW_RUN}{name}" for name in ("Failed", "Crashed", "TimedOut"))
REJECTIONS = frozenset((CHECKPOINT_REJECTED, CHECKPOINT_UNPROVEN, DATA_REFUSED, DRAFTER_REFUSED))
RUN_MESSAGE = (
    '{"event": {{ event.event | tojson }}, "flow": {{ flow.name | tojson }}, "run": {{ flow_run.name | tojson }}, '
    '"id": "{{ flow_run.id }}", "message": {{ flow_run.state.message | tojson }}}'
)
EVENT_MESSAGE = '{"event": {{ event.event | tojson }}, "about": {{ event.resource.id | tojson }}, "payload": {{ event.payload | tojson }}}'


def all_automations(client: SyncPrefectClient, heartbeat_seconds: int, webhook: UUID | None) -> Iterator[AutomationCore]:
    """Those that the server's deployments and the webhook, if there is one, allow."""
    yield _lost_nodes(heartbeat_seconds)
    if (tidy := _deployment(client, "tidy-up/tidy-up")) is not None:
        yield _run_on("tidy-after-crash", {f"{FLOW_RUN}Crashed"}, "prefect.flow-run.*", tidy, {})
    if (evaluate := _deployment(client, "evaluate-drafter/evaluate-drafter")) is not None:
        parameters = {"workspace": "{{ event.payload.workspace }}", "checkpoint": "{{ event.payload.checkpoint }}"}
        yield _run_on("evaluate-proven-checkpoints", {CHECKPOINT_PROVEN}, "dflash.checkpoint.*", evaluate, parameters)
    if webhook is not None:
        yield _tell_webhook("tell-of-failed-runs", FAILURES, "prefect.flow-run.*", webhook, RUN_MESSAGE)
        yield _tell_webhook("tell-of-rejections", REJECTIONS, "dflash.*", webhook, EVENT_MESSAGE)


def put_automation(client: SyncPrefectClient, automation: AutomationCore) -> None:
    """Make it, or bring the one of its name up to date: the server would make a second one. What a person has paused stays so."""
    found = client.find_automation(automation.name)
    if found is None:
        client.create_automation(automation)
    else:
        client.update_automation(found.id, automation.model_copy(update={"enabled": found.enabled}))


def put_webhook(url: str) -> UUID:
    """The block that knows the webhook's address."""
    return Webhook(url=url, headers={"Content-Type": "application/json"}).save(WEBHOOK, overwrite=True)


def _lost_nodes(heartbeat_seconds: int) -> AutomationCore:
    """A flow run whose node is gone stays Running for ever: nobody is left to say that it isn't."""
    return AutomationCore(
        name="find-lost-nodes",
        description="A run that has not been heard of for three heartbeats has crashed",
        trigger=EventTrigger(
            after={f"{FLOW_RUN}heartbeat"},
            expect={f"{FLOW_RUN}*"},  # whatever else is heard of it, a state of any name included
            match=ResourceSpecification({"prefect.resource.id": ["prefect.flow-run.*"]}),
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=BEATS_MISSED * heartbeat_seconds),
        ),
        actions=[ChangeFlowRunState(state=StateType.CRASHED, message=f"{LOST} for {BEATS_MISSED * heartbeat_seconds} s: the node is lost")],
    )


def _run_on(name: str, events: set[str], resource: str, deployment: UUID, parameters: dict[str, Any]) -> AutomationCore:
    templates = {key: {"__prefect_kind": "jinja", "template": value} for key, value in parameters.items()}
    action = RunDeployment(source="selected", deployment_id=deployment, parameters=templates)
    return AutomationCore(name=name, trigger=_each(events, resource), actions=[action])


def _tell_webhook(name: str, events: frozenset[str], resource: str, webhook: UUID, message: str) -> AutomationCore:
    action = CallWebhook(block_document_id=webhook, payload=message)
    return AutomationCore(name=name, trigger=_each(events, resource), actions=[action])


def _each(events: set[str] | frozenset[str], resource: str) -> EventTrigger:
    return EventTrigger(
        expect=set(events),
        match=ResourceSpecification({"prefect.resource.id": [resource]}),
        for_each={"prefect.resource.id"},
        posture=Posture.Reactive,
        threshold=1,
    )


def _deployment(client: SyncPrefectClient, name: str) -> UUID | None:
    try:
        return client.read_deployment_by_name(name).id
    except ObjectNotFound:
        return None
