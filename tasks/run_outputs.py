"""Delivers what a run leaves beside its log: proofs, evaluation, report, drafter, and the data that it was made from.

Each is sent once and again when it has changed; the cursor of tasks/shipping.py keeps what was sent.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks import lineage, mlflow_store
from tasks.log_records import is_number
from tasks.shipping import Delivery

PROOF_TAG = "dflash.proof"
FILES_TAG = "dflash.files"


def send_proof(delivery: Delivery, verdicts: Sequence[Mapping[str, Any]]) -> None:
    """What was proven: tags of the run, `dflash.proof` as a whole and one a checkpoint, and the verdicts in a nested run."""
    text = json.dumps(list(verdicts), indent=1)
    if not verdicts or not delivery.once("proof", _digest(text)):
        return
    tags = proof_tags(verdicts)
    mlflow_store.log_tags(delivery.client, delivery.run_id, tags)
    child = delivery.child("proof", delivery.cursor.log_run, "proof")
    mlflow_store.log_tags(delivery.client, child, tags)
    for verdict in verdicts:
        measured = {"steps_replayed": verdict.get("steps_replayed"), "seconds": verdict.get("seconds")}
        values = {f"proof.{key}": value for key, value in measured.items() if is_number(value)}
        mlflow_store.log_metrics(delivery.client, child, mlflow_store.metrics_of(values, verdict.get("step", 0), 0))
    delivery.client.log_text(child, text, "verdicts.json")
    delivery.client.set_terminated(child, "FINISHED" if tags[PROOF_TAG] == "proven" else "FAILED")
    delivery.sent("proof", _digest(text))


def proof_tags(verdicts: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Of all and of each."""
    whole = "rejected" if any(v["outcome"] == "rejected" for v in verdicts) else verdicts[-1]["outcome"]
    tags = {PROOF_TAG: whole}
    for verdict in verdicts:
        outcome = verdict["outcome"] if verdict["sound"] or verdict["outcome"] != "proven" else "proven, resumed wrongly"
        tags[f"{PROOF_TAG}.{verdict['name']}"] = f"{outcome} ({verdict['fault']})" if verdict["fault"] else outcome
    return tags


def verdicts_beside(run_dir: Path) -> list[dict[str, Any]]:
    """What the proofs said, as it stands beside the checkpoints, oldest first."""
    found = []
    for note in sorted((run_dir / "checkpoints").glob("step-*/status.json")):
        try:
            verdict = json.loads(note.read_text(encoding="utf-8"))["verdict"]
        except (OSError, ValueError, KeyError):  # being written or deleted by the run
            continue
        found += [verdict] if verdict else []
    return found


def send_outputs(delivery: Delivery, root: Path) -> None:
    """Datasets, evaluation, files and drafter of a workspace whose run this is."""
    if not lineage.is_of_run(root, delivery.cursor.log_run):
        return
    _send_datasets(delivery, root)
    _send_evaluation(delivery, root / "build/evaluation/evaluation.json")
    for file in (root / "build/report/report.html", root / "build/report/report.json", root / "params.yaml"):
        _send_file(delivery, file)
    for name in ("profile.json", "verdict.json"):  # the first is what later versions' data are compared with
        _send_file(delivery, root / "build/data_gate" / name, "data_gate")
    if (root / "build/drafter").is_dir():
        log_drafter(delivery, root / "build/drafter")


def _send_file(delivery: Delivery, file: Path, place: str | None = None) -> None:
    if file.is_file() and delivery.once(file.name, digest := _file_digest(file)):
        delivery.client.log_artifact(delivery.run_id, str(file), place)
        delivery.sent(file.name, digest)


def _send_datasets(delivery: Delivery, root: Path) -> None:
    """By DVC's own digests, under which the same data is found in its cache and in every other run."""
    for path, digest in lineage.data_digests(root).items():
        if delivery.once(f"dataset {path}", digest):
            mlflow_store.log_dataset(delivery.client, delivery.run_id, Path(path).name, digest, path, "training")
            delivery.sent(f"dataset {path}", digest)


def _send_evaluation(delivery: Delivery, file: Path) -> None:
    """The chain's own evaluation: in a nested run, and its numbers with the training's."""
    if file.is_file() and delivery.once("evaluation", digest := _file_digest(file)):
        send_measurement(delivery, file)
        mlflow_store.log_metrics(delivery.client, delivery.run_id, _measured(file))
        delivery.client.log_artifact(delivery.run_id, str(file))
        delivery.sent("evaluation", digest)


def send_measurement(delivery: Delivery, file: Path) -> None:
    """An evaluation or a comparison as a run nested in the training's: numbers, parts as a table, and the file itself."""
    child = delivery.child(file.stem, _file_digest(file)[:32], file.stem)
    mlflow_store.log_metrics(delivery.client, child, _measured(file))
    delivery.client.log_artifact(child, str(file))
    columns, table = table_of_parts(json.loads(file.read_text(encoding="utf-8"))), f"{file.stem}_table.json"
    if columns and table not in {artifact.path for artifact in delivery.client.list_artifacts(child)}:  # MLflow appends to a table
        delivery.client.log_table(child, columns, table)
    delivery.client.set_terminated(child)


def _measured(file: Path) -> list[Any]:
    tree = json.loads(file.read_text(encoding="utf-8"))
    return mlflow_store.metrics_of({f"{file.stem}.{k}": v for k, v in numbers(tree)}, 0, int(file.stat().st_mtime * 1000))


def table_of_parts(tree: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Every part of every by_... mapping as a row: by what, its name, and its numbers."""
    rows = [
        {"by": key.removeprefix("by_"), "name": name} | {k: v for k, v in part.items() if v is None or isinstance(v, str) or is_number(v)}
        for key, parts in tree.items()
        if key.startswith("by_")
        for name, part in parts.items()
    ]
    return {column: [row.get(column) for row in rows] for column in (rows[0] if rows else ())}


def evaluation_run(delivery: Delivery, root: Path) -> str | None:
    """The nested run with the workspace's evaluation, which `send_outputs` has made; None without one."""
    file = root / "build/evaluation/evaluation.json"
    return delivery.child("evaluation", _file_digest(file)[:32], "evaluation") if file.is_file() else None


def log_drafter(delivery: Delivery, drafter: Path) -> str:
    """A logged model whose files are the exported drafter, as it is: safetensors and JSON, nothing executable; gives its id."""
    files = lineage.file_digests(drafter)
    digest = _digest(json.dumps(files, sort_keys=True))
    known = delivery.cursor.sent.get("drafter", "")
    if known.startswith(digest):
        return known.removeprefix(digest).strip()
    name = str(delivery.start.get("config", {}).get("run", "drafter")).replace(".", "_")  # MLflow refuses dots in a model's name
    model = delivery.client.create_logged_model(
        delivery.experiment, name=name, source_run_id=delivery.run_id, model_type="dflash-drafter", tags={FILES_TAG: json.dumps(files)}
    )
    delivery.client.log_model_artifacts(model.model_id, str(drafter))
    delivery.client.finalize_logged_model(model.model_id, "READY")
    delivery.sent("drafter", f"{digest} {model.model_id}")
    return model.model_id


def numbers(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Numbers of nested mappings by dotted key; lists are no metrics."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{prefix}{key}.")
        elif is_number(value):
            yield f"{prefix}{key}", value


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _file_digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
