"""What an export says of where its weights come from, how good they are, and whether a replay has proven them."""

import contextlib
from pathlib import Path
from typing import Any

from dflash_core.checkpoint.contents import Contents
from dflash_core.checkpoint.export import PROVEN, UNPROVEN
from dflash_core.checkpoint.exported import WEIGHTS, read_lineage
from dflash_core.checkpoint.manifest import read_status
from dflash_core.checkpoint.resume import RunDirectory
from dflash_core.checkpoint.store import Committed
from dflash_core.data.identity import file_digest
from dflash_core.errors import DataError
from dflash_core.training.log_reader import read_log
from dflash_core.training.records import EvalRecord

_MEASURES = ("tau", "tau_low", "tau_high", "num_rounds")


def checkpoint_lineage(run: str, committed: Committed, contents: Contents) -> dict[str, Any]:
    """Of a run's checkpoint."""
    identity = contents.state["identity"]
    lineage = {
        "status": PROVEN if read_status(committed.path) == "proven" else UNPROVEN,
        "run": run,
        "run_id": contents.state["run_id"],
        "step": committed.step,
        "checkpoint_digest": committed.digest,
        "target_identity": identity["target"],
        "dataset": identity["dataset"],
        "init": identity["init"],
    }
    acceptance = _logged_acceptance(RunDirectory(committed.path.parent.parent), committed.step)
    return lineage | ({"acceptance_length": acceptance} if acceptance else {})


def drafter_lineage(directory: Path) -> dict[str, Any]:
    """Of an export that is exported again; what it said of itself stays, but for its layout and its target's place."""
    said = {key: value for key, value in read_lineage(directory).items() if key not in ("layout", "target_path")}
    return said | {"exported_from": str(directory), "exported_from_digest": file_digest(directory / WEIGHTS)}


def _logged_acceptance(directory: RunDirectory, step: int) -> dict[str, Any] | None:
    """τ that the run measured at this step; None where it did not, or its log is elsewhere."""
    with contextlib.suppress(DataError):
        for record in reversed(read_log(directory.log_path)):
            if isinstance(record, EvalRecord) and record.step == step and record.metrics.get("tau") is not None:
                return {name: record.metrics.get(name) for name in _MEASURES} | {"measured_by": "chain walk along held-out answers"}
    return None
