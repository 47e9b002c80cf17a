"""Figures derived from the histogram, against numbers worked out by hand."""

import numpy as np
import pytest

from dflash_core.evaluation.acceptance import bootstrap_interval, by_category, histogram_PK, pooled_tau, summarise

ROUNDS = [(4, 4, 1), (1, 1, 1, 2), ()]  # 9 tokens in 3 rounds, 5 in 4, and an answer of one token


def test_figures_of_a_worked_example() -> None:
    found = summarise(histogram_PK(ROUNDS, 4))
    assert found.histogram == (4, 1, 0, 2)
    assert (found.num_prompts, found.num_rounds, found.num_tokens) == (3, 7, 14)
    assert found.tau == 2.0 == pooled_tau(ROUNDS) and found.tau_without_bonus == 1.0
    assert found.tau_prompt_mean == pytest.approx((3 + 1.25) / 2)
    assert found.survival == pytest.approx((3 / 7, 2 / 7, 2 / 7))
    assert found.full_block_share == pytest.approx(2 / 7)
    assert 1.25 <= found.tau_low <= 2.0 <= found.tau_high <= 3.0


def test_survival_sums_to_tau_without_bonus() -> None:
    rounds = [np.random.default_rng(i).integers(1, 9, size=20).tolist() for i in range(6)]
    found = summarise(histogram_PK(rounds, 8))
    assert sum(found.survival) == pytest.approx(found.tau_without_bonus)


def test_no_rounds_at_all_is_no_figure_and_no_fault() -> None:
    found = summarise(histogram_PK([(), ()], 4))
    assert found.tau is found.tau_low is found.tau_prompt_mean is found.full_block_share is None
    assert found.num_rounds == 0 and pooled_tau([()]) is None


def test_one_prompt_has_no_interval() -> None:
    found = summarise(histogram_PK([(2, 1, 3), ()], 4))
    assert found.tau == 2.0 and found.tau_low is found.tau_high is None


def test_categories_share_out_the_prompts() -> None:
    found = by_category(histogram_PK(ROUNDS, 4), ["b", "a", "b"])
    assert list(found) == ["a", "b"] and found["a"].tau == 1.25 and found["b"].tau == 3.0 and found["b"].num_prompts == 2


def test_bootstrap_is_seeded_and_covers_the_truth() -> None:
    generator = np.random.default_rng(0)
    table_PK = histogram_PK([generator.integers(1, 4, size=12).tolist() for _ in range(40)], 4)
    low, high = bootstrap_interval(table_PK, 500, seed=1)
    assert (low, high) == bootstrap_interval(table_PK, 500, seed=1)
    assert low < 2.0 < high < low + 0.5
