"""The machine's load: sampled only while a training writes its log, and what NVIDIA's tool says."""

import json
import time
from pathlib import Path

import pytest

from tasks import system_load
from tasks.shipping import SYSTEM_LOG
from tasks.system_load import parse_gpus, sampling_load


def test_it_is_sampled_while_the_log_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_load, "SECONDS_BETWEEN_SAMPLES", 0.02)
    log = tmp_path / "train_log.jsonl"
    with sampling_load(log):
        time.sleep(0.1)
    assert not (tmp_path / SYSTEM_LOG).exists(), "there is no run"
    log.write_text("x")
    with sampling_load(log):
        time.sleep(0.1)
    assert not (tmp_path / SYSTEM_LOG).exists(), "a training that is up to date"
    with sampling_load(log):
        time.sleep(0.1)
        with log.open("a") as file:
            file.write("y")
        time.sleep(0.1)
    (sample,) = [json.loads(line) for line in (tmp_path / SYSTEM_LOG).read_text().splitlines()]
    assert 0 < sample["metrics"]["system_memory_usage_percentage"] <= 100


def test_gpus_as_nvidias_tool_tells_them() -> None:
    assert parse_gpus("0, 97, 1024, 350.5\n1, [N/A], 12, [N/A]\n") == {
        "gpu_0_utilization_percentage": 97.0,
        "gpu_0_memory_usage_mebibytes": 1024.0,
        "gpu_0_power_usage_watts": 350.5,
        "gpu_1_memory_usage_mebibytes": 12.0,
    }
