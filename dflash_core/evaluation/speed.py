"""Speed against the target alone and against transformers' generate(), with intervals, and what it would be at another τ.

Dims: P prompts.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from transformers import GenerationConfig

from dflash_core.config import EvaluationConfig
from dflash_core.evaluation.decode import time_on
from dflash_core.evaluation.records import GenerateSpeed, Speed
from dflash_core.target.model import Target

if TYPE_CHECKING:
    from dflash_core.evaluation.compare import PromptResult

PREDICTED_TAUS = (1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)


def measure_speed(results: "Sequence[PromptResult]", samples: int, block_size: int) -> Speed:
    """Sum the wall times. The speed-up compares seconds for the same answers; where they were sampled, seconds a token."""
    splits = [r.speculative.seconds for r in results]
    plain_s, speculative_s = sum(r.plain.seconds.total for r in results), sum(s.total for s in splits)
    plain_tokens, tokens = (sum(len(d.tokens) for d in decoded) for decoded in zip(*((r.plain, r.speculative) for r in results), strict=True))
    num_rounds = sum(len(r.speculative.rounds) for r in results)
    prefill_s = sum(s.prefill for s in splits)
    low, high = ratio_interval(
        [r.plain.seconds.total / len(r.plain.tokens) * len(r.speculative.tokens) for r in results], [s.total for s in splits], samples
    )
    token_s = _per(plain_s - sum(r.plain.seconds.prefill for r in results), plain_tokens - len(results))
    round_s = _per(speculative_s - prefill_s, num_rounds)
    return Speed(
        plain_s=plain_s,
        speculative_s=speculative_s,
        speedup=plain_s / plain_tokens * tokens / speculative_s,
        speedup_low=low,
        speedup_high=high,
        prefill_s=prefill_s,
        target_s=sum(s.target for s in splits),
        drafter_s=sum(s.drafter for s in splits),
        overhead_s=sum(s.overhead for s in splits),
        plain_tokens_per_s=plain_tokens / plain_s,
        speculative_tokens_per_s=tokens / speculative_s,
        token_s=token_s,
        round_s=round_s,
        break_even_tau=round_s / token_s if round_s and token_s else None,
        predicted=predict(prefill_s, tokens - len(results), token_s, round_s, block_size),
    )


def predict(
    prefill_s: float, num_tokens: int, token_s: float | None, round_s: float | None, block_size: int
) -> dict[str, float]:
    """Speed-up at other τ: a round costs the same whatever it commits, so only their number changes."""
    if not token_s or not round_s:
        return {}
    plain_s = prefill_s + num_tokens * token_s
    return {f"{tau:g}": plain_s / (prefill_s + num_tokens * round_s / tau) for tau in PREDICTED_TAUS if tau <= block_size}


def ratio_interval(over: Sequence[float], under: Sequence[float], samples: int, seed: int = 0) -> tuple[float | None, float | None]:
    """95 % bootstrap interval of sum(over) / sum(under), prompts drawn with replacement; None for fewer than two."""
    if len(over) < 2:
        return None, None
    over_P, under_P = np.asarray(over), np.asarray(under)
    drawn = np.random.default_rng(seed).integers(len(over_P), size=(samples, len(over_P)))
    low, high = np.quantile(over_P[drawn].sum(axis=1) / under_P[drawn].sum(axis=1), [0.025, 0.975])
    return float(low), float(high)


def against_generate(
    results: "Sequence[PromptResult]", generated: Mapping[str, tuple[float, int]], samples: int
) -> GenerateSpeed | None:
    """Compare with generate()'s (seconds, tokens) of some of the prompts, by sample id; by seconds a token, as texts may part at a tie."""
    both = [(r, *generated[r.prompt.sample_id]) for r in results if r.prompt.sample_id in generated]
    if not both:
        return None
    over = [seconds / count * len(r.speculative.tokens) for r, seconds, count in both]
    under = [r.speculative.seconds.total for r, *_ in both]
    plain = [r.plain.seconds.total / len(r.plain.tokens) * len(r.speculative.tokens) for r, *_ in both]
    low, high = ratio_interval(over, under, samples)
    return GenerateSpeed(
        num_prompts=len(both),
        generate_s=sum(seconds for _, seconds, _ in both),
        generate_tokens_per_s=sum(count for *_, count in both) / sum(seconds for _, seconds, _ in both),
        speedup=sum(over) / sum(under),
        speedup_low=low,
        speedup_high=high,
        plain_speedup=sum(over) / sum(plain),
    )


def time_generate(
    target: Target, prompt_ids: Sequence[int], max_new_tokens: int, stop_ids: Collection[int], config: EvaluationConfig
) -> tuple[float, int]:
    """Wall seconds and new tokens of transformers' own generate(), greedy or at the same temperature."""
    ids_1T = torch.tensor([list(prompt_ids)], device=target.device)
    sampling = {"do_sample": True, "temperature": config.temperature, "top_k": 0, "top_p": 1.0} if config.temperature else {"do_sample": False}
    settings = GenerationConfig(max_new_tokens=max_new_tokens, eos_token_id=sorted(stop_ids) or None, pad_token_id=0, **sampling)
    begin = time_on(torch.device(target.device))
    out_1T = target.model.generate(ids_1T, attention_mask=torch.ones_like(ids_1T), generation_config=settings)
    return time_on(torch.device(target.device)) - begin, out_1T.shape[1] - ids_1T.shape[1]


def _per(seconds: float, count: int) -> float | None:
    return seconds / count if count else None
