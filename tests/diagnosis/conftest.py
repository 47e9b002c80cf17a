"""Fixtures of the diagnosis tests: a log from rows, and the benchmarks as modules."""

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

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


@pytest.fixture(scope="session")
def synthetic_logs() -> ModuleType:
    """benchmarks/synthetic_logs.py, which is no package."""
    return _loaded("synthetic_logs")


@pytest.fixture(scope="session")
def diagnosis_campaign(synthetic_logs: ModuleType) -> ModuleType:
    """benchmarks/diagnosis_campaign.py, which imports the former."""
    return _loaded("diagnosis_campaign")


def _loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
