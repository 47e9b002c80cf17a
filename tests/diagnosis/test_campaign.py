"""The synthetic campaign and the fuzzing, small; benchmarks/ runs them large."""

from pathlib import Path

import diagnosis_campaign
import diagnosis_fuzz


def test_few_false_alarms_and_most_faults_found() -> None:
    result = diagnosis_campaign.campaign(n=20, seed=3)
    assert result["healthy"] == 8 and result["false_alarms"] == 0, result["which_false"]
    assert result["recall_from_6_sigma"] >= 0.85, result["recall"]


def test_malformed_files_end_without_a_fault_of_ours(tmp_path: Path) -> None:
    codes = diagnosis_fuzz.campaign(n=25, seed=11, keep=tmp_path)
    assert set(codes) <= {0, 2, 3}, codes
