"""The tasks that measure a drafter beside the main flow, with the outcome in MLflow."""

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from dflash_core.errors import ConfigError
from tasks.launch import Supervised, stage_environment
from tasks.tracking import Tracker, record_evaluation
from tasks.workspace import NAME, PROJECT, Workspace

DEFAULT_NAME = "latest"


@task(cache_policy=NO_CACHE, task_run_name="evaluate {name}")
def evaluate_on(
    workspace: Workspace, tracker: Tracker, prompt_sets: Sequence[str], drafter: str | None, name: str, checkpoint: str | None = None
) -> dict[str, Any]:
    """Evaluate by the command line's own means; gives τ and speed. What was measured is recorded also where a gate says no.

    Raises:
        ConfigError: `name` is no directory's name, or both a drafter and a checkpoint are named.
        CommandFailed: with the command's exit code.
    """
    if drafter and checkpoint:
        raise ConfigError(f"drafter {drafter} and checkpoint {checkpoint} are two to measure, expected one. Leave one out.")
    out = result_dir(workspace, name)
    written = out / "evaluation.json"
    written.unlink(missing_ok=True)  # an earlier one must not be taken for this one's
    try:
        with _exported(workspace, checkpoint, out / "drafter") as of_checkpoint:
            _run(workspace, "evaluate", evaluate_arguments(prompt_sets, drafter or of_checkpoint, out))
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


@contextlib.contextmanager
def _exported(workspace: Workspace, checkpoint: str | None, out: Path) -> Iterator[str | None]:
    """The drafter of a checkpoint, for as long as the body runs: it can be exported again, and one may be gigabytes."""
    if checkpoint is None:
        yield None
        return
    source = workspace.log_file.parent / "checkpoints" / checkpoint
    try:
        _run(workspace, "export", ["export", "--checkpoint", str(source), "--out", str(out)])
        yield str(out)
    finally:
        shutil.rmtree(out, ignore_errors=True)


def evaluate_arguments(prompt_sets: Sequence[str], drafter: str | None, out: Path) -> list[str]:
    """Arguments of the command; paths are the caller's, and the command runs in the workspace."""
    arguments = ["evaluate", "--out", str(out)]
    for path in prompt_sets:
        arguments += ["--prompts", os.path.abspath(path)]
    return arguments + (["--drafter", os.path.abspath(drafter)] if drafter else [])


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
