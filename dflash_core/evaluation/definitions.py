"""Acceptance as other projects define it, beside ours: the same rounds give figures that differ by a tenth and more."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dflash_core.evaluation.acceptance import Acceptance
from dflash_core.evaluation.decode import Decoded
from dflash_core.evaluation.records import Definition

if TYPE_CHECKING:
    from dflash_core.evaluation.compare import PromptResult


def definitions(
    overall: Acceptance, categories: dict[str, Acceptance], results: "Sequence[PromptResult]", greedy: bool
) -> tuple[Definition, ...]:
    """Each with who counts so. What a rule that samples leaves undefined has no value."""
    marginals = slot_marginals([result.speculative for result in results], len(overall.histogram)) if greedy else ()
    taus = [found.tau for found in categories.values() if found.tau is not None]
    num_prefills = len(results)
    forwards, tokens = overall.num_rounds + num_prefills, overall.num_tokens + num_prefills
    rows = (
        ("τ: tokens over target forwards, bonus included", overall.tau, "ours; DFlash paper, DeepSpec, SGLang, vLLM's mean length"),
        ("mean of prompts' own τ", overall.tau_prompt_mean, "z-lab's benchmark"),
        ("mean of categories' own τ", sum(taus) / len(taus) if taus else None, "tables with an average column"),
        ("without the bonus token", overall.tau_without_bonus, "speculators' eal"),
        ("prefill and its token counted", tokens / forwards if forwards else None, "engines that count every forward"),
        ("1 + product of marginals", _product(marginals), "from the accuracy of each slot, as if slots were independent"),
        ("share of drafts accepted", _share(overall), "vLLM's acceptance rate"),
    )
    return tuple(Definition(name=name, value=value, used_by=used_by) for name, value, used_by in rows)


def slot_marginals(decoded: Sequence[Decoded], block_size: int) -> tuple[float | None, ...]:
    """Share of right drafts of each slot 1..K-1 on its own, whatever came before it in its block.

    Greedily, the text after a miss is the one that the target would have gone on with, so a later slot's draft can be held
    to it as well.
    """
    right, seen = [0] * (block_size - 1), [0] * (block_size - 1)
    for answer in decoded:
        start = 1
        for committed, drafts in zip(answer.rounds, answer.drafts, strict=True):
            for slot, (draft, token) in enumerate(zip(drafts, answer.tokens[start:], strict=False)):
                seen[slot] += 1
                right[slot] += draft == token
            start += committed
    return tuple(hits / count if count else None for hits, count in zip(right, seen, strict=True))


def _product(marginals: Sequence[float | None]) -> float | None:
    known = [share for share in marginals if share is not None]
    return 1 + sum(math.prod(known[:slot]) for slot in range(1, len(known) + 1)) if known else None


def _share(overall: Acceptance) -> float | None:
    return 1 - overall.num_wasted / overall.num_drafted if overall.num_drafted else None
