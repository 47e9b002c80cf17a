"""Keeps Prefect's embedded server alive when Ctrl-C ends a flow, until the flow has reported its end."""

import atexit
import signal
import subprocess
from typing import Any

from prefect.server.api.server import SubprocessASGIServer


class EmbeddedServer(SubprocessASGIServer):
    """The server that Prefect starts where no other is set, deaf to SIGINT.

    A terminal sends Ctrl-C to every process of the foreground group. A flow whose server is gone by the time it reports
    its own end tries again for minutes, and then ends with a traceback (measured: 166 s, exit code 1).
    """

    def _run_uvicorn_command(self) -> subprocess.Popen[Any]:
        # A process inherits the blocked signals of the thread that starts it. Ignoring SIGINT would not do: uvicorn sets
        # a handler of its own. In a session of its own the server would also miss the hang-up of a terminal that closes.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.server_process = super()._run_uvicorn_command()
            # Both as our caller does next; but an interrupt of the last moment is raised below, and nothing else would
            # then end a server that no longer hears it.
            atexit.register(self.stop)
            return self.server_process
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def install() -> None:
    """Make ours the one instance that Prefect finds when it needs a server; starts nothing."""
    EmbeddedServer()
