"""A run in MLflow: complete, once, later where it has to be, and never a condition for the run."""

import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from dflash_core.errors import ConfigError
from tasks import deliver, mlflow_store, shipping, tracking
from tasks.tracking import Tracker, deliver_all, following, record_evaluation, record_outputs, record_proof, tracked
from tasks.workspace import Workspace, make_workspace

from .toy_log import START, client, history, line, step_line, stop_line

FINDING = line({"kind": "finding", "what": "loss_spike", "step": 2, "at_step": 2, "severity": "fault", "text": "it jumps", "stops": False})


@pytest.fixture
def place(tmp_path: Path) -> Workspace:
    source = tmp_path / "mine.yaml"
    source.write_text("target: {path: target}\ndata: {conversations: [a.jsonl]}\nrun: mine\n")
    made = make_workspace(str(source), directory=tmp_path / "workspaces", cache=tmp_path / "cache")
    made.log_file.parent.mkdir(parents=True)
    return made


def write_outputs(place: Workspace) -> None:
    build = place.root / "build"
    for directory in ("drafter", "report", "evaluation", "data_gate"):
        (build / directory).mkdir(parents=True)
    (build / "train.json").write_text('{"run_id": "r"}')
    (build / "drafter/model.safetensors").write_bytes(b"weights")
    (build / "report/report.html").write_text("<html>")
    (build / "report/report.json").write_text("{}")
    (build / "data_gate/profile.json").write_text("{}")
    tree = {"by_category": {"c++ <x>": {"tau": 1.5}, "数学": {"tau": 1.25}}, "acceptance": {"tau": 1.75, "histogram": [1]}, "ok": True}
    (build / "evaluation/evaluation.json").write_text(json.dumps(tree))
    (place.root / "dvc.lock").write_text(
        json.dumps({"stages": {"prepare": {"deps": [{"path": str(place.root.parents[1] / "a.jsonl"), "md5": "a" * 32}],
                                           "outs": [{"path": "build/prepared", "md5": "b" * 32 + ".dir"}]}}})
    )  # fmt: skip


def die(monkeypatch: pytest.MonkeyPatch) -> None:
    def dead(uri: str) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(mlflow_store, "client_of", dead)


def test_a_run_is_recorded_whole_and_nested(place: Workspace, uri: str) -> None:
    write_outputs(place)
    with tracked(place, uri) as tracker:
        with following(tracker, place.log_file):
            place.log_file.write_text(line(START) + step_line(1) + step_line(2) + FINDING + stop_line(2))
        record_outputs(tracker, place)
    run = client(uri).get_run(tracker.run_id)
    assert (run.info.status, run.info.run_name, run.info.start_time, run.info.end_time) == ("FINISHED", "mine", 1_000_000, 2_000_000)
    assert run.data.tags["finding.loss_spike"] == "step 2, fault: it jumps" and run.data.tags["dflash.target"] == "t" * 64
    assert run.data.params["training.betas"] == "[0.9, 0.95]" and run.data.params["run"] == "mine"
    assert history(uri, tracker.run_id, "loss") == [(1, 10.0), (2, 5.0)]
    assert history(uri, tracker.run_id, "accuracy.slot_1") == [(1, 0.5), (2, 0.5)] and not history(uri, tracker.run_id, "accuracy.slot_2")
    assert run.data.metrics["evaluation.acceptance.tau"] == 1.75 and "evaluation.ok" not in run.data.metrics
    assert run.data.metrics["evaluation.by_category.c__ _x_.tau"] == 1.5
    assert {f.path for f in client(uri).list_artifacts(tracker.run_id)} >= {"report.html", "report.json", "evaluation.json", "params.yaml"}
    assert {d.dataset.digest for d in run.inputs.dataset_inputs} == {"a" * 32, "b" * 32 + ".dir"}
    (model,) = client(uri).search_logged_models([run.info.experiment_id])
    assert (model.name, str(model.status)) == ("mine", "READY")
    (nested,) = mlflow_store.find_runs(client(uri), run.info.experiment_id, {"mlflow.parentRunId": tracker.run_id})
    assert nested.data.tags["dflash.kind"] == "evaluation" and nested.data.metrics["evaluation.acceptance.tau"] == 1.75
    assert {f.path for f in client(uri).list_artifacts(nested.info.run_id)} == {"evaluation.json", "evaluation_table.json"}


def test_a_measurement_beside_the_chain_is_a_nested_run_too(place: Workspace, uri: str, tmp_path: Path) -> None:
    place.log_file.write_text(line(START))
    (tmp_path / "comparison.json").write_text('{"difference": 0.25}')
    with tracked(place, uri) as tracker:
        for name in ("comparison.json", "comparison.json", "none.json"):
            record_evaluation(tracker, tmp_path / name)
    experiment = client(uri).get_run(tracker.run_id).info.experiment_id
    (nested,) = mlflow_store.find_runs(client(uri), experiment, {"mlflow.parentRunId": tracker.run_id})
    assert nested.data.metrics == {"comparison.difference": 0.25} and nested.info.status == "FINISHED"


def test_nothing_is_recorded_twice(place: Workspace, uri: str) -> None:
    write_outputs(place)
    place.log_file.write_text(line(START) + step_line(1))
    first = deliver_all(uri, place.log_file.parent, place.root)
    (place.log_file.parent / shipping.CURSOR).unlink()  # as if killed before it was written
    assert deliver_all(uri, place.log_file.parent, place.root) == first
    assert history(uri, first, "loss") == [(1, 10.0)]
    experiment = client(uri).get_run(first).info.experiment_id
    assert len(client(uri).search_runs([experiment])) == 2, "the training and its evaluation"


def test_the_outputs_of_another_run_are_not_recorded(place: Workspace, uri: str) -> None:
    write_outputs(place)
    (place.root / "build/train.json").write_text('{"run_id": "another"}')
    place.log_file.write_text(line(START))
    run = client(uri).get_run(deliver_all(uri, place.log_file.parent, place.root))
    assert not run.data.metrics and not client(uri).search_logged_models([run.info.experiment_id])


def test_a_server_that_was_down_for_the_whole_run_gets_it_later(
    place: Workspace, uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    write_outputs(place)
    with monkeypatch.context() as down:
        die(down)
        with tracked(place, uri) as tracker:
            with following(tracker, place.log_file):
                place.log_file.write_text(line(START) + step_line(1) + stop_line(1))
            record_proof(tracker, [verdict("step-00000001", "proven", True)])
            record_outputs(tracker, place)
            assert tracker.run_id is None
    assert {r.getMessage().split(":")[0] for r in caplog.records} == {"MLflow"}
    note = place.log_file.parent / "checkpoints/step-00000001/status.json"
    note.parent.mkdir(parents=True)
    note.write_text(json.dumps({"verdict": verdict("step-00000001", "proven", True)}))
    with tracked(place, uri) as tracker:
        pass
    run = client(uri).get_run(tracker.run_id)
    assert (run.info.status, run.data.tags["dflash.proof"]) == ("FINISHED", "proven")
    assert history(uri, tracker.run_id, "loss") == [(1, 10.0)] and run.data.metrics["evaluation.acceptance.tau"] == 1.75


def test_a_server_that_refuses_connections_holds_no_flow_up(place: Workspace, caplog: pytest.LogCaptureFixture) -> None:
    place.log_file.write_text(line(START) + step_line(1))
    began, uri = time.monotonic(), "http://127.0.0.1:9"
    with pytest.raises(KeyboardInterrupt), tracked(place, uri) as tracker, following(tracker, place.log_file):
        raise KeyboardInterrupt
    assert time.monotonic() - began < 5, "Prefect kills a flow 30 s after it was cancelled; the three deliveries at its end may not take them"
    assert sum("nothing listens there" in r.getMessage() for r in caplog.records) == 3
    with pytest.raises(ConfigError, match="MLflow at http://127.0.0.1:9 .* can't be reached: nothing listens there"):
        deliver.ship_run(place.log_file.parent, uri)


def test_an_outage_is_told_once_and_its_end(
    place: Workspace, uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    place.log_file.write_text(line(START) + step_line(1))
    follower = tracking._Following(Tracker(uri, place.log_file.parent))
    with monkeypatch.context() as down:
        die(down)
        follower.poll(0)
        follower.poll(0)
    follower.poll(0)
    told = [r.getMessage() for r in caplog.records if r.name == "tasks.tracking"]
    assert [text.split("(")[0] for text in told] == ["MLflow: delivering metrics failed ", "MLflow: delivered what it had missed"]


def test_a_training_that_was_killed_is_recorded_as_failed(place: Workspace, uri: str) -> None:
    with pytest.raises(ValueError), tracked(place, uri) as tracker, following(tracker, place.log_file):
        place.log_file.write_text(line(START) + step_line(1))
        raise ValueError
    assert client(uri).get_run(tracker.run_id).info.status == "FAILED"


def verdict(name: str, outcome: str, sound: bool, fault: str | None = None) -> dict[str, Any]:
    return {"name": name, "outcome": outcome, "sound": sound, "fault": fault, "step": 1, "steps_replayed": 3}


def test_a_proof_is_tagged_by_checkpoint_and_as_a_whole(place: Workspace, uri: str) -> None:
    place.log_file.write_text(line(START))
    good, last = verdict("step-00000002", "proven", True), verdict("step-00000004", "unproven", False)
    with tracked(place, uri) as tracker:
        record_proof(tracker, [good, last])
        assert client(uri).get_run(tracker.run_id).data.tags["dflash.proof"] == "unproven"
        record_proof(tracker, [good, verdict("step-00000003", "rejected", False, "moments"), verdict("step-00000004", "proven", False, "rng")])
    tags = client(uri).get_run(tracker.run_id).data.tags
    assert {key: tags[key] for key in tags if key.startswith("dflash.proof")} == {
        "dflash.proof": "rejected",
        "dflash.proof.step-00000002": "proven",
        "dflash.proof.step-00000003": "rejected (moments)",
        "dflash.proof.step-00000004": "proven, resumed wrongly (rng)",
    }


def test_a_password_is_not_written_down() -> None:
    assert mlflow_store.without_secret("https://me:secret@host:5000/x") == "https://host:5000/x"
    assert mlflow_store.without_secret("sqlite:////a/b.db") == "sqlite:////a/b.db"
