"""Exports a drafter in another program's layout, with where it comes from: a checkpoint of the run, or an earlier export."""

from pathlib import Path

import torch

from dflash_core.checkpoint.contents import Contents
from dflash_core.checkpoint.export import export_speculators, export_transformers, export_zlab
from dflash_core.checkpoint.exported import load_weights, read_spec
from dflash_core.checkpoint.resume import RunDirectory
from dflash_core.checkpoint.store import CheckpointStore, Committed
from dflash_core.config import Config
from dflash_core.drafter.spec import DrafterSpec
from dflash_core.errors import CheckpointError
from dflash_core.stages.export_lineage import checkpoint_lineage, drafter_lineage

EXPORTERS = {"zlab": export_zlab, "speculators": export_speculators, "transformers": export_transformers}


def export_checkpoint(
    config: Config, layout: str, out: Path, checkpoint: Path | None = None, dtype: torch.dtype = torch.float32
) -> Committed:
    """Write a checkpoint's drafter to `out`.

    Args:
        config: names the run and the target.
        layout: one of EXPORTERS.
        out: replaced whole if it exists.
        checkpoint: directory of one; None takes the newest of the run that verifies and isn't rejected.
        dtype: of the written weights; float32 keeps the masters.

    Raises:
        CheckpointError: there is none, or it is damaged.
        ConfigError: the layout can't express the drafter.
    """
    committed, contents = _load(config, checkpoint)
    spec = DrafterSpec.from_zlab_config(contents.state["identity"]["drafter"])
    lineage = checkpoint_lineage(config.run, committed, contents)
    EXPORTERS[layout](contents.weights, spec, config.target.path, out, lineage, dtype)
    return committed


def export_drafter(target: str, layout: str, out: Path, drafter: Path, dtype: torch.dtype | None = None) -> None:
    """Write a drafter that lies in z-lab's layout to `out`; `target` is the path of the LLM that it drafts for.

    Other arguments as `export_checkpoint`; `dtype` None leaves every tensor as it is stored. In z-lab's layout the tensors are
    then bit-identical to those of `drafter`.

    Raises:
        CheckpointError, ConfigError: `drafter` is broken or not z-lab's, or the layout can't express it.
    """
    spec = read_spec(drafter)
    weights = load_weights(drafter, spec, dtype=None)
    EXPORTERS[layout](weights, spec, target, out, drafter_lineage(drafter), dtype)


def _load(config: Config, checkpoint: Path | None) -> tuple[Committed, Contents]:
    if checkpoint is not None:
        return CheckpointStore(checkpoint.parent).load(checkpoint.name)
    loaded = RunDirectory(config.run_dir).store.load_newest()
    if loaded is None:
        raise CheckpointError(f"{config.run_dir} holds no checkpoint, expected at least one. Train first, or correct `run`.")
    return loaded.committed, loaded.contents
