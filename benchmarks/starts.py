"""Starts the same run by REST, by the command line and by cron, forced to run, and compares what comes out; then says it again unforced.

    python benchmarks/starts.py --json starts.json
    python benchmarks/starts.py --db postgres --s3

A copy of the project with servers and workers of its own. All must end Completed with the same digests of weights, moments and
generators. A run that isn't forced must then find every stage up to date; its seconds, from the flow's start to its end, are noted,
and so is what `dvc status` says in its workspace. With --s3, MLflow's artifacts and DVC's outputs lie in an S3 store
(s3_store.py), from which they must come back whole. Exit status 0 means that all of this holds.
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

from kill_campaign import final_state
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.client.schemas.schedules import CronSchedule
from results import leave
from s3_store import Store, brought_back, s3_store
from services_site import Site, run_command, site, wait_for
from stop_matrix import FINAL, PROFILE, RUN_S, tiny_settings

STEPS = 20
SECONDS_ALLOWED = 5.0
DEPLOYMENT = "train-drafter/train-drafter"


def main(arguments: list[str] | None = None) -> int:
    """Start; see the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", choices=("sqlite", "postgres"), default="sqlite", help="of both servers")
    parser.add_argument("--s3", action="store_true", help="an S3 store for MLflow's artifacts and as DVC's remote")
    parser.add_argument("--json", type=Path, help="file to write; default: print")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="starts-") as directory:
        Path(directory).chmod(0o755)  # PostgreSQL runs as another user than root
        with s3_store() if options.s3 else nullcontext() as store:
            result = compare(Path(directory), options.db, store)
    return leave(result, options.json, result["holds"])


def compare(directory: Path, database: str, store: Store | None = None) -> dict[str, Any]:
    """Each way once, then one unforced run."""
    began = time.monotonic()
    with site(directory, PROFILE, tiny_settings(directory / "inputs", STEPS), database, store and store.artifacts) as place:
        if store:
            store.use_as_remote(place.project)
        rows = {name: _finished(place, start(place, {"profile": PROFILE, "force": True})) for name, start in WAYS.items()}
        digests = {json.dumps(row.pop("digests"), sort_keys=True) for row in rows.values()}
        run_id = _by_rest(place, {"profile": PROFILE})
        unforced = _finished(place, run_id)
        workspace = place.workspace_of(PROFILE, run_id)
        unforced |= {"dvc_status": run_command(workspace, "-m", "dvc", "status").strip(), "stages_run": sorted(_logs(workspace))}
        unforced.pop("digests")
        back = brought_back(place, store, workspace, directory / "back") if store else {}
    completed = all(row["state"] == "Completed" for row in [*rows.values(), unforced])
    quick = unforced["flow_seconds"] <= SECONDS_ALLOWED and not unforced["stages_run"] and "up to date" in unforced["dvc_status"]
    holds = completed and quick and len(digests) == 1 and all(back.values())
    result = {"ways": rows, "same_digests": len(digests) == 1, "unforced": unforced, "database": database, "s3": back, "holds": holds}
    return result | {"seconds": round(time.monotonic() - began, 1)}


def _finished(place: Site, run_id: str) -> dict[str, Any]:
    wait_for(lambda: place.state(run_id)[0] in FINAL, RUN_S, "the run")
    run = place.client.read_flow_run(run_id)
    state = final_state(place.workspace_of(PROFILE, run_id)) if run.state.name == "Completed" else {}
    return {"state": run.state.name, "flow_seconds": round(run.total_run_time.total_seconds(), 1), "digests": state}


def _logs(workspace: Path) -> set[str]:
    """Stages whose command ran in a workspace."""
    return {path.stem for path in (workspace / "logs").glob("*.log")}


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
    return started.pop()


def _runs(place: Site) -> set[str]:
    return {str(run.id) for run in place.client.read_flow_runs()}


WAYS: dict[str, Callable[[Site, dict[str, Any]], str]] = {"rest": _by_rest, "command": _by_command, "cron": _by_cron}

if __name__ == "__main__":
    sys.exit(main())
