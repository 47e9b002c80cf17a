"""What Prefect's server is told to do by itself; that it is told twice changes nothing."""

import json
from pathlib import Path
from uuid import uuid4

import jinja2
import pytest
import yaml
from prefect.client.orchestration import get_client
from prefect.events.actions import RunDeployment
from prefect.flows import load_flow_from_entrypoint

from tasks.services import automations
from tasks.services.automations import EVENT_MESSAGE, RUN_MESSAGE, all_automations, put_automation, put_webhook
from tasks.workspace import PROJECT

DECLARED = yaml.safe_load((PROJECT / "prefect.yaml").read_text())["deployments"]


def test_telling_it_again_changes_nothing(prefect_server: None, tmp_path: Path) -> None:
    with get_client(sync_client=True) as client:
        for _ in range(2):
            webhook = put_webhook("http://127.0.0.1:9/alarm")
            for automation in all_automations(client, 30, webhook):
                put_automation(client, automation)
            client.pause_automation(client.find_automation("tell-of-rejections").id)
        found = {automation.name: automation for automation in client.read_automations()}
        assert len(client.read_automations()) == len(found)
        for automation in all_automations(client, 30, webhook):
            put_automation(client, automation)
        assert [a.name for a in client.read_automations() if not a.enabled] == ["tell-of-rejections"], "a person has paused it"
    assert found.keys() == {"find-lost-nodes", "tell-of-failed-runs", "tell-of-rejections"}, "the others need deployments"
    lost = found["find-lost-nodes"].trigger
    assert lost.within.total_seconds() == 90 and lost.expect == {"prefect.flow-run.*"}, "a run that ends in a state of any name is not lost"


def test_what_an_automation_starts_has_the_parameters_that_it_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    deployments: dict[str, object] = {}
    monkeypatch.setattr(automations, "_deployment", lambda client, name: deployments.setdefault(name, uuid4()))
    made = {a.name: a.actions[0] for a in all_automations(None, 30, None) if isinstance(a.actions[0], RunDeployment)}
    for name, action in made.items():
        (deployment,) = [key for key, number in deployments.items() if number == action.deployment_id]
        path, function = next(d["entrypoint"] for d in DECLARED if d["name"] == deployment.split("/")[1]).split(":")
        fields = load_flow_from_entrypoint(f"{PROJECT / path}:{function}").parameters.properties
        assert action.parameters.keys() <= fields.keys(), name


def test_what_the_webhook_gets_is_json_whatever_a_message_holds() -> None:
    awkward = 'it said "no":\n{x}'
    flow_run = {"name": "run", "id": "1", "state": {"message": awkward}}
    event = {"event": "prefect.flow-run.Failed", "resource": {"id": "r"}, "payload": {"reason": awkward}}
    told = json.loads(jinja2.Template(RUN_MESSAGE).render(event=event, flow={"name": "f"}, flow_run=flow_run))
    assert told["message"] == awkward and told["run"] == "run"
    assert json.loads(jinja2.Template(EVENT_MESSAGE).render(event=event))["payload"] == {"reason": awkward}
