"""Command `export`: a checkpoint's drafter in the layout of another program."""

from pathlib import Path

from dflash_core.config import Config
from dflash_core.stages.checkpoint_export import export_checkpoint


def run(config: Config, form: str, out: Path, checkpoint: Path | None) -> str:
    """Write `out`; gives the line that a person sees."""
    committed = export_checkpoint(config, form, out, checkpoint)
    return f"{committed.name} of run {config.run} is in {out}, in {form} layout, unproven"
