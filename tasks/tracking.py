"""What happened, in MLflow: one run a training, with its proofs and evaluations as runs nested in it.

The MLflow run follows the log's own run id. So a training that was stopped and resumed, by whichever flow run, or from a
shell, is one run there, and a flow whose training is up to date adds nothing. No call here can fail or slow a flow: each
is tolerated (one warning, then the flow goes on), and what was not delivered is delivered by the next one, or by
`dflash-core ship`.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import get_run_logger
from prefect.runtime import flow_run

from tasks import mlflow_store, run_outputs
from tasks.log_records import status
from tasks.log_tail import new_records, polling
from tasks.shipping import Delivery, delivering, known_run, ship
from tasks.system_load import sampling_load
from tasks.workspace import Workspace

FLOW_RUN_TAG = "dflash.flow_run_id"


@dataclass(frozen=True)
class Tracker:
    """Where a workspace's run is delivered to."""

    uri: str
    run_dir: Path

    @property
    def run_id(self) -> str | None:
        """The MLflow run; None where nothing could be delivered yet."""
        return known_run(self.uri, self.run_dir)


@contextlib.contextmanager
def tolerated(what: str) -> Iterator[None]:
    """Turn whatever MLflow, its database or the network raises into a warning."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - tracking is never a condition for training, whatever the fault
        _logger().warning("MLflow: %s failed (%s: %s); the run goes on", what, type(error).__name__, " ".join(str(error).split())[:200])


@contextlib.contextmanager
def tracked(workspace: Workspace, uri: str | None = None) -> Iterator[Tracker]:
    """Deliver what earlier flows could not; and when the body has ended, all that its run has left.

    Args:
        uri: tracking URI; None takes MLFLOW_TRACKING_URI, or a SQLite file in the project.
    """
    tracker = Tracker(uri or mlflow_store.default_uri(), workspace.log_file.parent)
    try:
        yield tracker
    finally:
        with tolerated("delivering the run"):
            deliver_all(tracker.uri, tracker.run_dir, workspace.root)


@contextlib.contextmanager
def following(tracker: Tracker, log_file: Path) -> Iterator[None]:
    """Deliver a training log's metrics and findings while the body runs, and the rest when it has ended."""
    delivery = _Following(tracker)
    try:
        with polling(delivery.poll, "mlflow-delivery"), sampling_load(log_file):
            yield
    finally:
        if not _ended(log_file):  # killed, so that it couldn't say so itself
            with tolerated("closing the run"), delivering(tracker.uri, tracker.run_dir) as turn:
                if turn is not None:
                    turn.set_status("FAILED")


class _Following:
    """Says once that the server is gone, and once that it is back, however long that takes."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._failed = False

    def poll(self, _: int) -> int:
        """Deliver what is new."""
        try:
            ship(self._tracker.uri, self._tracker.run_dir)
        except Exception as error:  # noqa: BLE001 - as `tolerated`
            if not self._failed:
                reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                _logger().warning("MLflow: delivering metrics failed (%s); the run goes on, and they are delivered later", reason)
            self._failed = True
        else:
            if self._failed:
                _logger().info("MLflow: delivered what it had missed")
            self._failed = False
        return 0


def record_proof(tracker: Tracker, verdicts: Sequence[Mapping[str, Any]]) -> None:
    """What was proven."""
    with tolerated("recording the proof"), delivering(tracker.uri, tracker.run_dir) as delivery:
        if delivery is not None:
            run_outputs.send_proof(delivery, verdicts)


def record_evaluation(tracker: Tracker, path: Path) -> None:
    """A measurement beside the chain; nothing where there is none."""
    with tolerated(f"recording {path.name}"), delivering(tracker.uri, tracker.run_dir) as delivery:
        if delivery is not None and path.exists():
            run_outputs.send_measurement(delivery, path)


def record_outputs(tracker: Tracker, workspace: Workspace) -> None:
    """Evaluation, report and its sources, datasets, and the drafter as a logged model."""
    with tolerated("recording the outputs"), delivering(tracker.uri, tracker.run_dir) as delivery:
        if delivery is not None:
            run_outputs.send_outputs(delivery, workspace.root)


def deliver_all(uri: str, run_dir: Path, root: Path) -> str | None:
    """Everything of a run that the server lacks; gives the MLflow run, None for a run without a log.

    Raises:
        Exception: the server, its database or the network fail.
    """
    with delivering(uri, run_dir) as delivery:
        if delivery is None:
            return None
        delivery.send_log()
        run_outputs.send_proof(delivery, run_outputs.verdicts_beside(run_dir))
        run_outputs.send_outputs(delivery, root)
        _tag_flow_run(delivery)
        return delivery.run_id


def _tag_flow_run(delivery: Delivery) -> None:
    """Which flow run touched it last, so that one finds the other."""
    if flow_run_id := flow_run.get_id():
        mlflow_store.log_tags(delivery.client, delivery.run_id, {FLOW_RUN_TAG: flow_run_id})


def _ended(log_file: Path) -> bool:
    """Whether the log's last session said how it ended."""
    records, _ = new_records(log_file, 0)
    last = next((status(r) for r in reversed(records) if status(r)), "RUNNING")
    return last != "RUNNING"


def _logger() -> logging.Logger | logging.LoggerAdapter:
    """The flow's logger; a plain one where no flow runs."""
    try:
        return get_run_logger()
    except Exception:  # noqa: BLE001 - MissingContextError, and nothing that may stop a run
        return logging.getLogger(__name__)
