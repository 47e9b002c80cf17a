"""Stage `evaluate` as a command."""

import io
import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from dflash_core.config import Config
from dflash_core.errors import DataError
from dflash_core.evaluation.evaluate import evaluate
from dflash_core.evaluation.record_file import FILE
from dflash_core.evaluation.table import results_table
from dflash_core.stages import layout

TABLE_COLUMNS = 110  # wide enough for its eight columns where the output is no terminal


def run(config: Config, drafter: Path | None = None, prompt_sets: Sequence[Path] = (), out: Path | None = None, any_target: bool = False) -> str:
    """Write evaluation.json; gives the table that a person sees.

    Args:
        config: the run's; `prompt_sets`, where there are any, take the place of its own.
        drafter: an export in z-lab's layout; None takes the run's.
        prompt_sets: files to measure.
        out: directory for evaluation.json; None takes the stage's own.
        any_target: the drafter may be of another target of the same shape.
    """
    drafter_dir = drafter or layout.DRAFTER
    if not drafter_dir.is_dir():
        origin = "a drafter in z-lab's layout. Correct --drafter." if drafter else "the drafter that stage prove leaves there. Run prove first."
        raise DataError(f"{drafter_dir} does not exist, expected {origin}")
    if prompt_sets:
        settings = config.evaluation.model_copy(update={"prompt_sets": tuple(map(os.fspath, prompt_sets))})
        config = config.model_copy(update={"evaluation": settings})
    record = evaluate(config, Path(), layout.PREPARED, drafter_dir, (out or layout.EVALUATION) / FILE, any_target=any_target)
    text = io.StringIO()
    Console(file=text, width=TABLE_COLUMNS).print(results_table(record))
    return text.getvalue()
