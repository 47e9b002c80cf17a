"""Renders a verdict as one HTML file that loads nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from itertools import groupby

import jinja2

from dflash_core.data_gate.profile import Profile
from dflash_core.data_gate.verdict import Verdict

ROWS_SHOWN = 20  # of each failed expectation; all of them are in bad_rows.jsonl
VALUES_SHOWN = 12


@dataclass(frozen=True)
class Share:
    """One value's share of the rows, now and in the reference."""

    value: str
    now: float
    before: float | None


def render(verdict: Verdict, profile: Profile, reference: Profile | None) -> str:
    """The page."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(resources.files(__package__).joinpath("page.html.j2").read_text(encoding="utf-8"))
    tables = [(name, list(outcomes)) for name, outcomes in groupby(verdict.outcomes, key=lambda outcome: outcome.table)]
    mixes = {
        "Categories": shares(profile.categories, reference and reference.categories),
        "Scripts": shares(profile.scripts, reference and reference.scripts),
    }
    return template.render(verdict=verdict, tables=tables, mixes=mixes, compared=reference is not None, rows_shown=ROWS_SHOWN)


def shares(now: Mapping[str, int], before: Mapping[str, int] | None) -> list[Share]:
    """The largest values of either, as shares of all rows; the rest in one."""
    before = before or {}
    total, total_before = max(1, sum(now.values())), sum(before.values())

    def share(value: str, count: int, count_before: int) -> Share:
        return Share(value, count / total, count_before / total_before if total_before else None)

    ranked = sorted({*now, *before}, key=lambda value: (-max(now.get(value, 0), before.get(value, 0)), value))
    shown, rest = ranked[:VALUES_SHOWN], ranked[VALUES_SHOWN:]
    found = [share(value, now.get(value, 0), before.get(value, 0)) for value in shown]
    if rest:
        found.append(share(f"{len(rest)} others", sum(now.get(v, 0) for v in rest), sum(before.get(v, 0) for v in rest)))
    return found
