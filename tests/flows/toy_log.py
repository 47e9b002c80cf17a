"""Records of a training's log for the tests of its delivery, and what MLflow has of them."""

import json
from typing import Any

from tasks import mlflow_store

STEP = {
    "kind": "step", "run_id": "r", "session_id": "s", "epoch": 0, "loss": 2.0, "streak": None, "lr": 1e-3, "num_blocks": 4,
    "per_position_accuracy": [0.5, None], "per_position_count": [2, 0], "buckets": [32], "first_sample": 0, "last_sample": 3,
}  # fmt: skip
START = {
    "kind": "start", "run_id": "r", "session_id": "s", "step": 0, "wall_time": 1000.0,
    "config": {"run": "mine", "training": {"betas": [0.9, 0.95]}}, "identity": {"target": "t" * 64},
}  # fmt: skip


def line(record: dict[str, Any]) -> str:
    return json.dumps(record) + "\n"


def step_line(step: int, loss: float | None = None, wall_time: float | None = None) -> str:
    loss = 10.0 / step if loss is None else loss
    return line({**STEP, "step": step, "wall_time": wall_time or 1000.0 + step, "loss": loss, "loss_sum": loss * 4})


def stop_line(step: int, reason: str = "finished") -> str:
    return line({"kind": "stop", "run_id": "r", "session_id": "s", "step": step, "wall_time": 2000.0, "reason": reason, "message": ""})


def client(uri: str) -> Any:
    return mlflow_store.client_of(uri)


def history(uri: str, run_id: str, key: str) -> list[tuple[int, float]]:
    return [(m.step, m.value) for m in client(uri).get_metric_history(run_id, key)]
