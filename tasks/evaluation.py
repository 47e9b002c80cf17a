"""The tasks that measure a drafter beside the main flow, with the outcome in MLflow."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from dflash_core.errors import ConfigError
from tasks.launch import Supervised, stage_environment
from tasks.tracking import Tracker, record_evaluation
from tasks.workspace import NAME, PROJECT, Workspace

DEFAULT_NAME = "latest"


@dataclass(frozen=True)
class Subject:
    """What is measured on which prompt sets: a drafter's directory, a checkpoint of the run, or neither for the workspace's own drafter."""

    prompt_sets: tuple[str, ...] = ()
    drafter: str | None = None
    checkpoint: str | None = None


@task(cache_policy=NO_CACHE, task_run_name="evaluate {name}")
def evaluate_on(workspace: Workspace, tracker: Tracker, subject: Subject, name: str) -> dict[str, Any]:
    """Evaluate by the command line's own means; gives τ and speed. What was measured is recorded also where a gate says no.

    Raises:
        ConfigError: `name` is no directory's name.
        CommandFailed: with the command's exit code.
    """
    out = result_dir(workspace, name)
    written = out / "evaluation.json"
    written.unlink(missing_ok=True)  # an earlier one must not be taken for this one's
    try:
        _run(workspace, "evaluate", evaluate_arguments(subject, out))
    finally:
        record_evaluation(tracker, written)
    tree = json.loads(written.read_text(encoding="utf-8"))
    return {"evaluation": str(written), "tau": tree["acceptance"]["tau"], "speedup": tree["speed"]["speedup"]}


@task(cache_policy=NO_CACHE, task_run_name="compare {name}")
def compare_with(workspace: Workspace, tracker: Tracker, name: str, against: str | None) -> None:
    """Compare a result with an earlier one: the table goes to the log, the figures to comparison.json beside the result."""
    if against is None:
        return
    out = result_dir(workspace, name)
    earlier = result_dir(workspace, against) if NAME.fullmatch(against) and result_dir(workspace, against).is_dir() else Path(against)
    compared = out / "comparison.json"
    _run(workspace, "compare", ["compare", os.path.abspath(earlier), str(out), "--json", str(compared)])
    record_evaluation(tracker, compared)


def evaluate_arguments(subject: Subject, out: Path) -> list[str]:
    """Arguments of the command; paths are the caller's, and the command runs in the workspace."""
    arguments = ["evaluate", "--out", str(out)]
    for path in subject.prompt_sets:
        arguments += ["--prompts", os.path.abspath(path)]
    arguments += ["--checkpoint", subject.checkpoint] if subject.checkpoint else []
    return arguments + (["--drafter", os.path.abspath(subject.drafter)] if subject.drafter else [])


def result_dir(workspace: Workspace, name: str) -> Path:
    """Where a measurement leaves its files: not below build/, which is DVC's."""
    if not NAME.fullmatch(name):
        raise ConfigError(f"the result's name {name!r} is not made of at most 100 letters, digits, dots, dashes and underscores; choose another.")
    return workspace.root / "evaluations" / name


def _run(workspace: Workspace, name: str, arguments: Sequence[str]) -> None:
    Supervised(
        name,
        [sys.executable, "-m", "dflash_core", *arguments],
        log_file=workspace.output_of(name),
        cwd=workspace.root,
        logger=get_run_logger(),
        environment=stage_environment(PROJECT),
    ).run()
