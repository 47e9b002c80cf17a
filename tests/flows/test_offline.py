"""Nothing is asked of the outside: what the tools do with our settings, and that the watch sees what they do without.

The whole chain is watched in test_train_drafter.py, and all of it with its children, the servers and a browser's visit by
benchmarks/quiet_network.py, from outside of the processes.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.environment import SETTINGS
from tasks.workspace import PROJECT

from .watched_network import WatchedNetwork

# What each call of MLflow does where its telemetry is on: a thread then asks for the telemetry's settings.
CODE = """
import {first}mlflow.telemetry.client, mlflow.telemetry.schemas as schemas, time
client = mlflow.telemetry.client.get_telemetry_client()
if client is not None:
    client.add_record(schemas.Record("an_event", 0, schemas.Status.SUCCESS))
    time.sleep(0.5)
"""


@pytest.mark.parametrize(("first", "quiet"), [("tasks.environment, ", True), ("", False)])
def test_our_settings_keep_mlflow_quiet_and_nothing_else_does(tmp_path: Path, first: str, quiet: bool) -> None:
    network = WatchedNetwork(tmp_path)
    environment = {k: v for k, v in os.environ.items() if k not in SETTINGS and k not in ("CI", "PYTEST_CURRENT_TEST", "PYTEST_VERSION")}
    subprocess.run([sys.executable, "-c", CODE.format(first=first)], cwd=PROJECT, env=environment | network.environment, check=True)
    assert (network.outside() == []) is quiet, network.outside()
