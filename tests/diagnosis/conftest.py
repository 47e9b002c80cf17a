"""Fixtures of the diagnosis tests: a log from rows, and the benchmarks as modules."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_core.diagnosis.diagnose import Diagnosis, diagnose_file

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def diagnose(tmp_path: Path) -> Callable[..., Diagnosis]:
    """Writes rows as JSON lines and diagnoses them."""

    def run(rows: list[dict[str, float]], *events: str) -> Diagnosis:
        path = tmp_path / "log.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return diagnose_file(path, list(events))

    return run
