"""The flow that clears away what dead runs have left; after each crash, and every night."""

from typing import Annotated

from prefect import flow
from pydantic import Field

from tasks import quiet_errors
from tasks.tidying import end_orphaned_task_runs, remove_old_workspaces

Days = Annotated[int, Field(ge=1, le=3650, description="Workspaces of deployments' runs are kept so long after their last use.")]


@flow(name="tidy-up")
def tidy_up(keep_days: Days = 30) -> dict[str, int]:
    """End task runs whose flow run has ended without them, and remove old workspaces that nothing starts from.

    Args:
        keep_days: Workspaces of deployments' runs are kept so long after their last use.
    """
    quiet_errors.install()
    return {"task_runs": end_orphaned_task_runs(), "workspaces": len(remove_old_workspaces(keep_days))}
