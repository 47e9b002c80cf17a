"""The embedded Prefect server: SIGINT doesn't reach it, and the command line has Prefect use it.

A whole flow that gets Ctrl-C together with its server takes 40 s here, for a database of its own; run by hand it
ended after 166 s with exit code 1 without this, after 8 s with exit code 4 with it.
"""

import atexit
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from prefect.server.api.server import SubprocessASGIServer

from flows import train_drafter
from tasks.embedded_server import EmbeddedServer


@pytest.fixture(autouse=True)
def at_exit(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """As at the start of a process: no server of another test is known; gives what is to be called at its end."""
    monkeypatch.setattr(SubprocessASGIServer, "_instances", {})
    registered: list[Callable[[], None]] = []
    monkeypatch.setattr(atexit, "register", registered.append)
    return registered


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


def test_an_interrupt_while_the_server_starts_leaves_none_behind(
    at_exit: list[Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: SubprocessASGIServer) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(["sleep", "60"])
        signal.raise_signal(signal.SIGINT)
        return process

    monkeypatch.setattr(SubprocessASGIServer, "_run_uvicorn_command", interrupted)
    server = EmbeddedServer(port=1)
    with pytest.raises(KeyboardInterrupt):
        server._run_uvicorn_command()
    process = server.server_process
    assert process is not None and process.poll() is None
    (stop,) = at_exit
    stop()
    assert process.returncode == -signal.SIGTERM


def test_the_command_line_has_prefect_take_ours_and_starts_nothing() -> None:
    assert train_drafter.main(["--set", "nonsense"]) == 2
    server = SubprocessASGIServer()
    assert isinstance(server, EmbeddedServer) and server.server_process is None
