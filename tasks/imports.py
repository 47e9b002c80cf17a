"""Imports another trainer's log into MLflow, by the readers of the diagnoser: W&B's history export, trainer_state.json, CSV, text.

The same file again adds nothing: its run is found by the file's digest. A run of ours is delivered instead
(tasks/shipping.py), which knows more of it.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_core.errors import DataError
from tasks import mlflow_store
from tasks.shipping import KIND_TAG

SOURCE_TAG = "import.source"
SECONDS_OF_2001 = 1e9  # a time since 1970 is no smaller; other clocks count from the run's start


@dataclass(frozen=True)
class Imported:
    """What an import did."""

    run_id: str
    name: str
    num_metrics: int
    format: str
    new: bool


def import_log(uri: str, path: Path, name: str | None = None, pattern: str | None = None) -> Imported:
    """Put a log's numbers into a run of its own.

    Args:
        path: a file or directory that the diagnoser reads.
        name: of the run; None takes the file's.
        pattern: regular expression for text that no reader knows.

    Raises:
        DataError: nothing in it can be read.
    """
    from dflash_core.diagnosis.log import log_from
    from dflash_core.diagnosis.readers.detect import read_any

    table = read_any(path, pattern)
    client = mlflow_store.client_of(uri)
    experiment = mlflow_store.experiment_id(client, uri)
    digest, name = _digest(path), name or path.name
    found = mlflow_store.find_runs(client, experiment, {SOURCE_TAG: digest})
    tags = {SOURCE_TAG: digest, KIND_TAG: "import", "import.format": table.format}
    run_id = found[0].info.run_id if found else client.create_run(experiment, run_name=name, tags=tags).info.run_id
    metrics = metrics_of(table, log_from(table).names)
    mlflow_store.log_metrics(client, run_id, metrics)
    mlflow_store.log_params(client, run_id, table.facts)
    client.set_terminated(run_id)
    return Imported(run_id, name, len(metrics), table.format, new=not found)


def metrics_of(table: Any, names: dict[str, str]) -> list[Any]:
    """Every finite number of a table's columns, at its row's step.

    Args:
        names: which column is the step and which the time, as the diagnoser has found them.
    """
    import numpy as np

    steps = _filled(table.columns[names["step"]]) if names["step"] in table.columns else np.arange(1.0, table.num_rows + 1)
    times = _milliseconds(table, names.get("wall_time"))
    metrics = []
    for key, column in table.columns.items():
        if key in (names["step"], names.get("wall_time")):
            continue
        for row in np.flatnonzero(column.present & np.isfinite(column.values) & np.isfinite(steps)):
            metrics += mlflow_store.metrics_of({key: column.values[row]}, int(steps[row]), int(times[row]))
    return metrics


def _filled(column: Any) -> Any:
    """The step of every row, that of the row before where it has none: an evaluation's line often lacks it."""
    import numpy as np

    known = column.present & np.isfinite(column.values)
    last = np.maximum.accumulate(np.where(known, np.arange(len(known)), -1))
    return np.where(last >= 0, column.values[np.maximum(last, 0)], np.nan)


def _milliseconds(table: Any, name: str | None) -> Any:
    """Times since 1970; 0 where the log has none, so that the same file gives the same metrics again."""
    import numpy as np

    seconds = table.columns[name].values if name else np.zeros(table.num_rows)
    return np.where(seconds >= SECONDS_OF_2001, np.nan_to_num(seconds) * 1000, 0)


def _digest(path: Path) -> str:
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    if not files:
        raise DataError(f"{path} holds no file. Name a training log.")
    total = hashlib.sha256()
    for file in files:
        total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()
