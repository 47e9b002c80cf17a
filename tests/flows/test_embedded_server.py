"""The embedded Prefect server: Ctrl-C in a terminal ends the flow at once, and the server only after it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from prefect.server.api.server import SubprocessASGIServer

from tasks import embedded_server
from tasks.embedded_server import EmbeddedServer
from tasks.workspace import PROJECT

# The command line as it is, with a flow in place of the chain that says when it runs.
WAITING = """
import sys, time
from prefect import flow
from flows import train_drafter

@flow
def waiting(*arguments):
    print("running", flush=True)
    time.sleep(300)

train_drafter.train_drafter = waiting
sys.exit(train_drafter.main([]))
"""
# Measured: 6 s. Without embedded_server it took 166 s, and the exit code was 1.
SECONDS = 30


def test_an_interrupted_group_ends_soon_with_exit_code_4(tmp_path: Path) -> None:
    script = tmp_path / "waiting.py"
    script.write_text(WAITING)
    environment = os.environ | {"PREFECT_HOME": str(tmp_path), "PYTHONPATH": str(PROJECT)}
    environment.pop("PREFECT_API_URL", None)
    process = subprocess.Popen(
        [sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None and process.stdout.readline() == "running\n"
    os.killpg(process.pid, signal.SIGINT)
    try:
        _, error = process.communicate(timeout=SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert (process.returncode, error.count("Traceback")) == (4, 0), error
    assert "Stopped. Run the same command again to go on." in error


def test_prefect_takes_ours_and_nothing_is_started_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SubprocessASGIServer, "_instances", {})
    embedded_server.install()
    server = SubprocessASGIServer()
    assert isinstance(server, EmbeddedServer) and server.server_process is None
