"""The launcher, in a fork of this process, with ranks that are forks, too: all of it is real but the 5 s of imports in each process."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from forked_ranks import settle_after_fork

from dflash_core import cli
from dflash_core.launcher import agent
from dflash_core.launcher.processes import RankProcess, stop_when_parent_dies
from dflash_core.stages import train_run  # noqa: F401 - so that no rank has to import it

_POLL_S = 0.02


class Forked:
    """A process like `subprocess.Popen`, started by a fork; it ends with what `run` returns."""

    def __init__(self, run: Callable[[], int], output: int) -> None:
        self._code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                _write_to(output)
                settle_after_fork()
                code = run()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def wait(self, timeout: float | None = None) -> int | None:
        """The exit code; None where it still runs after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None and (deadline is None or time.monotonic() < deadline):
            time.sleep(_POLL_S)
        return self._code

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def launch_forked(workspace: Path, arguments: Sequence[str]) -> Forked:
    """`dflash-core ARGUMENTS` in the workspace; its output is appended to output.txt there."""

    def run() -> int:
        agent.start_rank = _start_rank
        os.chdir(workspace)
        return cli.main(list(arguments))

    with (workspace / "output.txt").open("ab") as output:
        return Forked(run, output.fileno())


def _start_rank(rank: int, command: Sequence[str], environment: Mapping[str, str], output: BinaryIO) -> RankProcess:
    def run() -> int:
        os.setsid()
        stop_when_parent_dies()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.environ |= environment
        return cli.main([*command[command.index("dflash_core") + 1 :]])

    started = RankProcess(rank, Forked(run, output.fileno()))
    threading.Thread(target=started.wait, daemon=True).start()
    return started


def _write_to(output: int) -> None:
    """Both streams, whatever the parent had put in their place."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
