"""One program in the background: started once, known by a file with its process id, waited for until it answers, stopped."""

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from dflash_core.errors import ConfigError

READY_SECONDS = 180.0  # a first start on a busy machine makes a database
STOP_SECONDS = 20.0
CHILDREN_SECONDS = 50.0  # a training has 20 s to save (tasks/launch.py), and its run has its state to tell
POLL_SECONDS = 0.2
# Loopback is asked past any proxy that the environment names.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, kw_only=True)
class Daemon:
    """What to start.

    Fields:
        name: of its files in `directory`: NAME.pid and NAME.log.
        environment: added to ours.
        ready_url: answers 200 when it is ready; None: it needn't be waited for.
        user: whose process it is; None: ours.
        stop_signal: what it is asked to end with.
        children_first: its children are asked to end, and have ended, before it is asked.
    """

    name: str
    command: tuple[str, ...]
    directory: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    ready_url: str | None = None
    user: str | None = None
    stop_signal: int = signal.SIGTERM
    children_first: bool = False

    @property
    def log_file(self) -> Path:
        """Takes what it prints."""
        return self.directory / f"{self.name}.log"

    @property
    def pid_file(self) -> Path:
        """Names its process, and when that was made: ids are used again."""
        return self.directory / f"{self.name}.pid"

    def process(self) -> psutil.Process | None:
        """The process that an earlier start has left, if it still runs."""
        try:
            noted = json.loads(self.pid_file.read_text(encoding="utf-8"))
            process = psutil.Process(noted["pid"])
            alive = process.create_time() == noted["created"] and process.status() != psutil.STATUS_ZOMBIE
        except (OSError, ValueError, KeyError, TypeError, psutil.NoSuchProcess):
            return None
        return process if alive else None

    def start(self) -> bool:
        """Start it, unless it runs; False where it did.

        Raises:
            ConfigError: something else answers in its place.
        """
        if self.process() is not None:
            return False
        if self.ready_url and _answers(self.ready_url):
            raise ConfigError(f"{self.ready_url} is served by a program that isn't ours. Stop that, or choose another port.")
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as log:
            process = subprocess.Popen(
                self.command,
                env=os.environ | dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a terminal that closes, and its Ctrl-C, are none of its business
                user=self.user,
            )
        self.pid_file.write_text(json.dumps({"pid": process.pid, "created": psutil.Process(process.pid).create_time()}), encoding="utf-8")
        return True

    def wait_until_ready(self) -> None:
        """Block until it answers.

        Raises:
            ConfigError: it has ended, or doesn't answer in time.
        """
        deadline = time.monotonic() + READY_SECONDS
        while self.ready_url and not _answers(self.ready_url):
            if self.process() is None or time.monotonic() > deadline:
                self.stop()
                raise ConfigError(f"{self.name} did not come up: {self._last_line()} The whole output is in {self.log_file}.")
            time.sleep(POLL_SECONDS)

    def stop(self) -> bool:
        """Ask it to end, and kill what is left of it; False where it did not run."""
        process = self.process()
        if process is not None:
            family = process.children(recursive=True)
            if self.children_first:
                self._end_after_children(process)
            else:
                process.send_signal(self.stop_signal)
            _, alive = psutil.wait_procs([process, *family], timeout=STOP_SECONDS)
            for late in alive:
                _signal(late, signal.SIGKILL)
            psutil.wait_procs(alive, timeout=STOP_SECONDS)  # until they are gone, and what they held with them
        self.pid_file.unlink(missing_ok=True)
        return process is not None

    def _end_after_children(self, process: psutil.Process) -> None:
        """Suspended, it neither starts another child nor ends with those it has before they have told how they ended."""
        process.suspend()
        try:
            _end(process.children())
            process.send_signal(self.stop_signal)
        finally:
            process.resume()

    def _last_line(self) -> str:
        lines = self.log_file.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing.")


def _end(children: list[psutil.Process]) -> None:
    for child in children:
        _signal(child, signal.SIGTERM)
    deadline = time.monotonic() + CHILDREN_SECONDS
    while any(map(_runs, children)) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def _runs(process: psutil.Process) -> bool:
    """Not waited for by a parent that is suspended, one that has ended is a zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _answers(url: str) -> bool:
    try:
        with _opener.open(url, timeout=2) as answer:
            return answer.status == 200
    except (OSError, urllib.error.URLError):
        return False


def _signal(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return  # it ended this moment
