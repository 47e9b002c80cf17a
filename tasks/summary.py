"""The table that a flow ends with, in the terminal and on the run's page."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tasks.artifacts import show_table
from tasks.workspace import Workspace


def print_summary(workspace: Workspace) -> dict[str, Any]:
    """Print what was measured and where the report lies; gives the same as a mapping (the flow's result)."""
    report = json.loads((workspace.root / "build/report/report.json").read_text(encoding="utf-8"))
    table = Table(title=f"dflash: {workspace.config.run}", show_header=False, title_justify="left")
    for label, value in report["headline"].items():
        table.add_row(label, escape(str(value)))
    table.add_row("report", _short(workspace.report))
    table.add_row("drafter", _short(workspace.root / "build/drafter"))
    Console().print(table)
    rows = [{"measured": label, "value": str(value)} for label, value in report["headline"].items()]
    show_table("drafter-acceptance", rows, f"What the drafter of run {workspace.config.run} reaches; the report is {workspace.report}")
    return {**report["headline"], "report": str(workspace.report)}


def _short(path: Path) -> str:
    """Relative to the working directory where it lies below it, so that the path fits in a line and can be clicked."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
