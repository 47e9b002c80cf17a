"""The table that a person sees after an evaluation."""

from rich.markup import escape
from rich.table import Table

from dflash_core.evaluation.acceptance import Acceptance
from dflash_core.evaluation.records import EvaluationRecord, Speed


def results_table(record: EvaluationRecord) -> Table:
    """Acceptance overall, by set and by category, agreement and speed, as a rich table."""
    subjects = record.subjects
    rule = "" if subjects.rule == "greedy" else f", {subjects.rule} at temperature {subjects.temperature:g}"
    sets = ", ".join(record.by_set)
    rule += f", {subjects.batch_size} prompts at once" if subjects.batch_size > 1 else ""
    table = Table(title=f"{escape(subjects.drafter_path)} on {record.acceptance.num_prompts} prompts ({escape(sets)}), {subjects.dtype}{rule}")
    for heading in ("", "prompts", "tokens", "rounds", "τ", "95 %", "mean of prompts", "whole blocks"):
        table.add_column(heading, justify="left" if not heading else "right", overflow="fold")
    categories = {name: figures for name, figures in record.by_category.items() if name not in record.by_set}  # a set without is its own
    sections = [{"all": record.acceptance}, record.by_set if len(record.by_set) > 1 else {}, categories]
    for section in sections:
        for number, (name, figures) in enumerate(section.items(), start=1):
            is_all = section is sections[0]
            table.add_row(escape(name), *_cells(figures), end_section=number == len(section), style="bold" if is_all else None)
    table.caption = "\n".join([*_agreement(record), *_speed(record)])
    table.caption_justify = "left"
    return table


def _agreement(record: EvaluationRecord) -> list[str]:
    lines = []
    if (outputs := record.outputs) is not None:
        same = f"{outputs.num_equal} of {outputs.num_prompts} outputs equal the target's"
        ties = f", {outputs.num_ties} part at a tie" if outputs.num_ties else ""
        fault = f", [red]{outputs.num_different} differ[/red]" if outputs.num_different else ""
        lines.append(f"{same}{ties}{fault}")
    if (walk := record.walk) is not None:
        faster = f"τ {_number(walk.tau, 3)}, {_number(walk.speedup, 0)}x faster"
        lines.append(f"chain walk equal in {walk.num_equal} of {walk.num_prompts} prompts, {faster}")
    parity = record.parity
    lines.append(f"served and trained drafter agree within {parity.largest_difference:.1e} on {parity.num_blocks} blocks")
    if left_out := sum(record.subjects.left_out.values()):
        lines.append(f"{left_out} turns left out: too long for the target's context")
    return lines


def _speed(record: EvaluationRecord) -> list[str]:
    speed = record.speed
    shares = {"target": speed.target_s, "drafter": speed.drafter_s, "prefill": speed.prefill_s, "rest": speed.overhead_s}
    split = ", ".join(f"{name} {seconds / speed.speculative_s:.0%}" for name, seconds in shares.items())
    rates = f"{speed.speculative_tokens_per_s:.1f} and {speed.plain_tokens_per_s:.1f} tok/s"
    interval = _interval(speed.speedup_low, speed.speedup_high)
    lines = [f"{speed.speedup:.2f}x the target alone{interval} ({rates}; {split})"]
    if (generate := record.generate) is not None:
        interval = _interval(generate.speedup_low, generate.speedup_high)
        lines.append(f"{generate.speedup:.2f}x transformers' generate(){interval}, on {generate.num_prompts} prompts")
    return [*lines, *prediction(speed)]


def prediction(speed: Speed) -> list[str]:
    """One line: what the speed-up would be at other τ; none where no round ran."""
    if speed.break_even_tau is None:
        return []
    at = ", ".join(f"{speedup:.2f}x at τ {tau}" for tau, speedup in speed.predicted.items())
    return [f"a round costs {speed.break_even_tau:.2f} tokens of the target alone" + (f"; so {at}" if at else "")]


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f", 95 % {low:.2f} to {high:.2f}"


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
