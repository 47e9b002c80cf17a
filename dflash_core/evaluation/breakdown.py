"""Acceptance by set, by category, by place in the answer and by length of the prompt, from the rounds of each prompt.

Dims: P prompts, K block slots incl. anchor.
"""

from collections.abc import Sequence

from dflash_core.evaluation.acceptance import Acceptance, histogram_PK, summarise
from dflash_core.evaluation.records import PromptRecord

SHORTEST_BIN = 32  # tokens; each bin is twice as wide as the one before


def by_set(prompts: Sequence[PromptRecord], block_size: int, samples: int) -> dict[str, Acceptance]:
    """Sets in the order they were measured in."""
    names = list(dict.fromkeys(prompt.set_name for prompt in prompts))
    return {name: _summary([p.rounds for p in prompts if p.set_name == name], block_size, samples) for name in names}


def by_prompt_length(prompts: Sequence[PromptRecord], block_size: int, samples: int) -> dict[str, Acceptance]:
    """Prompts of up to 31 tokens, 32 to 63, 64 to 127 and so on."""
    bins: dict[int, list[tuple[int, ...]]] = {}
    for prompt in prompts:
        bins.setdefault(_bin_of(prompt.num_prompt_tokens), []).append(prompt.rounds)
    return {_label(start): _summary(rounds, block_size, samples) for start, rounds in sorted(bins.items())}


def by_position(prompts: Sequence[PromptRecord], block_size: int, samples: int) -> dict[str, Acceptance]:
    """Rounds by where in the answer their first token stands: in its first 31 tokens, at 32 to 63 and so on."""
    bins: dict[int, list[list[int]]] = {}
    for prompt in prompts:
        parts: dict[int, list[int]] = {}
        index = 1  # token 0 is the prefill's
        for committed in prompt.rounds:
            parts.setdefault(_bin_of(index), []).append(committed)
            index += committed
        for start, rounds in parts.items():
            bins.setdefault(start, []).append(rounds)
    return {_label(start): _summary(rounds, block_size, samples) for start, rounds in sorted(bins.items())}


def _summary(rounds: Sequence[Sequence[int]], block_size: int, samples: int) -> Acceptance:
    return summarise(histogram_PK(rounds, block_size), samples)


def _bin_of(tokens: int) -> int:
    """The first number of its bin: 0, 32, 64, 128, ..."""
    return 0 if tokens < SHORTEST_BIN else 1 << (tokens.bit_length() - 1)


def _label(start: int) -> str:
    return f"{start} to {2 * max(start, SHORTEST_BIN // 2) - 1}"
