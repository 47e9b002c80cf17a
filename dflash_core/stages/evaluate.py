"""Stage `evaluate` as a command."""

import io
from pathlib import Path

from rich.console import Console

from dflash_core.config import Config
from dflash_core.errors import DataError
from dflash_core.evaluation.evaluate import evaluate
from dflash_core.evaluation.table import results_table
from dflash_core.stages import layout

TABLE_COLUMNS = 110  # wide enough for its eight columns where the output is no terminal


def run(config: Config) -> str:
    """Write build/evaluation; gives the table that a person sees."""
    if not layout.DRAFTER.is_dir():
        raise DataError(f"{layout.DRAFTER} does not exist, expected the drafter that stage prove leaves there. Run prove first.")
    record = evaluate(config, Path(), layout.PREPARED, layout.DRAFTER, layout.EVALUATION / "evaluation.json")
    text = io.StringIO()
    Console(file=text, width=TABLE_COLUMNS).print(results_table(record))
    return text.getvalue()
