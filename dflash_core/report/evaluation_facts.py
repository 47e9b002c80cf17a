"""What a report says of an evaluation: the rows of its table, and the tables of its parts."""

from dflash_core.evaluation.acceptance import Acceptance
from dflash_core.evaluation.records import EvaluationRecord, Subjects
from dflash_core.report.facts import ReportTable

PART_COLUMNS = ("", "prompts", "τ, 95 %", "drafted", "accepted", "wasted", "whole blocks")


def evaluation_rows(evaluation: EvaluationRecord) -> dict[str, str]:
    """The evaluation's own table: label to text."""
    a, s, p = evaluation.acceptance, evaluation.speed, evaluation.parity
    parts = {"target": s.target_s, "drafter": s.drafter_s, "prefill": s.prefill_s, "rest": s.overhead_s}
    rows = {
        "τ pooled, 95 %": with_interval(a, 3),
        "τ, mean of prompts": number(a.tau_prompt_mean, 3),
        "τ without the bonus token": number(a.tau_without_bonus, 3),
        "prompts": f"{a.num_prompts} ({', '.join(evaluation.by_set)})",
        "tokens / target forwards": f"{a.num_tokens:,} / {a.num_rounds:,}",
        "drafted / accepted / wasted": f"{a.num_drafted:,} / {a.num_drafted - a.num_wasted:,} / {a.num_wasted:,}",
        "whole blocks": _share(a.full_block_share),
        **_agreement(evaluation),
        "serve path against train path": f"{p.largest_difference:.1e} in {p.num_blocks} blocks, {p.num_different_drafts} drafts differ",
        "tokens per second": f"{s.speculative_tokens_per_s:.1f}, the target alone {s.plain_tokens_per_s:.1f}",
        "speed-up, 95 %": speed_up(s.speedup, s.speedup_low, s.speedup_high),
    }
    if (g := evaluation.generate) is not None:
        rows["speed-up over generate()"] = f"{speed_up(g.speedup, g.speedup_low, g.speedup_high)}, {g.num_prompts} prompts"
    if s.break_even_tau is not None:
        rows["a round costs"] = f"{s.break_even_tau:.2f} tokens of the target alone"
        rows["predicted speed-up"] = ", ".join(f"{speedup:.2f} × at τ {tau}" for tau, speedup in s.predicted.items())
    return rows | {
        "time while decoding": ", ".join(f"{name} {seconds / s.speculative_s:.0%}" for name, seconds in parts.items()),
        "measured in": f"{evaluation.subjects.dtype} on {evaluation.subjects.device}, {evaluation.subjects.num_threads} threads{_at_once(evaluation.subjects)}",
    }


def _at_once(subjects: Subjects) -> str:
    return f", {subjects.batch_size} prompts at once" if subjects.batch_size > 1 else ""


def _agreement(evaluation: EvaluationRecord) -> dict[str, str]:
    """Only greedy answers have something to be equal to."""
    o, w = evaluation.outputs, evaluation.walk
    if o is None or w is None:
        return {"rule": f"{evaluation.subjects.rule} at temperature {evaluation.subjects.temperature:g}"}
    return {
        "outputs": f"{o.num_equal} equal, {o.num_ties} part at a tie, {o.num_different} differ",
        "chain walk": f"equal in {w.num_equal} of {w.num_prompts} prompts, τ {number(w.tau, 3)}, {number(w.speedup, 1)} × faster",
    }


def evaluation_tables(evaluation: EvaluationRecord) -> tuple[ReportTable, ...]:
    """Other definitions of acceptance, and acceptance by part; a table of one row says nothing new."""
    parts = (
        ("Acceptance by prompt set", evaluation.by_set),
        ("Acceptance by category", evaluation.by_category),
        ("Acceptance by place in the answer, in tokens", evaluation.by_position),
        ("Acceptance by length of the prompt, in tokens", evaluation.by_prompt_length),
    )
    tables = [_part_table(title, figures) for title, figures in parts if len(figures) > 1]
    rows = tuple((d.name, number(d.value, 3), d.used_by) for d in evaluation.definitions)
    return (*tables, ReportTable("The same rounds, counted as others do", ("definition", "value", "used by"), rows))


def _part_table(title: str, figures: dict[str, Acceptance]) -> ReportTable:
    rows = tuple(
        (
            name,
            str(a.num_prompts),
            with_interval(a, 2),
            f"{a.num_drafted:,}",
            f"{a.num_drafted - a.num_wasted:,}",
            f"{a.num_wasted:,}",
            _share(a.full_block_share),
        )
        for name, a in figures.items()
    )
    return ReportTable(title, PART_COLUMNS, rows)


def with_interval(a: Acceptance, digits: int) -> str:
    """τ and, where there is one, its interval."""
    interval = f" ({number(a.tau_low, digits)} to {number(a.tau_high, digits)})" if a.tau_low is not None else ""
    return number(a.tau, digits) + interval


def speed_up(value: float, low: float | None, high: float | None) -> str:
    """A factor and, where there is one, its interval."""
    return f"{value:.2f} ×" + (f" ({low:.2f} to {high:.2f})" if low is not None and high is not None else "")


def number(value: float | None, digits: int = 2) -> str:
    """A dash for none."""
    return "-" if value is None else f"{value:.{digits}f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
