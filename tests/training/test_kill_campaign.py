"""A run killed with SIGKILL, once in a save and once in a step, ends with the uninterrupted run's weights."""

import importlib.util
from pathlib import Path


def test_a_killed_run_ends_bit_identical(tmp_path: Path) -> None:
    path = Path(__file__).parents[2] / "benchmarks" / "kill_campaign.py"
    spec = importlib.util.spec_from_file_location("kill_campaign", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    result = module.campaign(tmp_path, num_kills=2, seed=1, num_steps=12)
    assert result["identical"], result
    assert {kill["aim"] for kill in result["kills"]} == {"save", "step"}
