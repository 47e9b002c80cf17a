"""Delivery to MLflow: complete, once, and never a condition for the run."""

import json
import logging
import shutil
from pathlib import Path

import pytest

from tasks import tracking
from tasks.tracking import Tracker, deliver, following, record_outputs, tracked
from tasks.workspace import Workspace, make_workspace

STEP = {
    "kind": "step", "run_id": "r", "session_id": "s", "epoch": 0, "loss": 2.0, "streak": None, "lr": 1e-3, "num_blocks": 4,
    "per_position_accuracy": [0.5, None], "per_position_count": [2, 0], "buckets": [32], "first_sample": 0, "last_sample": 3,
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Workspace:
    source = tmp_path / "mine.yaml"
    source.write_text("target: {path: target}\ndata: {conversations: [a.jsonl]}\nrun: mine\n")
    return make_workspace(str(source), directory=tmp_path / "workspaces", cache=tmp_path / "cache")


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once and copied: MLflow's some forty migrations take longer than all these tests."""
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def uri(tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(tracking, "PROJECT", tmp_path)
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


def step_line(step: int) -> str:
    return json.dumps({**STEP, "step": step, "wall_time": 1000.0 + step, "loss": 10.0 / step}) + "\n"


def finding_line() -> str:
    return json.dumps({"kind": "finding", "what": "loss_spike", "step": 2, "at_step": 2, "severity": "fault", "text": "it jumps", "stops": False}) + "\n"


def history(tracker: Tracker, key: str) -> list[tuple[int, float]]:
    from mlflow import MlflowClient

    return [(m.step, m.value) for m in MlflowClient(tracker.uri).get_metric_history(tracker.run_id, key)]


def test_a_run_is_recorded_whole(place: Workspace, uri: str) -> None:
    from mlflow import MlflowClient

    build = place.root / "build"
    for directory in ("drafter", "report", "evaluation"):
        (build / directory).mkdir(parents=True)
    (build / "drafter/model.safetensors").write_bytes(b"weights")
    (build / "report/report.html").write_text("<html>")
    (build / "report/report.json").write_text("{}")
    (build / "evaluation/evaluation.json").write_text(json.dumps({"acceptance": {"tau": 1.7, "histogram": [1]}, "ok": True}))
    place.log_file.parent.mkdir(parents=True)
    with tracked(place, uri) as tracker:
        with following(tracker, place.log_file):
            place.log_file.write_text(step_line(1) + step_line(2) + finding_line() + json.dumps({**STEP, "step": 3})[:40])
        record_outputs(tracker, place)
    client = MlflowClient(uri)
    run = client.get_run(tracker.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.tags["finding.loss_spike"] == "step 2, fault: it jumps"
    assert run.data.params["training.betas"] == "[0.9, 0.95]" and run.data.params["run"] == "mine"
    assert history(tracker, "loss") == [(1, 10.0), (2, 5.0)]
    assert history(tracker, "accuracy.slot_1") == [(1, 0.5), (2, 0.5)] and not history(tracker, "accuracy.slot_2")
    assert run.data.metrics["evaluation.acceptance.tau"] == 1.7 and "evaluation.ok" not in run.data.metrics
    assert {f.path for f in client.list_artifacts(tracker.run_id)} >= {"report.html", "report.json", "evaluation.json", "params.yaml"}
    (model,) = client.search_logged_models([run.info.experiment_id])
    assert (model.name, str(model.status)) == ("mine", "READY")


def test_repeated_delivery_counts_once_and_torn_lines_wait(place: Workspace, uri: str, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with tracked(place, uri) as tracker:
        log.write_text(step_line(1) + step_line(2)[:30])
        offset = deliver(tracker, log, 0)
        assert offset == len(step_line(1))
        log.write_text(step_line(1) + step_line(2))
        assert deliver(tracker, log, offset) == deliver(tracker, log, 0) == len(log.read_text())
        assert history(tracker, "loss") == [(1, 10.0), (2, 5.0)]


def test_a_dead_tracker_only_warns(place: Workspace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def dead(uri: str) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(tracking, "_client", dead)
    caplog.set_level(logging.WARNING)
    with tracked(place, "http://127.0.0.1:9") as tracker, following(tracker, place.log_file):
        assert tracker.run_id is None
    record_outputs(tracker, place)
    assert [r.getMessage().split(":")[0] for r in caplog.records] == ["MLflow"]


def test_a_tracker_that_dies_in_between_only_warns(place: Workspace, uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    place.log_file.parent.mkdir(parents=True)
    place.log_file.write_text(step_line(1))
    with tracked(place, uri) as tracker:

        def dead(uri: str) -> None:
            raise ConnectionError("gone")

        monkeypatch.setattr(tracking, "_client", dead)
        with following(tracker, place.log_file):
            pass
    assert "delivering metrics failed" in caplog.text and "closing the run failed" in caplog.text


def test_a_failed_run_is_recorded_as_failed(place: Workspace, uri: str) -> None:
    from mlflow import MlflowClient

    with pytest.raises(ValueError), tracked(place, uri) as tracker:
        raise ValueError
    assert MlflowClient(uri).get_run(tracker.run_id).info.status == "FAILED"


def test_odd_names_of_categories_and_runs_are_recorded(tmp_path: Path, uri: str) -> None:
    from mlflow import MlflowClient

    source = tmp_path / "mine.yaml"
    source.write_text("target: {path: target}\ndata: {conversations: [a.jsonl]}\nrun: v1.2\n")
    place = make_workspace(str(source), directory=tmp_path / "workspaces", cache=tmp_path / "cache")
    (place.root / "build/evaluation").mkdir(parents=True)
    (place.root / "build/drafter").mkdir()
    (place.root / "build/drafter/config.json").write_text("{}")
    tree = {"by_category": {"c++ <x>": {"tau": 1.5}, "数学": {"tau": 1.25}}, "acceptance": {"tau": 1.75}}
    (place.root / "build/evaluation/evaluation.json").write_text(json.dumps(tree))
    with tracked(place, uri) as tracker:
        record_outputs(tracker, place)
    client = MlflowClient(uri)
    run = client.get_run(tracker.run_id)
    assert run.data.metrics["evaluation.acceptance.tau"] == 1.75
    assert run.data.metrics["evaluation.by_category.c__ _x_.tau"] == 1.5
    (model,) = client.search_logged_models([run.info.experiment_id])
    assert model.name == "v1_2"


def test_a_tracker_that_cannot_be_opened_again_only_warns(place: Workspace, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with tracked(place, uri) as tracker:

        def dead(uri: str) -> None:
            raise ConnectionError("gone")

        monkeypatch.setattr(tracking, "_client", dead)
        record_outputs(tracker, place)


def test_a_proof_is_tagged_by_checkpoint_and_as_a_whole(place: Workspace, uri: str) -> None:
    from mlflow import MlflowClient

    def verdict(name: str, outcome: str, sound: bool, fault: str | None = None) -> dict[str, object]:
        return {"name": name, "outcome": outcome, "sound": sound, "fault": fault}

    good, last = verdict("step-00000002", "proven", True), verdict("step-00000004", "unproven", False)
    with tracked(place, uri) as tracker:
        tracking.record_proof(tracker, [good, last])
        assert MlflowClient(uri).get_run(tracker.run_id).data.tags["dflash.proof"] == "unproven"
        tracking.record_proof(tracker, [good, verdict("step-00000003", "rejected", False, "moments"), verdict("step-00000004", "proven", False, "rng")])
    tags = MlflowClient(uri).get_run(tracker.run_id).data.tags
    assert {key: tags[key] for key in tags if key.startswith("dflash.proof")} == {
        "dflash.proof": "rejected",
        "dflash.proof.step-00000002": "proven",
        "dflash.proof.step-00000003": "rejected (moments)",
        "dflash.proof.step-00000004": "proven, resumed wrongly (rng)",
    }
