"""The tasks that prove checkpoints, with the outcome tagged in MLflow."""

import json
import sys
from pathlib import Path
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from tasks.launch import Supervised, stage_environment
from tasks.stages import run_if_needed
from tasks.tracking import Tracker, record_proof
from tasks.workspace import PROJECT, Workspace

ALL = "all"


@task(cache_policy=NO_CACHE, task_run_name="prove")
def prove(workspace: Workspace, tracker: Tracker, force: bool = False) -> bool:
    """Run the prove stage; the tags are set also where it says no, which ends the flow."""
    try:
        return run_if_needed(workspace, "prove", force)
    finally:
        record_proof(tracker, _verdicts(workspace.proof))


@task(cache_policy=NO_CACHE, task_run_name="prove {name}")
def prove_one(workspace: Workspace, tracker: Tracker, name: str = ALL) -> list[dict[str, Any]]:
    """Prove one checkpoint of the workspace's run, or all of them, by the command line's own means.

    Raises:
        CommandFailed: with exit code 3 where a checkpoint is not proven.
    """
    chosen = ["--all"] if name == ALL else [name]
    run_dir = workspace.log_file.parent
    try:
        Supervised(
            "prove",
            [sys.executable, "-m", "dflash_core", "checkpoint", "prove", str(run_dir), *chosen],
            log_file=workspace.output_of("prove"),
            cwd=workspace.root,
            logger=get_run_logger(),
            environment=stage_environment(PROJECT),
        ).run()
    finally:
        record_proof(tracker, noted_verdicts(run_dir / "checkpoints", name))
    return noted_verdicts(run_dir / "checkpoints", name)


def noted_verdicts(checkpoints: Path, name: str = ALL) -> list[dict[str, Any]]:
    """The verdicts that stand beside the checkpoints, oldest first; none for one that nothing was said of."""
    # Loads torch, and reads what a run that goes on may be deleting.
    from dflash_core.checkpoint.manifest import full_name, read_verdict
    from dflash_core.checkpoint.store import CheckpointStore

    names = CheckpointStore(checkpoints).names() if name == ALL else (full_name(name),)
    return [verdict for found in names if (verdict := read_verdict(checkpoints / found))]


def _verdicts(proof: Path) -> list[dict[str, Any]]:
    return json.loads(proof.read_text(encoding="utf-8"))["checkpoints"] if proof.exists() else []
