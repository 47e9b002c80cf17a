"""Registers a workspace's exported drafter as a version of a model, with where it comes from and how good it is."""

import hashlib
import json
from pathlib import Path
from typing import Any

from dflash_core.errors import ConfigError
from tasks import lineage, mlflow_store, run_outputs
from tasks.registry import CANDIDATE, CHAMPION, Registry, Version
from tasks.shipping import delivering
from tasks.workspace import Workspace

DRAFTER_TAG = "dflash.drafter"  # digest of all files: the same bytes are the same version
FILES_TAG = run_outputs.FILES_TAG
DVC_TAG = "dflash.dvc"
EVALUATION_TAG = "dflash.evaluation_run"
DVC_SCHEME = "dvc:///"  # three: MLflow's server refuses a source whose path isn't absolute


def model_name(workspace: Workspace) -> str:
    """By default a model is named after its target: all that can stand in for each other."""
    return "dflash-" + mlflow_store.allowed_name(Path(workspace.config.target.path).name).replace("/", "_").replace(":", "_")[:190]


def register(workspace: Workspace, registry: Registry, *, by_reference: bool = False) -> Version:
    """The version with the drafter in build/drafter; the same bytes are registered once. It is the `candidate`, unless it is the champion.

    Args:
        by_reference: the registry holds the drafter's DVC digest and no copy of its files.

    Raises:
        ConfigError: the workspace has no drafter, or one of another run than its log's.
    """
    drafter = workspace.root / "build/drafter"
    if not drafter.is_dir():
        raise ConfigError(f"{drafter} does not exist, expected the drafter that stage prove leaves there. Train first.")
    digest = drafter_digest(lineage.file_digests(drafter))
    version = registry.with_tag(DRAFTER_TAG, digest) or _create(workspace, registry, drafter, digest, by_reference)
    champion = registry.alias(CHAMPION)
    if champion is None or champion.number != version.number:
        registry.point(CANDIDATE, version.number)
    return version


def drafter_digest(files: dict[str, str]) -> str:
    """One digest for all files, from theirs."""
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def _create(workspace: Workspace, registry: Registry, drafter: Path, digest: str, by_reference: bool) -> Version:
    with delivering(registry.uri, workspace.log_file.parent) as delivery:
        if delivery is None or not lineage.is_of_run(workspace.root, delivery.cursor.log_run):
            raise ConfigError(f"build/train.json of {workspace.root} is not of the run in {workspace.log_file}. Run the training flow to its end.")
        delivery.send_log()
        run_outputs.send_outputs(delivery, workspace.root)
        tags = version_tags(workspace.root) | {DRAFTER_TAG: digest, FILES_TAG: json.dumps(lineage.file_digests(drafter))}
        if evaluation := run_outputs.evaluation_run(delivery, workspace.root):
            tags[EVALUATION_TAG] = evaluation
        description = _measured(workspace.root) + _description(drafter / "README.md")
        if by_reference:
            return registry.create(_reference(workspace.root), delivery.run_id, None, tags, description)
        model_id = run_outputs.log_drafter(delivery, drafter)
        # Not models:/ID, which a client of a database asks the process's global tracking URI for.
        source = delivery.client.get_logged_model(model_id).artifact_location
        return registry.create(source, delivery.run_id, model_id, tags, description)


def _measured(root: Path) -> str:
    """τ as a promotion compares it; the card, which is written before anything is decoded, has another one, by the walk."""
    acceptance = lineage.read_json(root / "build/evaluation/evaluation.json").get("acceptance", {})
    if acceptance.get("tau") is None:
        return ""
    low, high = acceptance.get("tau_low"), acceptance.get("tau_high")
    interval = f" (95 %: {low:.2f} to {high:.2f})" if low is not None and high is not None else ""
    return f"τ {acceptance['tau']:.2f}{interval} by speculative decoding, which is what promotions compare.\n\n"


def _description(card: Path) -> str:
    """The model card without the lines of metadata at its top, which MLflow's page would show as its title."""
    text = card.read_text(encoding="utf-8") if card.is_file() else ""
    return text.split("\n---\n", 1)[1] if text.startswith("---\n") and "\n---\n" in text else text


def version_tags(root: Path) -> dict[str, str]:
    """Data version, DVC's digests, target, proof verdict, τ and code revision, from the files that the stages leave."""
    export = lineage.read_json(root / "build/drafter/lineage.json")
    pointer = lineage.read_json(root / "build/train.json")
    acceptance = lineage.read_json(root / "build/evaluation/evaluation.json").get("acceptance", {})
    known: dict[str, Any] = {
        "proof": export.get("status"),
        "run": export.get("run"),
        "run_id": export.get("run_id"),
        "step": export.get("step"),
        "checkpoint": export.get("checkpoint_digest"),
        "target": export.get("target_identity"),
        "data_version": export.get("dataset"),
        "init": export.get("init"),
        "code": lineage.code_of(root / pointer.get("checkpoint", "")),
        "tau": acceptance.get("tau"),
        "tau_low": acceptance.get("tau_low"),
        "tau_high": acceptance.get("tau_high"),
    }
    tags = {f"dflash.{key}": str(value) for key, value in known.items() if value is not None}
    return tags | {DVC_TAG: json.dumps(lineage.dvc_digests(root / "dvc.lock"))}


def _reference(root: Path) -> str:
    digest = lineage.dvc_digests(root / "dvc.lock").get("build/drafter")
    if digest is None:
        raise ConfigError(f"{root / 'dvc.lock'} has no digest of build/drafter, expected one to refer to. Run the training flow to its end.")
    return DVC_SCHEME + digest
