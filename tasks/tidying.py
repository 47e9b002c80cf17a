"""What dead runs leave behind: task runs that seem to go on, and workspaces that nothing starts from any more."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import StateType, TaskRun
from prefect.states import Crashed

from dflash_core.errors import ConfigError
from tasks.publication import Publication, publications
from tasks.workspace import OF_A_RUN, WORKSPACES, in_use

OPEN = [StateType.RUNNING, StateType.PENDING]
OVER = [StateType.CRASHED, StateType.CANCELLED, StateType.FAILED]


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
    """Remove what deployments' runs have left and nothing has touched for so long; gives the names."""
    removed = []
    with publications(directory) as files:
        needed = {path for file in files for path in _needs(directory, file.stem)}
        for root in _old_run_workspaces(directory, days):
            if root not in needed and _remove(root):
                removed.append(root.name)
    get_run_logger().info("%d workspaces removed", len(removed))
    return removed


def _orphans(client: SyncPrefectClient) -> list[TaskRun]:
    return client.read_task_runs(
        flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=OVER))),
        task_run_filter=TaskRunFilter(state=TaskRunFilterState(type=TaskRunFilterStateType(any_=OPEN))),
    )


def _needs(directory: Path, line: str) -> Iterator[Path]:
    """The workspaces that hold what a line's next run starts from."""
    publication = Publication.read(directory, line)
    if publication is not None:
        yield Path(publication.workspace)
        yield Path(publication.run_dir).parents[1]


def _old_run_workspaces(directory: Path, days: int) -> list[Path]:
    """Those that a deployment's run has made for itself; a person's own stay."""
    before = time.time() - days * 24 * 3600
    marks = directory.glob(f"*/{OF_A_RUN}")
    return sorted(mark.parent for mark in marks if (mark.parent / "flow.lock").stat().st_mtime < before)


def _remove(root: Path) -> bool:
    try:
        with in_use(root):
            shutil.rmtree(root)
    except ConfigError:  # a run goes on in it
        return False
    return True
