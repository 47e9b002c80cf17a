"""Command `compare`: two evaluations of the same prompts, and which drafter is better."""

import io
import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dflash_core.evaluation.paired import FEWEST, Comparison, Difference, compare_evaluations
from dflash_core.evaluation.record_file import read_record

TABLE_COLUMNS = 110


def run(first: Path, second: Path, json_path: Path | None) -> str:
    """Compare two evaluation.json, or the directories that hold them; gives the table that a person sees.

    Raises:
        DataError: one is missing or no evaluation.
        IdentityError: they are of different targets, prompts or ways of decoding.
    """
    found = compare_evaluations(read_record(first), read_record(second))
    if json_path is not None:
        json_path.write_text(json.dumps(asdict(found), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    text = io.StringIO()
    Console(file=text, width=TABLE_COLUMNS).print(comparison_table(found, str(first), str(second)))
    return text.getvalue() + sentence(found.overall)


def sentence(found: Difference) -> str:
    """The verdict in words."""
    if found.verdict == "too few prompts" or found.difference is None:
        return f"{found.num_prompts} prompts are too few to tell: at least {FEWEST} must have a round."
    size = f"τ {found.difference:+.3f}, 95 % {found.low:+.3f} to {found.high:+.3f}"
    if found.verdict == "no difference found":
        if found.smallest is None:
            return f"No difference found: on all {found.num_prompts} prompts the rounds are alike."
        return f"No difference found ({size}); these {found.num_prompts} prompts would have shown one of {found.smallest:.3f}."
    return f"The second is {found.verdict} ({size}, {found.num_prompts} prompts)."


def comparison_table(found: Comparison, first: str, second: str) -> Table:
    """Overall, by set where there are several, by category."""
    table = Table(title=f"{escape(second)} against {escape(first)}")
    for heading in ("", "prompts", "τ first", "τ second", "difference", "95 %", "could show", "second is"):
        table.add_column(heading, justify="left" if heading in ("", "second is") else "right", overflow="fold")
    categories = {name: difference for name, difference in found.by_category.items() if name not in found.by_set}  # a set without is its own
    sections = [{"all": found.overall}, found.by_set if len(found.by_set) > 1 else {}, categories]
    for section in sections:
        for number, (name, difference) in enumerate(section.items(), start=1):
            table.add_row(escape(name), *_cells(difference), end_section=number == len(section))
    table.caption = f"speed against the target alone: {found.speed_first:.2f}x and {found.speed_second:.2f}x, comparable if measured on one machine, as many prompts at once"
    table.caption_justify = "left"
    return table


def _cells(found: Difference) -> tuple[str, ...]:
    interval = "-" if found.low is None else f"{found.low:+.3f} to {found.high:+.3f}"
    numbers = (f"{value:.3f}" if value is not None else "-" for value in (found.first, found.second))
    difference = "-" if found.difference is None else f"{found.difference:+.3f}"
    smallest = "-" if found.smallest is None else f"{found.smallest:.3f}"
    return (str(found.num_prompts), *numbers, difference, interval, smallest, found.verdict)
