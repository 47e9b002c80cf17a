"""What the gate says: the outcome of each expectation, and whether all held."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

IDS_IN_SENTENCE = 5


@dataclass(frozen=True)
class BadRow:
    """A row that an expectation doesn't hold of: the values that it looked at, and where the row stands, if in a file."""

    row_id: str
    values: dict[str, str | None] = field(default_factory=dict)
    where: str | None = None


@dataclass(frozen=True)
class Outcome:
    """One expectation's outcome.

    `expectation` is Great Expectations' class, `says` what is expected, `observed` what was counted. `fault` is what
    kept it from being measured, which counts as not passed. Where some bad rows are tolerated there may be some although it passed;
    `limit` is the key that says how many.
    """

    table: str
    name: str
    says: str
    passed: bool
    expectation: str = ""
    column: str = ""
    limit: str = ""
    observed: str = ""
    fault: str | None = None
    bad_rows: tuple[BadRow, ...] = ()

    def summary(self) -> dict[str, Any]:
        """For verdict.json: everything but the rows, which have a file of their own."""
        tree = {key: value for key, value in asdict(self).items() if key != "bad_rows"}
        return tree | {"num_bad_rows": len(self.bad_rows)}


@dataclass(frozen=True)
class Verdict:
    """All outcomes.

    `dataset` is the identity of the prepared rows, None where they couldn't be read; `facts` are a few numbers by label.
    """

    outcomes: tuple[Outcome, ...]
    dataset: str | None = None
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """Those that didn't hold, or weren't measured."""
        return tuple(outcome for outcome in self.outcomes if not outcome.passed)

    @property
    def passed(self) -> bool:
        """Nothing failed, and something was looked at."""
        return bool(self.outcomes) and not self.failed

    def tree(self) -> dict[str, Any]:
        """For verdict.json."""
        return {
            "passed": self.passed,
            "dataset": self.dataset,
            "facts": self.facts,
            "failed": [outcome.name for outcome in self.failed],
            "expectations": [outcome.summary() for outcome in self.outcomes],
        }

    def bad_rows(self) -> Iterator[dict[str, Any]]:
        """For bad_rows.jsonl: a line for each row and failed expectation."""
        for outcome in self.failed:
            for row in outcome.bad_rows:
                yield {"row_id": row.row_id, "table": outcome.table, "expectation": outcome.name, "values": row.values, "where": row.where}

    def sentence(self) -> str:
        """The failed expectations with their first rows, in a line."""
        return "; ".join(_told(outcome) for outcome in self.failed)


def _told(outcome: Outcome) -> str:
    if outcome.fault is not None:
        return f"{outcome.name} could not be measured ({outcome.fault})"
    ids = list(dict.fromkeys(row.row_id for row in outcome.bad_rows))
    more = f" and {len(ids) - IDS_IN_SENTENCE} more" if len(ids) > IDS_IN_SENTENCE else ""
    rows = f" in {', '.join(ids[:IDS_IN_SENTENCE])}{more}" if ids else ""
    limit = f", limit {outcome.limit}" if outcome.limit else ""
    return f"{outcome.name} ({outcome.observed}{limit}){rows}"
