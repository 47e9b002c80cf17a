"""Command `export`: a checkpoint's drafter, or an earlier export, in the layout of another program."""

from pathlib import Path

import torch

from dflash_core.checkpoint.export import PROVEN, UNPROVEN
from dflash_core.checkpoint.manifest import read_status
from dflash_core.config import Config
from dflash_core.errors import ConfigError
from dflash_core.stages.checkpoint_export import export_checkpoint, export_drafter


def run(config: Config, layout: str, out: Path, checkpoint: Path | None, drafter: Path | None, dtype: str | None) -> str:
    """Write `out`; gives the line that a person sees. `dtype` None keeps what is stored: float32 in a checkpoint.

    Raises:
        ConfigError: both a checkpoint and a drafter.
    """
    wanted = None if dtype is None else getattr(torch, dtype)
    if drafter is None:
        committed = export_checkpoint(config, layout, out, checkpoint, wanted or torch.float32)
        proof = PROVEN if read_status(committed.path) == "proven" else UNPROVEN
        return f"{committed.name} of run {config.run} is in {out}, in {layout} layout, {proof}"
    if checkpoint is not None:
        raise ConfigError(f"--checkpoint {checkpoint} and --drafter {drafter} name two sources, expected one. Leave one out.")
    export_drafter(config, layout, out, drafter, wanted)
    return f"the drafter of {drafter} is in {out}, in {layout} layout"
