"""What the tests of the diagnosis share: a log from rows."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_core.diagnosis.diagnose import Diagnosis, diagnose_file


@pytest.fixture
def diagnose(tmp_path: Path) -> Callable[..., Diagnosis]:
    """Writes rows as JSON lines and diagnoses them."""

    def run(rows: list[dict[str, float]], *events: str) -> Diagnosis:
        path = tmp_path / "log.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return diagnose_file(path, list(events))

    return run
