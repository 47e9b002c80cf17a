"""The synthetic campaign and the fuzzing, small; benchmarks/ runs them large."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def test_few_false_alarms_and_most_faults_found(diagnosis_campaign: ModuleType) -> None:
    result = diagnosis_campaign.campaign(n=20, seed=3)
    assert result["healthy"] == 8 and result["false_alarms"] == 0, result["which_false"]
    assert result["recall_from_6_sigma"] >= 0.85, result["recall"]


def test_malformed_files_end_without_a_fault_of_ours(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("diagnosis_fuzz", Path(__file__).parents[2] / "benchmarks" / "diagnosis_fuzz.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    codes = module.campaign(n=25, seed=11, keep=tmp_path)
    assert set(codes) <= {0, 2, 3}, codes
