"""Stage `evaluate` as a command."""

import io
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from dflash_core.checkpoint.manifest import full_name
from dflash_core.config import Config
from dflash_core.errors import ConfigError, DataError
from dflash_core.evaluation.evaluate import evaluate
from dflash_core.evaluation.record_file import FILE
from dflash_core.evaluation.table import results_table
from dflash_core.stages import layout
from dflash_core.stages.checkpoint_export import export_checkpoint

TABLE_COLUMNS = 110  # wide enough for its eight columns where the output is no terminal


def run(
    config: Config,
    drafter: Path | None = None,
    prompt_sets: Sequence[Path] = (),
    out: Path | None = None,
    checkpoint: str | None = None,
    *,
    any_target: bool = False,
) -> str:
    """Write evaluation.json; gives the table that a person sees.

    Args:
        config: the run's; `prompt_sets`, where there are any, take the place of its own.
        drafter: an export in z-lab's layout; None takes the run's.
        prompt_sets: files to measure.
        out: directory for evaluation.json; None takes the stage's own.
        checkpoint: name or step of one of the run's checkpoints, in place of a drafter.
        any_target: the drafter may be of another target of the same shape.
    """
    if prompt_sets:
        settings = config.evaluation.model_copy(update={"prompt_sets": tuple(map(os.fspath, prompt_sets))})
        config = config.model_copy(update={"evaluation": settings})
    if checkpoint is not None and out is None:
        raise ConfigError(f"--checkpoint {checkpoint} has no --out, expected a directory: the stage's own is of the run's drafter. Name one.")
    path = None if checkpoint is None else _checkpoint(config, checkpoint)
    named, out_path = None if path is None else str(path), (out or layout.EVALUATION) / FILE
    with _drafter(config, drafter, path) as drafter_dir:
        record = evaluate(config, Path(), layout.PREPARED, drafter_dir, out_path, any_target=any_target, named=named)
    text = io.StringIO()
    Console(file=text, width=TABLE_COLUMNS).print(results_table(record))
    return text.getvalue()


@contextmanager
def _drafter(config: Config, drafter: Path | None, checkpoint: Path | None) -> Iterator[Path]:
    """The directory of what is measured; a checkpoint's drafter is there for as long as it is measured."""
    if checkpoint is None:
        drafter_dir = drafter or layout.DRAFTER
        if not drafter_dir.is_dir():
            origin = "a drafter in z-lab's layout. Correct --drafter." if drafter else "the drafter that stage prove leaves there. Run prove first."
            raise DataError(f"{drafter_dir} does not exist, expected {origin}")
        yield drafter_dir
        return
    if drafter is not None:
        raise ConfigError(f"--checkpoint {checkpoint.name} and --drafter {drafter} name two drafters, expected one. Leave one out.")
    with tempfile.TemporaryDirectory(prefix="evaluate-") as scratch:
        drafter_dir = Path(scratch) / checkpoint.name
        export_checkpoint(config, "zlab", drafter_dir, checkpoint)
        yield drafter_dir


def _checkpoint(config: Config, name: str) -> Path:
    """One of the run's, by its name or step."""
    directory = config.run_dir / "checkpoints"
    if not (path := directory / full_name(name)).is_dir():
        there = ", ".join(sorted(each.name for each in directory.glob("step-*"))) or "none"
        raise DataError(f"{path} does not exist, expected one of the run's checkpoints ({there}). Correct --checkpoint.")
    return path
