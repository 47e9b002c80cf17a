"""Compares two drafters on the same prompts: paired bootstrap of the difference of τ, with the smallest one that would have shown.

Both answered the same prompts, so prompts are drawn once for both: what makes a prompt easy is easy for both, and leaves
the difference. Where it isn't told from 0, that is said with what the sample could have told: no difference found among
20 prompts is no proof that there is none.

Dims: P prompts.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dflash_core.errors import IdentityError
from dflash_core.evaluation.records import EvaluationRecord, PromptRecord, Subjects

Verdict = Literal["better", "worse", "no difference found", "too few prompts"]
# What two evaluations must share: otherwise the difference isn't the drafters'. Sampled, the seed makes the answers that later turns hold.
SAME = ("target_identity", "max_new_tokens", "dtype", "temperature", "rule", "seed")
SAME_PROMPTS = ("prompts_digest", "prompt_sets", "template")
CONFIDENCE, POWER = 0.95, 0.8
# All of 5 prompts lie on one side in 1 of 16 cases where there is no difference: that is no 95 %, whatever a bootstrap of 5 gives.
FEWEST = 6
# A true difference of so many standard errors is told from 0 in 80 of 100 samples: 1.96 + 0.84.
DETECTABLE = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2) + statistics.NormalDist().inv_cdf(POWER)


@dataclass(frozen=True)
class Difference:
    """τ of the second drafter minus that of the first.

    Attributes:
        num_prompts: prompts that both measured.
        low, high: 95 % interval, None for fewer than two prompts with a round.
        smallest: the least true difference that a sample like this shows in 80 of 100 cases; None as above, and where all draws agree.
        verdict: on the second: better or worse where the interval lies on one side of 0; none below FEWEST prompts with a round.
    """

    num_prompts: int
    first: float | None
    second: float | None
    difference: float | None
    low: float | None
    high: float | None
    smallest: float | None
    verdict: Verdict


@dataclass(frozen=True)
class Comparison:
    """Overall, by prompt set and by category. Categories are many: an interval of each is one of many, and some miss."""

    overall: Difference
    by_set: dict[str, Difference]
    by_category: dict[str, Difference]
    speed_first: float
    speed_second: float


def compare_evaluations(first: EvaluationRecord, second: EvaluationRecord, samples: int = 4000, seed: int = 0) -> Comparison:
    """Compare the second evaluation with the first.

    Raises:
        IdentityError: they aren't of the same target, prompts and way of decoding.
    """
    check_comparable(first.subjects, second.subjects)
    _check_prompts(first, second)
    pairs = _pairs(first.prompts, second.prompts)

    def over(chosen: Sequence[tuple[PromptRecord, PromptRecord]]) -> Difference:
        return paired_difference([(one.rounds, other.rounds) for one, other in chosen], samples, seed)

    sets, categories = (list(dict.fromkeys(getattr(one, key) for one, _ in pairs)) for key in ("set_name", "category"))
    return Comparison(
        overall=over(pairs),
        by_set={name: over([pair for pair in pairs if pair[0].set_name == name]) for name in sets},
        by_category={name: over([pair for pair in pairs if pair[0].category == name]) for name in sorted(categories)},
        speed_first=first.speed.speedup,
        speed_second=second.speed.speedup,
    )


def check_comparable(first: Subjects, second: Subjects) -> None:
    """Raise IdentityError with both values where something but the drafter differs."""
    for name in SAME:
        one, other = getattr(first, name), getattr(second, name)
        if one != other:
            raise IdentityError(
                f"the first evaluation has {name} {_short(one)}, the second {_short(other)}; expected the same. "
                "Evaluate one of them again, as the other was."
            )


def paired_difference(pairs: Sequence[tuple[Sequence[int], Sequence[int]]], samples: int = 4000, seed: int = 0) -> Difference:
    """Bootstrap over prompts. A draw without a round of both is left out.

    Args:
        pairs: of each prompt the tokens that each round committed, with the first drafter and with the second.
    """
    sums_P4 = np.array([[sum(a), len(a), sum(b), len(b)] for a, b in pairs], dtype=np.int64).reshape(-1, 4)
    tokens_a, rounds_a, tokens_b, rounds_b = sums_P4.sum(axis=0).tolist()
    first, second = tokens_a / rounds_a if rounds_a else None, tokens_b / rounds_b if rounds_b else None
    if first is None or second is None or (with_rounds := np.count_nonzero(sums_P4[:, 1] * sums_P4[:, 3])) < 2:
        known = None if first is None or second is None else second - first
        return Difference(len(pairs), first, second, known, None, None, None, "too few prompts")
    drawn = np.random.default_rng(seed).integers(len(sums_P4), size=(samples, len(sums_P4)))
    total = sums_P4[drawn].sum(axis=1)
    total = total[(total[:, 1] > 0) & (total[:, 3] > 0)]
    differences = total[:, 2] / total[:, 3] - total[:, 0] / total[:, 1]
    low, high = (float(q) for q in np.quantile(differences, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]))
    verdict: Verdict = "better" if low > 0 else "worse" if high < 0 else "no difference found"
    if with_rounds < FEWEST:
        verdict = "too few prompts"
    smallest = DETECTABLE * float(differences.std(ddof=1)) or None
    return Difference(len(pairs), first, second, second - first, low, high, smallest, verdict)


def _pairs(first: Sequence[PromptRecord], second: Sequence[PromptRecord]) -> list[tuple[PromptRecord, PromptRecord]]:
    """Prompts that both have; a later turn that one left out as too long is in neither."""
    others = {prompt.sample_id: prompt for prompt in second}
    return [(prompt, others[prompt.sample_id]) for prompt in first if prompt.sample_id in others]


def _check_prompts(first: EvaluationRecord, second: EvaluationRecord) -> None:
    """Raise IdentityError, in words that say what was asked of each, where that differs."""
    if any(getattr(first.subjects, name) != getattr(second.subjects, name) for name in SAME_PROMPTS):
        raise IdentityError(
            f"the first evaluation asked {_asked(first)}, the second {_asked(second)}; expected the same prompts. "
            "Evaluate one of them again, with the other's prompt sets, evaluation.num_prompts and template."
        )


def _asked(record: EvaluationRecord) -> str:
    sets = ", ".join(f"{figures.num_prompts} of {name}" for name, figures in record.by_set.items())
    return f"{sets} ({record.subjects.template}, {record.subjects.prompts_digest[:8]})"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
