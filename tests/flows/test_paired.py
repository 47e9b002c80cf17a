"""The paired difference of acceptance lengths: what prompts have in common cancels, and a tie is a tie."""

import numpy as np

from tasks.gates import rounds_and_tokens
from tasks.paired import paired_difference


def prompts(seed: int, gain: float) -> list[tuple[int, int]]:
    """Prompts that differ much from each other, by the same in both; `gain` tokens a round on top."""
    hard, own = np.random.default_rng(0), np.random.default_rng(seed)
    return [(100, int(100 * (hard.uniform(1.2, 3.5) + gain + own.normal(0, 0.02)))) for _ in range(60)]


def test_the_same_answers_have_no_difference() -> None:
    found = paired_difference(prompts(1, 0.0), prompts(1, 0.0))
    assert (found.difference, found.low, found.high) == (0.0, 0.0, 0.0)


def test_a_small_gain_is_seen_although_prompts_differ_more() -> None:
    found = paired_difference(prompts(1, 0.05), prompts(2, 0.0))
    assert 0.03 < found.low < found.difference < found.high < 0.07
    alone = np.std([tokens / rounds for rounds, tokens in prompts(1, 0.0)]) / np.sqrt(60)
    assert 2 * alone > 0.07, "unpaired, the prompts' own spread would hide it"


def test_one_prompt_has_no_spread_and_a_prompt_without_a_round_is_drawn_as_any() -> None:
    assert paired_difference([(5, 10)], [(5, 9)]).low is None
    assert paired_difference([(5, 10), (0, 0), (5, 10)], [(5, 9), (0, 0), (5, 9)]).low is not None


def test_rounds_are_counted_however_they_are_written() -> None:
    assert rounds_and_tokens({"histogram": [1, 0, 2]}) == rounds_and_tokens({"rounds": [3, 1, 3]}) == (3, 7)
