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
from dflash_core.evaluation.record_file import record_path
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
    for earlier in (written, out / "comparison.json"):
        earlier.unlink(missing_ok=True)  # must not be taken for this one's
    try:
        _run(workspace, "evaluate", evaluate_arguments(subject, out))
    finally:
        record_evaluation(tracker, written)
    tree = json.loads(written.read_text(encoding="utf-8"))
    return {"evaluation": str(written), "tau": tree["acceptance"]["tau"], "speedup": tree["speed"]["speedup"]}


def earlier_result(workspace: Workspace, name: str, against: str | None) -> Path | None:
    """What the result `name` is to be compared with, from a name or a path; asked before the measurement, which may take hours.

    Raises:
        ConfigError: there is none, or the measurement replaces it.
    """
    if against is None:
        return None
    named = NAME.fullmatch(against) and result_dir(workspace, against).is_dir()
    earlier = Path(os.path.abspath(result_dir(workspace, against) if named else against))
    if not record_path(earlier).is_file():
        raise ConfigError(f"--against {against} is no earlier result: there is no {record_path(earlier)}. Correct the name or the path.")
    if record_path(earlier).resolve() == record_path(result_dir(workspace, name)).resolve():
        raise ConfigError(f"the result {name} would replace {against} and be compared with itself, expected two results. Choose another --name.")
    return earlier


@task(cache_policy=NO_CACHE, task_run_name="compare {name}")
def compare_with(workspace: Workspace, tracker: Tracker, name: str, earlier: Path | None) -> None:
    """Compare a result with an earlier one: the table goes to the log, the figures to comparison.json beside the result."""
    if earlier is None:
        return
    out = result_dir(workspace, name)
    compared = out / "comparison.json"
    _run(workspace, "compare", ["compare", str(earlier), str(out), "--json", str(compared)])
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
