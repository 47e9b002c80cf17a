"""Exports a checkpoint of the run in another program's layout, with where it comes from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash_core.checkpoint.export import export_speculators, export_zlab
from dflash_core.checkpoint.resume import RunDirectory
from dflash_core.checkpoint.store import CheckpointStore, Committed, Contents
from dflash_core.config import Config
from dflash_core.drafter.spec import DrafterSpec
from dflash_core.errors import CheckpointError

EXPORTERS = {"zlab": export_zlab, "speculators": export_speculators}


def export_checkpoint(config: Config, form: str, out: Path, checkpoint: Path | None = None) -> Committed:
    """Write a checkpoint's drafter to `out`.

    Args:
        config: names the run and the target.
        form: "zlab" or "speculators".
        out: replaced whole if it exists.
        checkpoint: directory of one; None takes the newest of the run that verifies and isn't rejected.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    committed, contents = _load(config, checkpoint)
    identity: Mapping[str, Any] = contents.state["identity"]
    spec = DrafterSpec.from_zlab_config(identity["drafter"])
    lineage = {
        "run": config.run,
        "run_id": contents.state["run_id"],
        "step": committed.step,
        "checkpoint_digest": committed.digest,
        "target_identity": identity["target"],
        "dataset": identity["dataset"],
    }
    EXPORTERS[form](contents.weights, spec, config.target.path, out, lineage)
    return committed


def _load(config: Config, checkpoint: Path | None) -> tuple[Committed, Contents]:
    if checkpoint is not None:
        return CheckpointStore(checkpoint.parent).load(checkpoint.name)
    loaded = RunDirectory(config.run_dir).store.load_newest()
    if loaded is None:
        raise CheckpointError(f"{config.run_dir} holds no checkpoint, expected at least one. Train first, or correct `run`.")
    return loaded.committed, loaded.contents
