"""Command `export`: a checkpoint's drafter, or an earlier export, in the layout of another program."""

from collections.abc import Callable
from pathlib import Path

import torch

from dflash_core.checkpoint.export import PROVEN, UNPROVEN
from dflash_core.checkpoint.manifest import read_status
from dflash_core.config import Config
from dflash_core.errors import ConfigError
from dflash_core.stages.checkpoint_export import export_checkpoint, export_drafter


def run(
    configuration: Callable[[], Config], layout: str, out: Path, checkpoint: Path | None, drafter: Path | None, target: Path | None, dtype: str | None
) -> str:
    """Write `out`; gives the line that a person sees. `dtype` None keeps what is stored: float32 in a checkpoint.

    Args:
        configuration: read only where something is wanted of it; a drafter with its target beside it needs none.

    Raises:
        ConfigError: both a checkpoint and a drafter, or a target and no drafter.
    """
    wanted = None if dtype is None else getattr(torch, dtype)
    if drafter is None:
        if target is not None:
            raise ConfigError(f"--target {target} has no --drafter beside it; a checkpoint's target is its configuration's. Leave it out.")
        config = configuration()
        committed = export_checkpoint(config, layout, out, checkpoint, wanted or torch.float32)
        proof = PROVEN if read_status(committed.path) == "proven" else UNPROVEN
        return f"{committed.name} of run {config.run} is in {out}, in {layout} layout, {proof}"
    if checkpoint is not None:
        raise ConfigError(f"--checkpoint {checkpoint} and --drafter {drafter} name two sources, expected one. Leave one out.")
    export_drafter(str(target or configuration().target.path), layout, out, drafter, wanted)
    return f"the drafter of {drafter} is in {out}, in {layout} layout"
