"""The champion's evaluation, measured again where it was measured on other prompts, another target or with other settings."""

import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dflash_core.errors import DataError
from tasks import lineage
from tasks.gates import differences_of_setting
from tasks.launch import Supervised, stage_environment
from tasks.pull import pull
from tasks.registration import EVALUATION_TAG
from tasks.registry import Registry, Version
from tasks.workspace import PROJECT, Workspace


def champion_evaluation(
    workspace: Workspace, registry: Registry, champion: Version, measure: Callable[[Workspace, Path], dict[str, Any]]
) -> dict[str, Any]:
    """An evaluation that can be compared with the workspace's own, prompt by prompt.

    Raises:
        DflashError, Exception: it can't be measured.
    """
    own = lineage.read_json(workspace.root / "build/evaluation/evaluation.json")
    stored = _stored(registry, champion)
    if stored and own and not differences_of_setting(own, stored):
        return stored
    with tempfile.TemporaryDirectory() as temporary:
        return measure(workspace, pull(registry.uri, champion, Path(temporary) / "drafter"))


def _stored(registry: Registry, champion: Version) -> dict[str, Any]:
    """What was measured when it was registered; empty where that is gone, which only costs a measurement."""
    run_id = champion.tags.get(EVALUATION_TAG)
    if not run_id:
        return {}
    with tempfile.TemporaryDirectory() as temporary:
        try:
            return json.loads(Path(registry.client.download_artifacts(run_id, "evaluation.json", temporary)).read_text(encoding="utf-8"))
        except Exception:  # noqa: BLE001 - any fault of the store
            return {}


def measure_in_workspace(logger: logging.Logger | logging.LoggerAdapter) -> Callable[[Workspace, Path], dict[str, Any]]:
    """Evaluate by the stage itself, in a directory beside the workspace's own outputs."""

    def measure(workspace: Workspace, drafter: Path) -> dict[str, Any]:
        place = workspace.root / "promotion"
        shutil.rmtree(place, ignore_errors=True)
        (place / "build").mkdir(parents=True)
        shutil.copy(workspace.root / "params.yaml", place)
        os.symlink(workspace.root / "build/prepared", place / "build/prepared")
        os.symlink(drafter, place / "build/drafter")
        Supervised(
            "evaluate champion",
            # It may be of an earlier target: what counts is how it does on the one that is served now.
            [sys.executable, "-m", "dflash_core", "evaluate", "--any-target"],
            log_file=workspace.output_of("evaluate-champion"),
            cwd=place,
            logger=logger,
            environment=stage_environment(PROJECT),
        ).run()
        evaluation = lineage.read_json(place / "build/evaluation/evaluation.json")
        if not evaluation:
            raise DataError(f"{place} has no evaluation after the stage ran. Look at {workspace.output_of('evaluate-champion')}.")
        return evaluation

    return measure
