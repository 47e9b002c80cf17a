"""What happened, in MLflow: parameters, metrics by step, findings, evaluation, artifacts, the exported drafter.

The only importer of mlflow. train_log.jsonl is the truth and MLflow a copy of it: no call here can fail or slow a
run. Each is tolerated (one warning, then the run goes on), and what was not delivered is delivered by a later run.
"""

import contextlib
import json
import logging
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import get_run_logger
from prefect.runtime import flow_run

from tasks.log_tail import new_records, polling
from tasks.workspace import PROJECT, Workspace

EXPERIMENT = "dflash"
FLOW_RUN_TAG = "dflash.flow_run_id"
PROOF_TAG = "dflash.proof"
# Limits of one log_batch call (mlflow.utils.validation), and of a parameter's value, past which it is cut silently.
MOST_METRICS = 1000
MOST_PARAMS = 100
MOST_PARAM_CHARACTERS = 6000
# Fields of a step record that are numbers but no measurements.
NOT_METRICS = ("step", "wall_time", "epoch", "first_sample", "last_sample")


@dataclass(frozen=True)
class Tracker:
    """An MLflow run; `run_id` is None where MLflow could not be reached, and nothing is then recorded."""

    uri: str
    run_id: str | None


@contextlib.contextmanager
def tolerated(what: str) -> Iterator[None]:
    """Turn whatever MLflow, its database or the network raises into a warning."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - tracking is never a condition for training, whatever the fault
        _logger().warning("MLflow: %s failed (%s: %s); the run goes on", what, type(error).__name__, " ".join(str(error).split())[:200])


@contextlib.contextmanager
def tracked(workspace: Workspace, uri: str | None = None) -> Iterator[Tracker]:
    """The MLflow run of this flow run, its configuration recorded; a retry of the flow run goes on with the same one.

    Args:
        uri: tracking URI; None takes MLFLOW_TRACKING_URI, or a SQLite file in the project.
    """
    tracker = _start(workspace, uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{PROJECT / 'mlflow.db'}")
    status = "FAILED"
    try:
        yield tracker
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        if tracker.run_id is not None:
            with tolerated("closing the run"):
                _client(tracker.uri).set_terminated(tracker.run_id, status)


def _start(workspace: Workspace, uri: str) -> Tracker:
    run_id = None
    with tolerated("starting a run"):
        run_id = _find_or_create(uri, workspace)
        _log_params(Tracker(uri, run_id), workspace.config.model_dump(mode="json"))
    return Tracker(uri, run_id)


@contextlib.contextmanager
def following(tracker: Tracker, log_file: Path) -> Iterator[None]:
    """Deliver a training log's metrics and findings while the body runs, and the rest when it has ended."""

    def poll(offset: int) -> int:
        with tolerated("delivering metrics"):
            return deliver(tracker, log_file, offset)
        return offset

    with polling(poll, "mlflow-delivery") if tracker.run_id is not None else contextlib.nullcontext():
        yield


def record_outputs(tracker: Tracker, workspace: Workspace) -> None:
    """Evaluation metrics, the report and its sources as artifacts, the drafter as a logged model."""
    if tracker.run_id is None:
        return
    build = workspace.root / "build"
    with tolerated("recording the evaluation"):
        client = _client(tracker.uri)
        tree = json.loads((build / "evaluation/evaluation.json").read_text(encoding="utf-8"))
        client.log_batch(tracker.run_id, metrics=_metrics({f"evaluation.{k}": v for k, v in _numbers(tree)}, step=0, milliseconds=0))
    for file in (workspace.report, build / "report/report.json", build / "evaluation/evaluation.json", workspace.root / "params.yaml"):
        with tolerated(f"storing {file.name}"):
            _client(tracker.uri).log_artifact(tracker.run_id, str(file))
    with tolerated("storing the drafter"):
        _log_drafter(_client(tracker.uri), tracker.run_id, workspace)


def record_evaluation(tracker: Tracker, path: Path) -> None:
    """A measurement beside the chain: its numbers as metrics, its parts as a table, the file itself; nothing where there is none."""
    if tracker.run_id is None or not path.exists():
        return
    with tolerated(f"recording {path.name}"):
        tree = json.loads(path.read_text(encoding="utf-8"))
        client = _client(tracker.uri)
        values = {f"{path.stem}.{k}": v for k, v in _numbers(tree)}
        for first in range(0, len(values), MOST_METRICS):
            part = dict(list(values.items())[first : first + MOST_METRICS])
            client.log_batch(tracker.run_id, metrics=_metrics(part, step=0, milliseconds=0))
        client.log_artifact(tracker.run_id, str(path))
        if columns := _columns(tree):
            client.log_table(tracker.run_id, columns, f"{path.stem}_table.json")


def _columns(tree: dict[str, Any]) -> dict[str, list[Any]]:
    """Every part of every by_... mapping as a row: part, name, and its numbers."""
    rows = [
        {"by": key.removeprefix("by_"), "name": name} | {k: v for k, v in part.items() if v is None or isinstance(v, str) or _is_number(v)}
        for key, parts in tree.items()
        if key.startswith("by_")
        for name, part in parts.items()
    ]
    return {column: [row.get(column) for row in rows] for column in (rows[0] if rows else ())}


def record_proof(tracker: Tracker, verdicts: Sequence[Mapping[str, Any]]) -> None:
    """Tag the run with what was proven: `dflash.proof` as a whole, and the outcome of each checkpoint by name."""
    if tracker.run_id is None or not verdicts:
        return
    whole = "rejected" if any(v["outcome"] == "rejected" for v in verdicts) else verdicts[-1]["outcome"]
    tags = {PROOF_TAG: whole}
    for verdict in verdicts:
        outcome = verdict["outcome"] if verdict["sound"] or verdict["outcome"] != "proven" else "proven, resumed wrongly"
        tags[f"{PROOF_TAG}.{verdict['name']}"] = f"{outcome} ({verdict['fault']})" if verdict["fault"] else outcome
    with tolerated("recording the proof"):
        client = _client(tracker.uri)
        for key, value in tags.items():
            client.set_tag(tracker.run_id, key, value)


def deliver(tracker: Tracker, log_file: Path, offset: int) -> int:
    """Send the whole lines after byte `offset`; gives the offset after them.

    Delivery may repeat: MLflow takes the same (key, time, step, value) once, and a tag's last value counts.
    """
    records, after = new_records(log_file, offset)
    metrics = [m for record in records for m in _metrics_of(record)]
    client = _client(tracker.uri)
    for first in range(0, len(metrics), MOST_METRICS):
        client.log_batch(tracker.run_id, metrics=metrics[first : first + MOST_METRICS])
    for key, value in dict(tag for record in records for tag in _tags_of(record)).items():
        client.set_tag(tracker.run_id, key, value)
    return after


def _tags_of(record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """By which runs with a finding are searched for, and why a session ended otherwise than finished."""
    if record.get("kind") == "finding":
        yield f"finding.{record['what']}", f"step {record['at_step']}, {record['severity']}: {record['text']}"
    if record.get("kind") == "stop":
        yield "dflash.stop", f"step {record['step']}, {record['reason']}" + (f": {record['message']}" if record["message"] else "")


def _metrics_of(record: dict[str, Any]) -> list[Any]:
    kind = record.get("kind")
    values: dict[str, float] = {}
    if kind == "step":
        values = {k: v for k, v in record.items() if _is_number(v) and k not in NOT_METRICS}
        accuracies = record.get("per_position_accuracy") or []
        values |= {f"accuracy.slot_{k}": v for k, v in enumerate(accuracies, start=1) if _is_number(v)}
    if kind == "eval":
        values = {f"eval.{k}": v for k, v in record["metrics"].items() if _is_number(v)}
    return _metrics(values, record.get("step", 0), int(record.get("wall_time", 0) * 1000))


def _metrics(values: dict[str, float], step: int, milliseconds: int) -> list[Any]:
    from mlflow.entities import Metric

    return [Metric(key=k, value=float(v), timestamp=milliseconds, step=step) for k, v in values.items()]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _numbers(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Numbers of nested mappings by dotted key; lists are no metrics."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{prefix}{key}.")
        elif _is_number(value):
            yield re.sub(r"[^\w. /-]", "_", f"{prefix}{key}", flags=re.ASCII), value  # a category may have any name


def _flat(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)[:MOST_PARAM_CHARACTERS]


def _client(uri: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def _find_or_create(uri: str, workspace: Workspace) -> str:
    client = _client(uri)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    # A server decides itself where artifacts go; a database has no such place of its own.
    place = f"file://{PROJECT / 'mlartifacts'}" if uri.startswith("sqlite:") else None
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(EXPERIMENT, artifact_location=place)
    flow_run_id = flow_run.get_id() or "none"
    found = client.search_runs([experiment_id], f"tags.`{FLOW_RUN_TAG}` = '{flow_run_id}'", max_results=1)
    if found:
        client.update_run(found[0].info.run_id, status="RUNNING")
        return found[0].info.run_id
    tags = {FLOW_RUN_TAG: flow_run_id, "dflash.workspace": workspace.root.name}
    return client.create_run(experiment_id, run_name=flow_run.get_name() or workspace.config.run, tags=tags).info.run_id


def _log_params(tracker: Tracker, tree: dict[str, Any]) -> None:
    from mlflow.entities import Param

    params = [Param(key, value) for key, value in _flat(tree)]
    for first in range(0, len(params), MOST_PARAMS):
        _client(tracker.uri).log_batch(tracker.run_id, params=params[first : first + MOST_PARAMS])


def _log_drafter(client: Any, run_id: str, workspace: Workspace) -> None:
    """A logged model whose files are the exported drafter, as it is: safetensors and JSON, nothing executable."""
    experiment_id = client.get_run(run_id).info.experiment_id
    name = workspace.config.run.replace(".", "_")  # MLflow refuses dots in a model's name
    model = client.create_logged_model(experiment_id, name=name, source_run_id=run_id, model_type="dflash-drafter")
    client.log_model_artifacts(model.model_id, str(workspace.root / "build/drafter"))
    client.finalize_logged_model(model.model_id, "READY")


def _logger() -> logging.Logger | logging.LoggerAdapter:
    """The flow's logger; a plain one where no flow runs."""
    try:
        return get_run_logger()
    except Exception:  # noqa: BLE001 - MissingContextError, and nothing that may stop a run
        return logging.getLogger(__name__)
