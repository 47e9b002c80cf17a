"""Starts the same run in Prefect's page, by REST, by the command line and by cron, forced to run, and compares what comes out.

    python benchmarks/starts.py --screenshots pictures/ --json starts.json
    python benchmarks/starts.py --db postgres --s3

A copy of the project with servers and workers of its own. The page is opened in Chromium: its form is filled in and its button
pressed. All must end Completed with the same digests of weights, moments and generators. A run that isn't forced must then find
every stage up to date; its seconds, from the flow's start to its end, are noted, and so is what `dvc status` says in its
workspace. A run with another learning rate must do the training again, and nothing before it. With --s3, MLflow's artifacts and
DVC's outputs lie in an S3 store (s3_store.py), from which they must come back whole. Exit status 0 means that all of this holds.
"""

import argparse
import json
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from uuid import UUID

from browser import browser
from kill_campaign import final_state
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, DeploymentFilter, DeploymentFilterName
from prefect.client.schemas.schedules import CronSchedule
from prefect_page import start_run, take_pictures
from results import leave
from s3_store import Store, brought_back, s3_store
from services_site import Site, run_command, site, wait_for
from stop_matrix import FINAL, PROFILE, tiny_settings

STEPS = 20
SECONDS_ALLOWED = 5.0
RUN_S = 1200.0
DEPLOYMENT = "train-drafter/train-drafter"
PARAMETERS: dict[str, Any] = {"profile": PROFILE}
CHANGED = ["evaluate", "prove", "report", "train"]
ARTIFACTS = {"data-gate", "training-progress", "training-loss", "checkpoint-proofs", "drafter-acceptance", "diagnosis"}


def main(arguments: list[str] | None = None) -> int:
    """Start; see the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", choices=("sqlite", "postgres"), default="sqlite", help="of both servers")
    parser.add_argument("--s3", action="store_true", help="an S3 store for MLflow's artifacts and as DVC's remote")
    parser.add_argument("--screenshots", type=Path, help="directory for pictures of the form, the run and its artifacts")
    parser.add_argument("--json", type=Path, help="file to write; default: print")
    options = parser.parse_args(arguments)
    if options.screenshots:
        options.screenshots.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="starts-") as directory:
        Path(directory).chmod(0o755)  # PostgreSQL runs as another user than root
        with s3_store() if options.s3 else nullcontext() as store:
            result = compare(Path(directory), options.db, store, options.screenshots)
    return leave(result, options.json, result["holds"])


def compare(directory: Path, database: str, store: Store | None = None, pictures: Path | None = None) -> dict[str, Any]:
    """Each way once, then one run with nothing to do, then one with a change."""
    began = time.monotonic()
    with site(directory, PROFILE, tiny_settings(directory / "inputs", STEPS), database, store and store.artifacts) as place:
        if store:
            store.use_as_remote(place.project)
        rows = {name: _finished(place, start(place, PARAMETERS | {"force": True})) for name, start in WAYS.items()}
        digests = {json.dumps(row.pop("digests"), sort_keys=True) for row in rows.values()}
        unforced = _again(place, _by_rest(place, PARAMETERS))
        changed = _again(place, _by_page(place, PARAMETERS | {"changes": {"learning_rate": 0.001}}, pictures))
        back = brought_back(place, store, place.workspace_of(PROFILE, unforced["run"]), directory / "back") if store else {}
        artifacts = _artifacts(place, rows["page"]["run"], pictures)
    completed = all(row["state"] == "Completed" for row in [*rows.values(), unforced, changed])
    quick = unforced["flow_seconds"] <= SECONDS_ALLOWED and not unforced["stages_run"]
    clean = all("up to date" in row["dvc_status"] for row in (unforced, changed))
    holds = completed and quick and clean and len(digests) == 1 and changed["stages_run"] == CHANGED and artifacts >= ARTIFACTS and all(back.values())
    result = {"ways": rows, "same_digests": len(digests) == 1, "unforced": unforced, "changed": changed}
    return result | {"artifacts": sorted(artifacts), "database": database, "s3": back, "seconds": round(time.monotonic() - began, 1), "holds": holds}


def _again(place: Site, run_id: str) -> dict[str, Any]:
    """A run that isn't forced: which stages ran, and what DVC says of its workspace afterwards."""
    row = _finished(place, run_id)
    workspace = place.workspace_of(PROFILE, run_id)
    del row["digests"]
    return row | {"dvc_status": run_command(workspace, "-m", "dvc", "status").strip(), "stages_run": sorted(_logs(workspace))}


def _finished(place: Site, run_id: str) -> dict[str, Any]:
    wait_for(lambda: place.state(run_id)[0] in FINAL, RUN_S, "the run")
    run = place.client.read_flow_run(run_id)
    state = final_state(place.workspace_of(PROFILE, run_id)) if run.state.name == "Completed" else {}
    row = {"run": run_id, "state": run.state.name, "flow_seconds": round(run.total_run_time.total_seconds(), 1)}
    print(row, file=sys.stderr, flush=True)
    return row | {"digests": state}


def _logs(workspace: Path) -> set[str]:
    """Stages whose command ran in a workspace."""
    return {path.stem for path in (workspace / "logs").glob("*.log")}


def _artifacts(place: Site, run_id: str, pictures: Path | None) -> set[str]:
    """What the pages of a training and of its diagnosis have to show."""
    log = place.workspace_of(PROFILE, run_id) / "runs/killed"
    diagnosis = place.start("diagnose-log", {"log": str(log)})
    wait_for(lambda: place.state(diagnosis)[0] in FINAL, RUN_S, "the diagnosis")
    if pictures:
        with browser() as page:
            take_pictures(page, place.prefect_page, run_id, "[report]", pictures, "run")
            take_pictures(page, place.prefect_page, diagnosis, "[diagnose]", pictures, "diagnosis")
    wanted = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[UUID(run_id), UUID(diagnosis)]))
    return {str(artifact.key) for artifact in place.client.read_artifacts(artifact_filter=wanted)}


def _by_page(place: Site, parameters: dict[str, Any], pictures: Path | None = None) -> str:
    """A person with a browser."""
    found, before = place.client.read_deployment_by_name(DEPLOYMENT), _runs(place)
    with browser() as page:
        start_run(page, place.prefect_page, str(found.id), parameters, pictures and pictures / "form.png")
    (run_id,) = _runs(place) - before
    return run_id


def _by_rest(place: Site, parameters: dict[str, Any]) -> str:
    """What the page's button sends."""
    found = place.client.read_deployment_by_name(DEPLOYMENT)
    request = urllib.request.Request(
        f"{place.machine.prefect_api}/deployments/{found.id}/create_flow_run",
        json.dumps({"parameters": parameters}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["id"]


def _by_command(place: Site, parameters: dict[str, Any]) -> str:
    values = [f"--param={name}={json.dumps(value)}" for name, value in parameters.items()]
    code = "import os, runpy, sys; os.environ['PREFECT_API_URL'] = sys.argv.pop(1); runpy.run_module('prefect', run_name='__main__')"
    before = _runs(place)
    run_command(place.project, "-c", code, place.machine.prefect_api, "deployment", "run", DEPLOYMENT, *values)
    (run_id,) = _runs(place) - before
    return run_id


def _by_cron(place: Site, parameters: dict[str, Any]) -> str:
    """A schedule of every minute, taken away as soon as it has started one run."""
    found, before = place.client.read_deployment_by_name(DEPLOYMENT), _runs(place)
    (schedule,) = place.client.create_deployment_schedules(found.id, [(CronSchedule(cron="* * * * *", timezone="UTC"), True)])
    place.client.update_deployment(found.id, DeploymentUpdate(parameters=parameters))
    started: set[str] = set()

    def has_started() -> bool:
        started.update(run_id for run_id in _runs(place) - before if place.state(run_id)[1] not in ("Scheduled", "Late"))
        return bool(started)

    wait_for(has_started, 180, "a run by cron")
    place.client.delete_deployment_schedule(found.id, schedule.id)
    place.client.update_deployment(found.id, DeploymentUpdate(parameters=found.parameters))  # else later runs would be forced as well
    return started.pop()


def _runs(place: Site) -> set[str]:
    """Of the deployment; others are started by cron and by events."""
    wanted = DeploymentFilter(name=DeploymentFilterName(any_=["train-drafter"]))
    return {str(run.id) for run in place.client.read_flow_runs(deployment_filter=wanted)}


WAYS: dict[str, Callable[[Site, dict[str, Any]], str]] = {"page": _by_page, "rest": _by_rest, "command": _by_command, "cron": _by_cron}

if __name__ == "__main__":
    sys.exit(main())
