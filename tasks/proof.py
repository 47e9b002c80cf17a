"""The tasks that prove checkpoints, with the outcome tagged in MLflow, told as events and shown as a table."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from tasks.artifacts import show_table
from tasks.events import CHECKPOINT_PROVEN, CHECKPOINT_REJECTED, CHECKPOINT_UNPROVEN, tell
from tasks.launch import Supervised, stage_environment
from tasks.stages import run_if_needed
from tasks.tracking import Tracker, record_proof
from tasks.workspace import PROJECT, Workspace

ALL = "all"
TABLE_KEY = "checkpoint-proofs"
EVENTS = {"proven": CHECKPOINT_PROVEN, "rejected": CHECKPOINT_REJECTED, "unproven": CHECKPOINT_UNPROVEN}


@task(cache_policy=NO_CACHE, task_run_name="prove")
def prove(workspace: Workspace, tracker: Tracker, force: bool = False) -> bool:
    """Run the prove stage; what it says is passed on also where it says no, which ends the flow."""
    before = _verdicts(workspace.proof)
    try:
        return run_if_needed(workspace, "prove", force)
    finally:
        _pass_on(workspace, tracker, before, _verdicts(workspace.proof))


@task(cache_policy=NO_CACHE, task_run_name="prove {name}")
def prove_one(workspace: Workspace, tracker: Tracker, name: str = ALL) -> list[dict[str, Any]]:
    """Prove one checkpoint of the workspace's run, or all of them, by the command line's own means.

    Raises:
        CommandFailed: with exit code 3 where a checkpoint is not proven.
    """
    chosen = ["--all"] if name == ALL else [name]
    run_dir = workspace.log_file.parent
    before = noted_verdicts(run_dir / "checkpoints", name)
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
        _pass_on(workspace, tracker, before, noted_verdicts(run_dir / "checkpoints", name))
    return noted_verdicts(run_dir / "checkpoints", name)


def _pass_on(workspace: Workspace, tracker: Tracker, before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> None:
    """Tags for all verdicts, an event for each that says something new, a table where one was given at all."""
    record_proof(tracker, after)
    known = {_news(verdict) for verdict in before}
    for verdict in [verdict for verdict in after if _news(verdict) not in known]:
        tell(
            EVENTS[verdict["outcome"]],
            f"checkpoint.{workspace.root.name}.{verdict['name']}",
            workspace=workspace.root.name,
            checkpoint=verdict["name"],
            digest=verdict["digest"],
            reason=verdict["reason"],
        )
    if any(verdict not in before for verdict in after):
        columns = ("name", "outcome", "sound", "exactness", "steps_replayed", "reason")
        rows = [{c.replace("_", " "): verdict.get(c) for c in columns} for verdict in after]
        show_table(TABLE_KEY, rows, "Checkpoints, replayed from a fresh process")


def _news(verdict: Mapping[str, Any]) -> tuple[str, str, str]:
    """What a verdict says; one that is given again, of the same checkpoint, differs in what it took."""
    return verdict["name"], verdict["digest"], verdict["outcome"]


def noted_verdicts(checkpoints: Path, name: str = ALL) -> list[dict[str, Any]]:
    """The verdicts that stand beside the checkpoints, oldest first; none for one that nothing was said of."""
    # Loads torch, and reads what a run that goes on may be deleting.
    from dflash_core.checkpoint.manifest import full_name, read_verdict
    from dflash_core.checkpoint.store import CheckpointStore

    names = CheckpointStore(checkpoints).names() if name == ALL else (full_name(name),)
    return [verdict for found in names if (verdict := read_verdict(checkpoints / found))]


def _verdicts(proof: Path) -> list[dict[str, Any]]:
    return json.loads(proof.read_text(encoding="utf-8"))["checkpoints"] if proof.exists() else []
