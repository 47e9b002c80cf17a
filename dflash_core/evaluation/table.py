"""The table that a person sees after an evaluation."""

from rich.markup import escape
from rich.table import Table

from dflash_core.evaluation.acceptance import Acceptance
from dflash_core.evaluation.records import EvaluationRecord


def results_table(record: EvaluationRecord) -> Table:
    """Acceptance overall and by category, agreement and speed, as a rich table."""
    drafter = escape(record.subjects.drafter_path)
    table = Table(title=f"{drafter} on {record.acceptance.num_prompts} held-out prompts, {record.subjects.dtype}")
    for heading in ("", "prompts", "tokens", "rounds", "τ", "95 %", "mean of prompts", "whole blocks"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, figures in (("all", record.acceptance), *record.by_category.items()):
        table.add_row(escape(name), *_cells(figures), end_section=name == "all", style="bold" if name == "all" else None)
    outputs, walk, speed = record.outputs, record.walk, record.speed
    same = f"{outputs.num_equal} of {outputs.num_prompts} outputs equal the target's"
    ties = f", {outputs.num_ties} part at a tie" if outputs.num_ties else ""
    fault = f", [red]{outputs.num_different} differ[/red]" if outputs.num_different else ""
    faster = f"τ {_number(walk.tau, 3)}, {_number(walk.speedup, 0)}x faster"
    agreement = f"chain walk equal in {walk.num_equal} of {walk.num_prompts} prompts, {faster}"
    shares = {"target": speed.target_s, "drafter": speed.drafter_s, "prefill": speed.prefill_s, "rest": speed.overhead_s}
    split = ", ".join(f"{name} {seconds / speed.speculative_s:.0%}" for name, seconds in shares.items())
    rates = f"{speed.speculative_tokens_per_s:.1f} and {speed.plain_tokens_per_s:.1f} tok/s"
    rate = f"{speed.speedup:.2f}x the target alone ({rates}; {split})"
    table.caption = f"{same}{ties}{fault}\n{agreement}\n{rate}"
    table.caption_justify = "left"
    return table


def _cells(figures: Acceptance) -> tuple[str, ...]:
    return (
        str(figures.num_prompts),
        f"{figures.num_tokens:,}",
        f"{figures.num_rounds:,}",
        _number(figures.tau, 3),
        f"{_number(figures.tau_low, 2)} - {_number(figures.tau_high, 2)}",
        _number(figures.tau_prompt_mean, 3),
        "-" if figures.full_block_share is None else f"{figures.full_block_share:.1%}",
    )


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
