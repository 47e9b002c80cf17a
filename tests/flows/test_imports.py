"""Logs of other trainers in MLflow: every number, at its step, once."""

import json
from pathlib import Path

import pytest

from dflash_core.errors import ConfigError, DataError
from tasks import deliver, mlflow_store
from tasks.imports import import_log
from tasks.this_run import TimeLimitReached

WANDB = "".join(
    json.dumps({"_step": step, "_timestamp": 1.7e9 + step, "_runtime": step, "train": {"loss": 3.0 - step / 100, "lr": 1e-3}}) + "\n" for step in range(20)
)
TRAINER_STATE = json.dumps(
    {
        "max_steps": 30,
        "log_history": [{"step": 10, "loss": 2.0, "epoch": 0.5}, {"step": 20, "loss": 1.5}, {"step": 20, "eval_loss": 1.75}, {"step": 30, "loss": float("nan")}],
    }
)


def history(uri: str, run_id: str, key: str) -> list[tuple[int, float, int]]:
    return [(m.step, m.value, m.timestamp) for m in mlflow_store.client_of(uri).get_metric_history(run_id, key)]


def test_a_history_of_wandb(tmp_path: Path, uri: str) -> None:
    (tmp_path / "wandb-history.jsonl").write_text(WANDB)
    done = import_log(uri, tmp_path / "wandb-history.jsonl", "theirs")
    assert done.new and mlflow_store.client_of(uri).get_run(done.run_id).info.run_name == "theirs"
    assert history(uri, done.run_id, "train/loss")[3] == (3, 2.97, 1_700_000_003_000)
    assert len(history(uri, done.run_id, "train/lr")) == 20
    again = import_log(uri, tmp_path / "wandb-history.jsonl")
    assert (again.run_id, again.new) == (done.run_id, False)
    assert len(history(uri, done.run_id, "train/loss")) == 20


def test_a_state_of_the_trainer(tmp_path: Path, uri: str) -> None:
    (tmp_path / "trainer_state.json").write_text(TRAINER_STATE)
    done = import_log(uri, tmp_path / "trainer_state.json")
    assert history(uri, done.run_id, "loss") == [(10, 2.0, 0), (20, 1.5, 0)], "no number, no metric"
    assert history(uri, done.run_id, "eval_loss") == [(20, 1.75, 0)]
    assert mlflow_store.client_of(uri).get_run(done.run_id).data.params["max_steps"] == "30.0"


def test_a_run_of_ours_is_delivered_instead(tmp_path: Path, uri: str) -> None:
    start = {"kind": "start", "run_id": "r", "session_id": "s", "step": 0, "wall_time": 1000.0, "config": {"run": "mine"}}
    (tmp_path / "train_log.jsonl").write_text(json.dumps(start) + "\n")
    assert "is delivered to MLflow run" in deliver.import_foreign(tmp_path, None, None, uri)


def test_what_cannot_be_read_or_reached_is_one_sentence(tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    (tmp_path / "no_log.txt").write_text("hello\n")
    with pytest.raises(DataError):
        deliver.import_foreign(tmp_path / "no_log.txt", None, None, uri)
    with pytest.raises(DataError, match="train_log"):
        deliver.ship_run(tmp_path, uri)
    (tmp_path / "wandb-history.jsonl").write_text(WANDB)
    with pytest.raises(ConfigError, match="can't be reached") as caught:
        deliver.import_foreign(tmp_path / "wandb-history.jsonl", None, None, "http://127.0.0.1:9")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "Connection refused"), TimeoutError("timed out"), "botocore.exceptions", "boto3.exceptions"], ids=str)
def test_a_store_of_artifacts_that_is_down_is_one_sentence(error: Exception | str) -> None:
    raised = type("Unreachable", (Exception,), {"__module__": error})("no endpoint") if isinstance(error, str) else error
    with pytest.raises(ConfigError, match="MLflow at sqlite:///x.db refuses, or can't be reached"), mlflow_store.reached("sqlite:///x.db"):
        raise raised


def test_a_time_limit_is_no_fault_of_mlflow() -> None:
    with pytest.raises(TimeLimitReached), mlflow_store.reached("sqlite:///x.db"):
        raise TimeLimitReached
