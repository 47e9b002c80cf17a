"""Acceptance statistics: from the committed tokens of each round to τ, its parts and its interval.

Only a histogram per prompt is kept (gpt-fast's habit): every figure is derived from it, so two
evaluations can be merged, and a different mean is one line instead of a new run.
Dims: P prompts, K block slots incl. anchor (= the most tokens that one round can commit).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Acceptance:
    """What a drafter earns per target forward. A round is one target forward after the prefill.

    Attributes:
        num_prompts: prompts measured, those without a round included.
        num_rounds: target forwards.
        num_tokens: tokens committed by them (the prefill's token is not counted).
        num_drafted: tokens drafted, K - 1 a round.
        num_wasted: drafted tokens that saved nothing: all but those that were committed beside a round's one of the target's own.
        histogram: rounds that committed 1, 2, ..., K tokens.
        tau: pooled, num_tokens / num_rounds; None without a round. Bonus token included.
        tau_low, tau_high: 95 % bootstrap interval of `tau`, prompts drawn with replacement; None where only one has a round,
            which says nothing of how prompts differ.
        tau_prompt_mean: mean over prompts of their own τ.
        tau_without_bonus: tau - 1: tokens gained over plain decoding, which commits one a forward.
        survival: share of rounds whose slot k = 1..K-1 was committed by acceptance and followed, i.e. that
            committed more than k tokens. Rounds cut by a stop token or the limit count with what they committed.
        full_block_share: share of rounds that committed K tokens; past some 15 %, the block is the limit.
    """

    num_prompts: int
    num_rounds: int
    num_tokens: int
    num_drafted: int
    num_wasted: int
    histogram: tuple[int, ...]
    tau: float | None
    tau_low: float | None
    tau_high: float | None
    tau_prompt_mean: float | None
    tau_without_bonus: float | None
    survival: tuple[float, ...]
    full_block_share: float | None


def histogram_PK(rounds: Sequence[Sequence[int]], block_size: int) -> np.ndarray:
    """Count, prompt by prompt, the rounds that committed 1..K tokens: int64 [P, K]."""
    table_PK = np.zeros((len(rounds), block_size), dtype=np.int64)
    for prompt, committed in enumerate(rounds):
        assert all(1 <= count <= block_size for count in committed), (committed, block_size)
        table_PK[prompt] = np.bincount(np.asarray(committed, dtype=np.int64), minlength=block_size + 1)[1:]
    return table_PK


def summarise(table_PK: np.ndarray, bootstrap_samples: int = 2000, seed: int = 0) -> Acceptance:
    """Derive every figure of `Acceptance` from the histograms of P prompts."""
    counts_K = table_PK.sum(axis=0)
    num_rounds, num_tokens = int(counts_K.sum()), int((counts_K * _sizes(table_PK)).sum())
    tau = num_tokens / num_rounds if num_rounds else None
    low, high = bootstrap_interval(table_PK, bootstrap_samples, seed)
    return Acceptance(
        num_prompts=len(table_PK),
        num_rounds=num_rounds,
        num_tokens=num_tokens,
        num_drafted=num_rounds * (len(counts_K) - 1),
        num_wasted=num_rounds * len(counts_K) - num_tokens,
        histogram=tuple(int(count) for count in counts_K),
        tau=tau,
        tau_low=low,
        tau_high=high,
        tau_prompt_mean=_prompt_mean(table_PK),
        tau_without_bonus=None if tau is None else tau - 1,
        survival=tuple(float(counts_K[k:].sum() / num_rounds) for k in range(1, len(counts_K))) if num_rounds else (),
        full_block_share=float(counts_K[-1] / num_rounds) if num_rounds else None,
    )


def pooled_tau(rounds: Sequence[Sequence[int]]) -> float | None:
    """τ alone: committed tokens over rounds of all prompts; None without a round."""
    num_rounds = sum(len(committed) for committed in rounds)
    return sum(sum(committed) for committed in rounds) / num_rounds if num_rounds else None


def by_category(
    table_PK: np.ndarray, categories: Sequence[str], bootstrap_samples: int = 2000, seed: int = 0
) -> dict[str, Acceptance]:
    """`summarise` for the prompts of each category, in alphabetical order."""
    assert len(table_PK) == len(categories), (len(table_PK), len(categories))
    names = np.asarray(categories)
    return {name: summarise(table_PK[names == name], bootstrap_samples, seed) for name in sorted(set(categories))}


def bootstrap_interval(table_PK: np.ndarray, samples: int, seed: int) -> tuple[float | None, float | None]:
    """95 % percentile interval of the pooled τ. Prompts are drawn, not rounds: rounds of one text are dependent."""
    rounds_P = table_PK.sum(axis=1)
    tokens_P = table_PK @ _sizes(table_PK)
    if np.count_nonzero(rounds_P) < 2:
        return None, None
    drawn = np.random.default_rng(seed).integers(len(table_PK), size=(samples, len(table_PK)))
    rounds = rounds_P[drawn].sum(axis=1)
    taus = tokens_P[drawn].sum(axis=1)[rounds > 0] / rounds[rounds > 0]
    low, high = np.quantile(taus, [0.025, 0.975])
    return float(low), float(high)


def _prompt_mean(table_PK: np.ndarray) -> float | None:
    """Mean τ over the prompts that had a round; one answered by its first token has none."""
    rounds_P = table_PK.sum(axis=1)
    tokens_P = table_PK @ _sizes(table_PK)
    has = rounds_P > 0
    return float((tokens_P[has] / rounds_P[has]).mean()) if has.any() else None


def _sizes(table_PK: np.ndarray) -> np.ndarray:
    """Tokens that each column of the histogram stands for: 1..K."""
    return np.arange(1, table_PK.shape[1] + 1)
