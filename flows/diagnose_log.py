"""A flow of its own for logs: what happened to a training, of this project or of another trainer."""

from typing import Annotated, Any

from prefect import flow
from pydantic import Field

from tasks import quiet_errors
from tasks.diagnosis import diagnose

LogPath = Annotated[str, Field(min_length=1)]


@flow(name="diagnose-log")
def diagnose_log(log: LogPath, events: list[str] = [], verify: bool = False) -> dict[str, Any]:  # noqa: B006 - Prefect's form needs the value
    """Say what happened in a training log; the run's page has the answer as a text.

    Args:
        log: A training log of any trainer, or the directory of a run of ours, on the node where the worker runs; relative to the project.
        events: What is known of the run: checkpoint=2000,4001 or eval=every:500, or a directory of checkpoints.
        verify: Replay a run of ours through its faults: a bad batch, or a broken state?
    """
    quiet_errors.install()
    return diagnose(log, events, verify)
