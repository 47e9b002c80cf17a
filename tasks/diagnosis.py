"""The task that diagnoses a training log by the command line's own means, and shows the answer."""

import json
import sys
from pathlib import Path
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run

from dflash_core.errors import GateError
from tasks.artifacts import show_text
from tasks.launch import CommandFailed, Supervised, stage_environment
from tasks.workspace import PROJECT

DIRECTORY = PROJECT / "workspaces/.diagnoses"
TEXT_KEY = "diagnosis"


@task(cache_policy=NO_CACHE, task_run_name="diagnose")
def diagnose(log: str, events: list[str], verify: bool, directory: Path = DIRECTORY) -> dict[str, Any]:
    """Diagnose a log; gives the diagnosis as a tree, with the paths of the page and the JSON file. An unhealthy run is an answer, no failure."""
    place = directory / str(flow_run.get_id() or "by-hand")
    files = {"json": place / "diagnosis.json", "html": place / "diagnosis.html"}
    options = [*(f"--{kind}={file}" for kind, file in files.items()), *(f"--events={event}" for event in events)]
    place.mkdir(parents=True, exist_ok=True)
    try:
        Supervised(
            "diagnose",
            [sys.executable, "-m", "dflash_core", "diagnose", *options, *(["--verify"] if verify else []), "--", log],
            log_file=place / "output.log",
            cwd=PROJECT,
            logger=get_run_logger(),
            environment=stage_environment(PROJECT),
        ).run()
    except CommandFailed as error:
        if error.exit_code != GateError.exit_code:
            raise
    text = (place / "output.log").read_text(encoding="utf-8")
    show_text(TEXT_KEY, f"```\n{text}\n```\n\nThe page with the curves is `{files['html']}`.", f"What happened in {log}")
    return {**json.loads(files["json"].read_text(encoding="utf-8")), **{kind: str(file) for kind, file in files.items()}}
