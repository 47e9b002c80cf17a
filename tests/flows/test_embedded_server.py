"""The embedded Prefect server: SIGINT doesn't reach it, and the command line has Prefect use it.

A whole flow that gets Ctrl-C together with its server takes 40 s here, for a database of its own; run by hand it
ended after 166 s with exit code 1 without this, after 8 s with exit code 4 with it.
"""

import re
import signal
from pathlib import Path

import pytest
from prefect.server.api.server import SubprocessASGIServer

from flows import train_drafter
from tasks.embedded_server import EmbeddedServer


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the start of a process; a server of another test stays as it was."""
    monkeypatch.setattr(SubprocessASGIServer, "_instances", {})


@pytest.mark.parametrize("kind, expected", [(SubprocessASGIServer, False), (EmbeddedServer, True)])
def test_only_our_server_is_deaf_to_an_interrupt(kind: type[SubprocessASGIServer], expected: bool) -> None:
    process = kind(port=1)._run_uvicorn_command()
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    finally:
        process.kill()
        process.wait()
    blocked = {signal.Signals(n + 1) for n in range(31) if int(re.search(r"SigBlk:\s*(\w+)", status)[1], 16) >> n & 1}
    assert (signal.SIGINT in blocked) is expected
    assert signal.SIGTERM not in blocked  # by which Prefect ends it
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])  # ours is as before


def test_the_command_line_has_prefect_take_ours_and_starts_nothing() -> None:
    assert train_drafter.main(["--set", "nonsense"]) == 2
    server = SubprocessASGIServer()
    assert isinstance(server, EmbeddedServer) and server.server_process is None
