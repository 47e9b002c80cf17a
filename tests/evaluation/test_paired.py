"""Comparison of two drafters: what is told apart, what isn't, and what must not be compared."""

from types import SimpleNamespace

import numpy as np
import pytest

from dflash_core.errors import IdentityError
from dflash_core.evaluation.paired import DETECTABLE, check_comparable, paired_difference
from dflash_core.evaluation.records import Subjects
from dflash_core.stages.compare import sentence


def pairs(count: int, gain: float, seed: int = 0) -> list[tuple[list[int], list[int]]]:
    """Prompts of very different difficulty, of which the second drafter gets each round one token more with probability `gain`."""
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        first = generator.binomial(6, generator.uniform(0.1, 0.9), size=20) + 1
        second = first + (generator.random(20) < gain)
        found.append((first.tolist(), second.tolist()))
    return found


def test_a_small_gain_shows_because_prompts_are_paired() -> None:
    found = paired_difference(pairs(40, 0.15), 2000, 0)
    assert found.verdict == "better" and found.low < found.difference < found.high
    assert found.difference == pytest.approx(0.15, abs=0.05) and found.high - found.low < 0.1
    turned = paired_difference([(b, a) for a, b in pairs(40, 0.15)], 2000, 0)
    assert turned.verdict == "worse" and turned.difference == -found.difference
    assert sentence(found).startswith("The second is better (τ +0.1")


def test_no_difference_says_what_would_have_shown() -> None:
    noisy = list(zip([a for a, _ in pairs(12, 0.0, seed=1)], [b for _, b in pairs(12, 0.0, seed=2)], strict=True))
    found = paired_difference(noisy, 2000, 0)
    assert found.verdict == "no difference found" and found.low < 0 < found.high
    assert found.smallest == pytest.approx(DETECTABLE / 2 / 1.96 * (found.high - found.low), rel=0.15) and DETECTABLE == pytest.approx(2.802, abs=1e-3)
    assert f"would have shown one of {found.smallest:.3f}" in sentence(found)


def test_equal_drafters_never_differ_and_one_prompt_tells_nothing() -> None:
    same = paired_difference(pairs(10, 0.0), 500, 0)
    assert (same.difference, same.low, same.high, same.verdict) == (0.0, 0.0, 0.0, "no difference found")
    assert same.smallest is None and sentence(same).endswith("the rounds are alike."), "what never differed says nothing of what would have shown"
    single = paired_difference(pairs(1, 1.0), 500, 0)
    assert single.low is None and single.verdict == "too few prompts" and "too few" in sentence(single)
    empty = paired_difference([([], [])], 500, 0)
    assert empty.difference is None and "too few" in sentence(empty)


def test_five_prompts_give_no_verdict_however_far_apart() -> None:
    silent = [([], [])] * 3  # answers of a single token
    few = paired_difference(pairs(5, 1.0) + silent, 500, 0)
    assert few.low > 0.9 and few.verdict == "too few prompts" and "at least 6" in sentence(few)
    assert paired_difference(pairs(6, 1.0) + silent, 500, 0).verdict == "better"


def test_the_verdict_is_wrong_as_seldom_as_it_says() -> None:
    """Two equally good drafters that differ by chance: some 5 % of the samples say otherwise."""
    wrong = 0
    for seed in range(60):
        generator = np.random.default_rng(seed)
        rates = generator.uniform(0.1, 0.9, size=30)
        first, second = ([(generator.binomial(6, r, size=15) + 1).tolist() for r in rates] for _ in range(2))
        wrong += paired_difference(list(zip(first, second, strict=True)), 400, seed).verdict != "no difference found"
    assert wrong <= 9


@pytest.mark.parametrize("field, value", [("target_identity", "b" * 64), ("max_new_tokens", 9), ("rule", "match"), ("seed", 1)])
def test_evaluations_of_something_else_are_refused_with_both_values(field: str, value: object) -> None:
    subjects = SimpleNamespace(
        target_identity="a" * 64, max_new_tokens=8, dtype="float32", temperature=0.0, rule="greedy", seed=0,
    )  # fmt: skip
    check_comparable(subjects, subjects)
    other = SimpleNamespace(**(vars(subjects) | {field: value}))
    with pytest.raises(IdentityError, match=f"has {field} .*, the second {str(value)[:40]}"):
        check_comparable(subjects, other)
    assert field in Subjects.model_fields
