"""Learning rate and noise level as functions of the step."""

import math

import pytest

from dflash_core.config import FeatureNoiseConfig, TrainingConfig
from dflash_core.training.schedule import learning_rate, noise_std


def rates(total: int, **fields: object) -> list[float]:
    config = TrainingConfig(learning_rate=1e-3, **fields)
    return [learning_rate(step, total, config) for step in range(1, total + 1)]


def test_warmup_is_linear_and_reaches_the_peak_at_its_last_step() -> None:
    found = rates(100, warmup_ratio=0.1)
    assert found[:10] == pytest.approx([1e-4 * n for n in range(1, 11)])
    assert found[9] == 1e-3 and max(found) == 1e-3 and found[10] < 1e-3


def test_cosine_halves_in_the_middle_and_ends_at_the_minimum() -> None:
    found = rates(110, warmup_ratio=10 / 110, min_lr_ratio=0.1)
    assert found[59] == pytest.approx(1e-3 * (0.1 + 0.9 * 0.5))
    assert found[-1] == pytest.approx(1e-4)
    assert found[9:] == sorted(found[9:], reverse=True)


def test_wsd_stays_at_the_peak_until_its_decay() -> None:
    found = rates(100, schedule="wsd", warmup_ratio=0.1, decay_ratio=0.2)
    assert found[9:80] == [1e-3] * 71
    assert found[80] == pytest.approx(1e-3 * 19 / 20) and found[89] == pytest.approx(5e-4) and found[-1] == 0.0


def test_phases_have_the_steps_that_their_ratios_say() -> None:
    """0.07 * 100 and 0.14 * 50 exceed 7 by a bit in binary; the warm-up and the decay are 7 steps all the same."""
    assert rates(100, warmup_ratio=0.07)[6] == 1e-3
    assert rates(50, schedule="wsd", warmup_ratio=0.0, decay_ratio=0.14)[42:44] == pytest.approx([1e-3, 1e-3 * 6 / 7])


def test_constant_stays_after_the_warmup() -> None:
    assert rates(50, schedule="constant", warmup_ratio=0.1)[5:] == [1e-3] * 45


@pytest.mark.parametrize("schedule", ["cosine", "wsd", "constant"])
@pytest.mark.parametrize("total", [1, 2, 3, 7])
@pytest.mark.parametrize("warmup", [0.0, 0.04, 0.8])
def test_short_runs_have_finite_rates_in_range(schedule: str, total: int, warmup: float) -> None:
    for rate in rates(total, schedule=schedule, warmup_ratio=warmup):
        assert math.isfinite(rate) and 0.0 <= rate <= 1e-3


def test_noise_reaches_its_plateau_at_the_step_configured() -> None:
    config = FeatureNoiseConfig(std=0.05, warmup_steps=40)
    levels = [noise_std(step, config) for step in range(1, 100)]
    assert levels[0] == pytest.approx(0.05 / 40)
    assert levels[38] < 0.05 and levels[39:] == [0.05] * 60
    assert [noise_std(s, FeatureNoiseConfig(std=0.05)) for s in (1, 2)] == [0.05, 0.05]
