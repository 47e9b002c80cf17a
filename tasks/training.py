"""The task that trains: the train stage, with its metrics, findings and progress delivered while it runs."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.findings import showing_findings
from tasks.progress import showing_progress
from tasks.stages import run_if_needed
from tasks.tracking import Tracker, following
from tasks.workspace import Workspace


@task(cache_policy=NO_CACHE, task_run_name="train")
def train(workspace: Workspace, tracker: Tracker, force: bool = False) -> bool:
    """Run dflash_core/training/loop.py by way of the train stage."""
    with following(tracker, workspace.log_file), showing_findings(workspace.log_file), showing_progress(workspace.log_file):
        return run_if_needed(workspace, "train", force)
