"""The deployments: that their flows load, and what the form of each allows."""

from contextlib import nullcontext
from typing import Any

import pytest
import yaml
from prefect import Flow
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.schema_tools.validation import ValidationError, validate

from dflash_core.config import parse_config
from tasks.forms import _KEYS, TrainingChanges
from tasks.publication import line_of
from tasks.services.machine import GPU_POOL, LIGHT_POOL
from tasks.workspace import PROJECT, _with_overrides

DEPLOYMENTS = {d["name"]: d for d in yaml.safe_load((PROJECT / "prefect.yaml").read_text())["deployments"]}


def flow_of(name: str) -> Flow[Any, Any]:
    path, function = DEPLOYMENTS[name]["entrypoint"].split(":")
    return load_flow_from_entrypoint(f"{PROJECT / path}:{function}")


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_deployment_is_named_as_its_flow_and_has_a_described_form(name: str) -> None:
    flow, deployment = flow_of(name), DEPLOYMENTS[name]
    assert flow.name == name and deployment["work_pool"]["name"] in (GPU_POOL, LIGHT_POOL)
    schema = flow.parameters.model_dump()
    assert deployment.get("parameters", {}).keys() <= schema["properties"].keys()
    assert all(field.get("description") for field in schema["properties"].values())
    validate(deployment.get("parameters", {}), schema, raise_on_error=True, ignore_required=True)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("train-drafter", {"changes": {"epochs": 0}}),
        ("train-drafter", {"changes": {"learning_rate": 2}}),
        ("train-drafter", {"changes": {"block_size": 1}}),
        ("train-drafter", {"changes": {"nproc": "many"}}),
        ("train-drafter", {"changes": {"init_from": ""}}),
        ("train-drafter", {"time_limit_minutes": 0}),
        ("train-drafter", {"workspace": "../x"}),
        ("retrain-nightly", {"max_new_tokens": 0}),
        ("retrain-nightly", {"profile": ""}),
        ("retrain-nightly", {"overrides": "data_gate.max_dropped=0.2"}),
        ("validate-checkpoint", {"checkpoint": "step-1"}),
        ("validate-checkpoint", {"workspace": ""}),
        ("evaluate-drafter", {"checkpoint": "all"}),
        ("evaluate-drafter", {"name": "a/b"}),
        ("evaluate-drafter", {"workspace": "../x"}),
        ("promote-drafter", {"workspace": ""}),
        ("promote-drafter", {"settings": {"model": "a' OR 'b"}}),
        ("rollback-drafter", {"model": "../x"}),
        ("rollback-drafter", {"model": ""}),
        ("tidy-up", {"keep_days": 0}),
        ("diagnose-log", {"log": ""}),
        ("diagnose-log", {"log": "x", "events": "y"}),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_the_schema(name: str, parameters: dict[str, Any]) -> None:
    """The server validates by this schema before it schedules anything."""
    with pytest.raises(ValidationError):
        validate(parameters, flow_of(name).parameters.model_dump(), raise_on_error=True, ignore_required=False)


@pytest.mark.parametrize("name", ["train-drafter", "retrain-nightly", "validate-checkpoint", "evaluate-drafter", "promote-drafter"])
def test_what_takes_long_looks_after_its_worker(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it has the GPU, and nobody to stop it, while a new worker starts the next run."""

    class Watched(Exception):
        pass

    def watch() -> None:
        raise Watched

    run = flow_of(name).fn
    monkeypatch.setitem(run.__globals__, "watching_worker", watch)
    for opened in {"open_workspace", "open_registry"} & run.__globals__.keys():
        monkeypatch.setitem(run.__globals__, opened, lambda *_: None)
    with pytest.raises(Watched):
        run()


def test_no_deployment_has_a_limit_of_its_own() -> None:
    """Prefect keeps one by a lease, and ends the run that can't renew it: a training must outlive its server. Pools have limits."""
    assert not [name for name, deployment in DEPLOYMENTS.items() if "concurrency_limit" in deployment]


def test_the_form_says_where_the_log_lies_and_how_events_are_written() -> None:
    fields = flow_of("diagnose-log").parameters.model_dump()["properties"]
    assert "on the node where the worker runs; relative to the project" in fields["log"]["description"]
    assert "checkpoint=2000,4001" in fields["events"]["description"]


def test_the_nightly_run_takes_any_value_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    run, given = flow_of("retrain-nightly").fn, []
    fakes = {
        "watching_worker": nullcontext,
        "one_at_a_time": lambda profile: given.append(profile) or nullcontext(),
        "take_in": lambda profile, inbox, tokens, overrides: given.append(dict(overrides)) or ["c.jsonl"],
        "make_workspace": lambda profile, name, overrides, *, lines, **_: given.extend([overrides, lines]),
        "run_chain": lambda *_: {},
        "own_workspace": lambda _: "w",
    }
    for name, fake in fakes.items():
        monkeypatch.setitem(run.__globals__, name, fake)
    values = {"training.epochs": 3, "data_gate.max_dropped": 0.2}
    run(changes=TrainingChanges(epochs=2, seed=5), force=True, overrides=values)
    assert given.pop(0) == "demo", "no two nights of a profile at once"
    assert given[:2] == [values | {"training.seed": 5}, values | {"training.seed": 5, "data.conversations": ["c.jsonl"]}]
    assert given[2] == (line_of("nightly-demo", given[0]), "nightly-demo"), "the first of its line goes on from the scheduled ones"


def test_every_field_of_the_form_is_a_key_of_the_configuration() -> None:
    assert _KEYS.keys() == TrainingChanges.model_fields.keys()
    values = TrainingChanges(seed=3, epochs=2, max_steps=9, learning_rate=1e-3, num_anchors=7, num_layers=1, block_size=4, nproc=2)
    config = parse_config(_with_overrides({"target": {"path": "t"}, "data": {"conversations": ["c"]}}, values.as_overrides()), "form")
    assert (config.training.seed, config.training.max_steps, config.drafter.block_size, config.distributed.nproc) == (3, 9, 4, 2)
    assert TrainingChanges().as_overrides() == {}
    assert TrainingChanges(init_from="d").as_overrides() == {"drafter.init_from": "d"}
