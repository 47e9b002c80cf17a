"""A copy of the project with servers and workers of its own, for campaigns that start flow runs and harm them."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml
from kill_campaign import PROJECT
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from run_processes import processes_of

from tasks.services.machine import Database, Machine

COPIED = ("dflash_core", "flows", "tasks", "dvc.yaml", "params.yaml", "prefect.yaml", "profiles", "pyproject.toml", "requirements.lock")
POLL_S = 0.2


@dataclass(frozen=True)
class Site:
    """The copy in `project`, its services in `machine`."""

    project: Path
    machine: Machine
    client: SyncPrefectClient

    @property
    def prefect_page(self) -> str:
        """What a person opens in a browser."""
        return self.machine.prefect_api.removesuffix("/api")

    def workspace_of(self, profile: str, run_id: str) -> Path:
        """Where a deployment's run works."""
        return self.project / "workspaces" / f"{profile}-{run_id[:8]}"

    def start(self, deployment: str, parameters: dict[str, Any]) -> str:
        """As the button in the page does; gives the run's id."""
        found = self.client.read_deployment_by_name(f"{deployment}/{deployment}")
        return str(self.client.create_flow_run_from_deployment(found.id, parameters=parameters).id)

    def state(self, run_id: str) -> tuple[str, str]:
        """Type and name of a run's state."""
        state = self.client.read_flow_run(run_id).state
        return (state.type.value, state.name) if state else ("NONE", "")

    def services(self, what: str) -> None:
        """`up` or `down`, by the copy's own command."""
        run_command(self.project, "-m", "tasks.services", what, *_options(self.machine))

    def leave_out_evaluations(self) -> None:
        """Each run's proven checkpoints would be evaluated afterwards, and what comes next wait for the node, or share the cores."""
        file = self.project / "prefect.yaml"
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
        tree["deployments"] = [deployment for deployment in tree["deployments"] if deployment["name"] != "evaluate-drafter"]
        file.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
        self.client.delete_deployment(self.client.read_deployment_by_name("evaluate-drafter/evaluate-drafter").id)
        self.client.delete_automation(self.client.find_automation("evaluate-proven-checkpoints").id)

    def processes(self, run_id: str) -> set[psutil.Process]:
        """A run's: the flow's own, stages, launchers, ranks, and whatever they have started."""
        services = [read_pid(self.machine, file.stem) for file in self.machine.directory.glob("*.pid")]
        return processes_of(run_id, self.project.parent, services)


@contextmanager
def site(
    directory: Path, profile: str, settings: dict[str, Any], database: Database = "sqlite", artifacts: str | None = None
) -> Iterator[Site]:
    """Copy the project, write one profile, start the services; stop them at the end."""
    project = copy_project(directory / "project")
    (project / "profiles" / f"{profile}.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    ports = {f"{name}_port": free_port() for name in ("prefect", "mlflow", "postgres")}
    machine = Machine(directory=directory / "services", database=database, artifacts=artifacts, **ports)
    run_command(project, "-m", "tasks.services", "up", *_options(machine))
    try:
        with temporary_settings({PREFECT_API_URL: machine.prefect_api}), get_client(sync_client=True) as client:
            yield Site(project, machine, client)
    finally:
        run_command(project, "-m", "tasks.services", "down", *_options(machine))


def copy_project(project: Path) -> Path:
    """The code, the declarations and the profiles, without data, models or anything that a run leaves."""
    project.mkdir(parents=True)
    for name in COPIED:
        source = PROJECT / name
        if source.is_dir():
            shutil.copytree(source, project / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, project / name)
    return project


def run_command(project: Path, *arguments: str) -> str:
    """Run the copy's code; gives what it prints."""
    environment = os.environ | {"PYTHONPATH": str(project), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *arguments], cwd=project, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{arguments} ended with {done.returncode}: {done.stdout[-500:]} {done.stderr[-1500:]}")
    return done.stdout


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> float:
    """Seconds until it holds. Raises RuntimeError where it doesn't in time."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise RuntimeError(f"{what}: not within {seconds:g} s")
        time.sleep(POLL_S)
    return round(time.monotonic() - began, 1)


def free_port() -> int:
    """One that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def read_pid(machine: Machine, name: str) -> int:
    """The process of one of the services."""
    return json.loads((machine.directory / f"{name}.pid").read_text(encoding="utf-8"))["pid"]


def _options(machine: Machine) -> list[str]:
    return [
        f"--directory={machine.directory}",
        f"--prefect-port={machine.prefect_port}",
        f"--mlflow-port={machine.mlflow_port}",
        f"--postgres-port={machine.postgres_port}",
        f"--db={machine.database}",
        *([f"--artifacts={machine.artifacts}"] if machine.artifacts else []),
    ]
