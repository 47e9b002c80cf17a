"""What dead runs leave behind: task runs that seem to go on, and workspaces that nothing starts from any more."""

import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterEndTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import StateType, TaskRun
from prefect.states import Crashed

from dflash_core.errors import ConfigError
from tasks import from_registry
from tasks.publication import Publication, publications
from tasks.workspace import OF_A_RUN, WORKSPACES, in_use

OPEN = [StateType.RUNNING, StateType.PENDING]
OVER = [StateType.CRASHED, StateType.CANCELLED, StateType.FAILED]
LEAVING = ".leaving-"  # a workspace's name can't begin with a dot
# A run that was retried before anyone tidied up has completed. What its tasks did last is told a few seconds after its end.
SETTLED = timedelta(minutes=1)


@task(cache_policy=NO_CACHE, task_run_name="task runs")
def end_orphaned_task_runs() -> int:
    """Crash the task runs whose flow run has ended without them; a process that was killed couldn't. Gives their number."""
    with get_client(sync_client=True) as client:
        orphans = _orphans(client)
        for orphan in orphans:
            client.set_task_run_state(orphan.id, Crashed(message="Its flow run ended without it"), force=True)
    return len(orphans)


@task(cache_policy=NO_CACHE, task_run_name="workspaces")
def remove_old_workspaces(days: int, directory: Path = WORKSPACES) -> list[str]:
    """Remove what deployments' runs have left and nothing has touched for so long, then what only these had from the registry; gives the names."""
    removed = []
    with publications(directory) as files:
        for left in directory.glob(f"{LEAVING}*"):  # by one that was killed
            shutil.rmtree(left)
        needed = {path.resolve() for file in files for path in _needs(directory, file.stem)} | _linked(directory)
        for root in _old_run_workspaces(directory, days):
            if root.resolve() not in needed and _remove(root, days):
                removed.append(root.name)
        for path in _old_inputs(directory, days):
            path.unlink() if path.is_symlink() or path.is_file() else shutil.rmtree(path)
    get_run_logger().info("%d workspaces removed", len(removed))
    return removed


def _orphans(client: SyncPrefectClient) -> list[TaskRun]:
    settled = FlowRunFilterEndTime(before_=datetime.now(UTC) - SETTLED)
    ended = (FlowRunFilter(state=_of_type(OVER)), FlowRunFilter(state=_of_type([StateType.COMPLETED]), end_time=settled))
    seeming = TaskRunFilter(state=TaskRunFilterState(type=TaskRunFilterStateType(any_=OPEN)))
    return [task for runs in ended for task in client.read_task_runs(flow_run_filter=runs, task_run_filter=seeming)]


def _of_type(types: list[StateType]) -> FlowRunFilterState:
    return FlowRunFilterState(type=FlowRunFilterStateType(any_=types))


def _needs(directory: Path, line: str) -> Iterator[Path]:
    """The workspaces that hold what a line's next run starts from."""
    publication = Publication.read(directory, line)
    if publication is not None:
        yield Path(publication.workspace)
        yield Path(publication.run_dir).parents[1]


def _linked(directory: Path) -> set[Path]:
    """The workspaces whose run another one has taken over, which has no log and no checkpoints but these."""
    return {link.resolve().parents[1] for link in directory.glob("*/runs/*") if link.is_symlink()}


def _old_run_workspaces(directory: Path, days: int) -> list[Path]:
    """Those that a deployment's run has made for itself; a person's own stay."""
    return sorted(mark.parent for mark in directory.glob(f"*/{OF_A_RUN}") if _is_left(mark.parent, days))


def _is_left(root: Path, days: int) -> bool:
    return all(_is_older(path, days) for path in (*root.iterdir(), *root.glob("logs/*")))


def _old_inputs(directory: Path, days: int) -> list[Path]:
    """Drafters and profiles from the registry that no workspace names and no link calls the last known."""
    place = directory / from_registry.DIRECTORY
    found = list(place.iterdir()) if place.is_dir() else []
    links = {path for path in found if path.is_symlink() and not path.name.startswith(".")}  # one with a dot, a kill has left
    last_known = {link.resolve() for link in links}
    named = "".join(params.read_text(encoding="utf-8") for params in directory.glob("*/params.yaml"))
    files = [path for path in found if path not in links and (path.is_symlink() or path.resolve() not in last_known)]
    return [path for path in files if path.name not in named and _is_older(path, days)]


def _is_older(path: Path, days: int) -> bool:
    try:
        return path.lstat().st_mtime < time.time() - days * 24 * 3600
    except FileNotFoundError:  # a run that goes on has renamed it
        return False


def _remove(root: Path, days: int) -> bool:
    try:
        with in_use(root):
            if not _is_left(root, days):  # a retry was here, while others were removed
                return False
            leaving = root.rename(root.with_name(LEAVING + root.name))  # a half would be no run's any more, and stay for ever
            shutil.rmtree(leaving)
    except ConfigError:  # a run goes on in it
        return False
    return True
