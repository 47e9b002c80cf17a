"""A flow of its own for logs: what happened to a training, of this project or of another trainer."""

from typing import Annotated, Any

from prefect import flow
from pydantic import Field

from tasks import quiet_errors
from tasks.diagnosis import diagnose

LogPath = Annotated[str, Field(min_length=1, description="A log file on the node, or the directory of a run.")]
Events = Annotated[
    list[str], Field(description="What is known of the run: checkpoint=2000,4001 or eval=every:500, or a directory of checkpoints.")
]


@flow(name="diagnose-log")
def diagnose_log(log: LogPath, events: Events = [], verify: bool = False) -> dict[str, Any]:  # noqa: B006 - Prefect's form needs the value
    """Say what happened in a training log; the run's page has the answer as a text.

    Args:
        log: A training log of any trainer, or the directory of a run of ours.
        events: What is known of the run.
        verify: Replay a run of ours through its faults: a bad batch, or a broken state?
    """
    quiet_errors.install()
    return diagnose(log, events, verify)
