"""The processes of one flow run of a site, found by whatever ties them to it, so that one that has left its parent is counted, too."""

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

RUN_VARIABLE = "PREFECT__FLOW_RUN_ID"  # a worker gives it to the flow's process, which hands it down


def processes_of(run_id: str, directory: Path, services: list[int]) -> set[psutil.Process]:
    """All that has to do with a site's `directory` and neither serves it nor belongs to another of its runs.

    What a process was started with ties it to the site: working directory, command line or any environment variable.
    `services` are the process ids of its servers and workers; what those have started for themselves is theirs.
    """
    serving = {os.getpid(), *(pid for service in services for pid in _family(service))}
    found = set()
    for process in psutil.process_iter():
        try:
            owner = process.environ().get(RUN_VARIABLE)
            ours = owner == run_id or (owner is None and process.pid not in serving and _mentions(process, str(directory)))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if ours and runs(process):
            found.add(process)
    return found


def runs(process: psutil.Process) -> bool:
    """It hasn't ended, and its id isn't another's by now."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def flow_process(run_id: str, worker: int) -> psutil.Process:
    """The one that runs the flow: the worker's child."""
    (found,) = (child for child in psutil.Process(worker).children() if child.environ().get(RUN_VARIABLE) == run_id)
    return found


def launcher_and_ranks(flow: psutil.Process) -> tuple[psutil.Process, list[psutil.Process]]:
    """The training's launcher and its ranks, in order."""
    (launcher,) = flow.children()
    return launcher, sorted(launcher.children(), key=lambda process: int(process.environ()["RANK"]))


def described(processes: set[psutil.Process]) -> list[str]:
    """For a person who looks for where they come from."""
    return sorted(f"{process.pid} of {process.ppid()}: {' '.join(process.cmdline())[:120]}" for process in processes if runs(process))


def _mentions(process: psutil.Process, directory: str) -> bool:
    return any(directory in text for text in (process.cwd(), *process.cmdline(), *process.environ().values()))


def _family(pid: int) -> Iterator[int]:
    """A service and its descendants, without flow runs, which are told by their environment."""
    try:
        process = psutil.Process(pid)
        yield from (pid, *(child.pid for child in process.children(recursive=True)))
    except psutil.NoSuchProcess:
        return
