"""Tells Prefect's server of work pools, deployments and automations, and of runs to be missed; again and again with the same result."""

import subprocess
import sys

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.exceptions import ObjectAlreadyExists
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.workers.process import ProcessWorker

from dflash_core.errors import ConfigError
from tasks.launch import stage_environment
from tasks.open_runs import expect_signs_of_life
from tasks.services.automations import all_automations, put_automation, put_webhook
from tasks.services.machine import GPU_POOL, LIGHT_POOL, Machine
from tasks.workspace import PROJECT

# One training at a time on the node; raise it with the number of nodes, each of which has a worker with --limit 1.
POOL_LIMITS = {GPU_POOL: 1, LIGHT_POOL: None}


def register(machine: Machine, webhook: str | None = None) -> None:
    """Make or update everything, and have runs missed that a node has left open which went down with the server.

    Raises:
        ConfigError: prefect.yaml is refused.
    """
    with temporary_settings({PREFECT_API_URL: machine.prefect_api}), get_client(sync_client=True) as client:
        for name, limit in POOL_LIMITS.items():
            _put_pool(client, name, limit)
        _deploy(machine)
        block = put_webhook(webhook) if webhook else None
        for automation in all_automations(client, machine.heartbeat_seconds, block):
            put_automation(client, automation)
        expect_signs_of_life(client)


def _put_pool(client: SyncPrefectClient, name: str, limit: int | None) -> None:
    # The template from the class: `prefect work-pool create` would have the server ask GitHub for it.
    template = ProcessWorker.get_default_base_job_template()
    try:
        client.create_work_pool(WorkPoolCreate(name=name, type="process", base_job_template=template, concurrency_limit=limit))
    except ObjectAlreadyExists:
        client.update_work_pool(name, WorkPoolUpdate(concurrency_limit=limit))


def _deploy(machine: Machine) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"],
        cwd=PROJECT,
        env=stage_environment(PROJECT) | machine.client_environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ConfigError(f"Prefect refuses prefect.yaml: {' '.join((done.stdout + done.stderr).split())[-600:]} Correct it.")
