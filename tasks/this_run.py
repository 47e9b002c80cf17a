"""What the flow run that we are in decides: the name of its workspace, and how long it may take."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from prefect.runtime import deployment, flow_run
from prefect.utilities.timeout import timeout


class TimeLimitReached(TimeoutError):
    """The run took longer than it may; Prefect then shows it as timed out."""


def own_workspace(profile: str) -> str:
    """The name of a workspace that no other run has, and a retry of this one has again."""
    return f"{Path(profile).stem}-{str(flow_run.get_id())[:8]}"


def default_workspace(profile: str) -> str | None:
    """One of its own for a deployment's run; None, the profile's, from a shell, where the same command again goes on."""
    return own_workspace(profile) if deployment.get_id() else None


@contextlib.contextmanager
def time_limit(minutes: float | None) -> Iterator[None]:
    """Interrupt the body, which must be in the main thread, after so many minutes; a training that is interrupted saves."""
    with timeout(seconds=None if minutes is None else minutes * 60, timeout_exc_type=TimeLimitReached):
        yield
