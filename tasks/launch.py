"""Runs one command under supervision: its output in a file and in the flow's log, its whole process tree ended with us.

Plain subprocess.run leaves the children training for ever when a flow is cancelled, and a child whose output is a
pipe dies of EPIPE in the middle of a save. Here the output goes to a file that is followed, the child is told by the
kernel when we die, and its descendants, noted before it is terminated, are killed if they outlive it.
"""

import collections
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import psutil

from dflash_core.errors import DflashError, Stopped
from dflash_core.launcher.processes import stop_when_parent_dies

TAIL_LINES = 15
POLL_SECONDS = 0.3
# Prefect kills a cancelled flow 30 s after its signal; the child needs time to save and we need some to clean up.
TERM_SECONDS = 20.0


class CommandFailed(DflashError):
    """A command ended with an exit code other than 0; `exit_code` is the command's own."""

    def __init__(self, name: str, exit_code: int, log_file: Path, tail: Sequence[str]) -> None:
        last = tail[-1] if tail else "it printed nothing"
        super().__init__(f'Stage "{name}" ended with exit code {exit_code}, expected 0: {last} The whole output is in {log_file}.')
        # A negative code is a signal's number: the machine's doing, not the user's.
        self.exit_code = exit_code if exit_code > 0 else 1
        self.tail = tuple(tail)


class Supervised:
    """One run of one command.

    Args:
        name: the stage, for messages.
        command: program and arguments.
        log_file: appended to; the command's stdout and stderr.
        cwd: where it runs.
        logger: each line of output goes there, too.
        environment: the command's environment; None keeps ours.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log_file: Path,
        cwd: Path,
        logger: logging.Logger | logging.LoggerAdapter,
        environment: dict[str, str] | None = None,
        term_seconds: float = TERM_SECONDS,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log_file = log_file
        self.cwd = cwd
        self.logger = logger
        self.environment = environment
        self.term_seconds = term_seconds
        self._tail: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)
        self._ended = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Block until the command ends.

        Raises:
            CommandFailed: its exit code is not 0.
            Stopped: it saved its state and can be resumed (exit code 4).
            BaseException: what interrupted us, after the command's tree has ended.
        """
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        start = self.log_file.stat().st_size if self.log_file.exists() else 0
        follower = threading.Thread(target=self._follow, args=(start,), daemon=True)
        with self.log_file.open("ab", buffering=0) as output:
            self._process = subprocess.Popen(
                self.command,
                cwd=self.cwd,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=stop_when_parent_dies,  # noqa: PLW1509 - one system call, no lock that a fork could leave held
            )
        follower.start()
        try:
            exit_code = self._process.wait()
        except BaseException:
            self.end()
            raise
        finally:
            self._ended.set()
            follower.join(10)
        if exit_code == Stopped.exit_code:
            raise Stopped(f'Stage "{self.name}" was stopped and saved its state. Run the flow again to go on.')
        if exit_code:
            raise CommandFailed(self.name, exit_code, self.log_file, list(self._tail))

    def end(self) -> None:
        """Terminate the command, and kill what is left of its tree after `term_seconds`."""
        if self._process is None:
            return
        try:
            family = psutil.Process(self._process.pid).children(recursive=True)  # before the root dies and they are reparented
        except psutil.NoSuchProcess:
            return
        # Only the root: torchrun forwards the signal to its ranks, which live in sessions of their own.
        self._process.terminate()
        try:
            # Popen.wait, not psutil.wait_procs: the latter reaps the child and Popen then reports exit code 0.
            self._process.wait(self.term_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _, alive = psutil.wait_procs(family, timeout=2)
        for process in alive:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue

    def _follow(self, start: int) -> None:
        """Pass lines on as the command writes them; a last partial line is passed on when it has ended."""
        with self.log_file.open("rb") as output:
            output.seek(start)
            rest = b""
            while True:
                ended = self._ended.is_set()  # asked before reading: what was written before the end is read after it
                chunk = output.read(1 << 16)
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._pass_on(line)
                if not chunk and ended:
                    self._pass_on(rest)
                    return
                if not chunk:
                    self._ended.wait(POLL_SECONDS)

    def _pass_on(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        if text:
            self._tail.append(text)
            self.logger.info("[%s] %s", self.name, text)


def stage_environment(project: Path) -> dict[str, str]:
    """Our environment, changed so that a stage's `python -m dflash_core` is our interpreter with the code in `project`."""
    before = os.environ
    return before | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), before.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(project), before.get("PYTHONPATH", "")])),
        "PYTHONUNBUFFERED": "1",
    }
