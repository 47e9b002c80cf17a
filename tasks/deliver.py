"""Delivery by hand: a run that MLflow was not there for, and logs of other trainers."""

from pathlib import Path

from dflash_core.errors import DataError
from tasks import mlflow_store
from tasks.imports import import_log
from tasks.shipping import LOG
from tasks.tracking import deliver_all


def ship_run(run_dir: Path, uri: str | None = None) -> str:
    """Deliver a run of ours; gives the line that a person sees.

    Raises:
        DataError: there is no run.
        ConfigError: MLflow can't be reached.
    """
    uri = uri or mlflow_store.default_uri()
    if not (run_dir / LOG).is_file():
        raise DataError(f"{run_dir} holds no {LOG}, expected the directory of a run (runs/NAME). Correct the path.")
    with mlflow_store.reached(uri):
        # A workspace's root holds runs/NAME; a run elsewhere has its log and checkpoints only.
        run_id = deliver_all(uri, run_dir.resolve(), run_dir.resolve().parent.parent)
    return f"{run_dir} is delivered to MLflow run {run_id}" if run_id else f"{run_dir / LOG} has no record yet"


def import_foreign(log: Path, name: str | None, pattern: str | None, uri: str | None = None) -> str:
    """Import another trainer's log, or deliver a run of ours; gives the line that a person sees.

    Raises:
        DataError: nothing in it can be read.
        ConfigError: MLflow can't be reached.
    """
    if log.is_dir() and (log / LOG).is_file():
        return ship_run(log, uri)
    with mlflow_store.reached(uri or mlflow_store.default_uri()):
        done = import_log(uri or mlflow_store.default_uri(), log, name, pattern)
    again = "" if done.new else ", where it was before"
    return f"{log} ({done.format}): {done.num_metrics:,} metrics are in MLflow run {done.run_id}, {done.name}{again}"
