"""The rule by which drafts are accepted: greedy, and two that are lossless at a temperature.

Every token that a rule commits follows the target's own distribution, whatever the drafter is.

Dims: S drafted slots, Q = verified drafts + 1, N flat rows, V vocab.
Probabilities are float64: a float32 cumulated sum over 150,000 tokens is off by more than its rare tokens' shares.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dflash_core.config import EvaluationConfig


@dataclass(frozen=True)
class Draft:
    """The tokens of one block's slots, and the distributions that they were drawn from where the rule needs them."""

    tokens: tuple[int, ...]
    q_SV: Tensor | None = None


class Rule(ABC):
    """How tokens follow from logits. A rule that draws numbers is made anew for each answer."""

    @abstractmethod
    def choose(self, logits_V: Tensor) -> int:
        """The target's own next token."""

    @abstractmethod
    def draft(self, logits_SV: Tensor) -> Draft:
        """Proposals from the drafter's logits, one a slot."""

    @abstractmethod
    def verify(self, draft: Draft, logits_QV: Tensor) -> list[int]:
        """Tokens that a round commits: the accepted among the first Q - 1 drafts, and one of the target's own.

        Args:
            draft: as `draft` gave it; near the limit, only its first slots were verified.
            logits_QV: the target's, after the anchor and after each verified draft.
        """


class Greedy(Rule):
    """The best token: what is committed is the target's own greedy text."""

    def choose(self, logits_V: Tensor) -> int:
        return int(logits_V.argmax())

    def draft(self, logits_SV: Tensor) -> Draft:
        return Draft(tuple(logits_SV.argmax(dim=-1).tolist()))

    def verify(self, draft: Draft, logits_QV: Tensor) -> list[int]:
        return matching(draft.tokens, logits_QV.argmax(dim=-1).tolist())


class SampleAndMatch(Rule):
    """The target draws at every position, and drafts are accepted while they are what it drew.

    All that is committed was drawn by the target, so no distribution of the drafter's matters. The best token is drafted:
    it is drawn with probability p(best), and a drafted sample would match with the mean of p over q, which is no more.
    The number that token i of an answer is drawn with is the same with and without a drafter, hence so is the text.
    """

    def __init__(self, temperature: float, generator: np.random.Generator) -> None:
        self._temperature, self._generator = temperature, generator
        self._ahead: list[float] = []  # numbers of tokens that were verified and not committed

    def choose(self, logits_V: Tensor) -> int:
        return self._drawn(logits_V[None], 1)[0]

    def draft(self, logits_SV: Tensor) -> Draft:
        return Draft(tuple(logits_SV.argmax(dim=-1).tolist()))

    def verify(self, draft: Draft, logits_QV: Tensor) -> list[int]:
        committed = matching(draft.tokens, self._drawn(logits_QV, 0))
        del self._ahead[: len(committed)]
        return committed

    def _drawn(self, logits_NV: Tensor, num_used: int) -> list[int]:
        missing = max(0, len(logits_NV) - len(self._ahead))
        self._ahead += self._generator.random(missing).tolist()
        tokens = draw(probabilities(logits_NV, self._temperature), self._ahead[: len(logits_NV)])
        del self._ahead[:num_used]
        return tokens


class Rejection(Rule):
    """Drafts are drawn from the drafter's distribution q and accepted with probability min(1, p/q).

    The first refused one is replaced by a draw from max(p - q, 0), normalised. The slots of a block are drawn independently
    of one another, which is the drafter's true distribution: it fills all slots at once.
    """

    def __init__(self, temperature: float, generator: np.random.Generator, softcap: float | None = None) -> None:
        self._temperature, self._generator, self._softcap = temperature, generator, softcap

    def choose(self, logits_V: Tensor) -> int:
        return draw(probabilities(logits_V[None], self._temperature), self._generator.random(1))[0]

    def draft(self, logits_SV: Tensor) -> Draft:
        # Draft logits come without the target's cap, which the best token needn't; a distribution near the target's does.
        capped_SV = logits_SV if self._softcap is None else self._softcap * torch.tanh(logits_SV / self._softcap)
        q_SV = probabilities(capped_SV, self._temperature)
        return Draft(tuple(draw(q_SV, self._generator.random(len(q_SV)))), q_SV)

    def verify(self, draft: Draft, logits_QV: Tensor) -> list[int]:
        p_QV, count = probabilities(logits_QV, self._temperature), len(logits_QV) - 1
        accepted = self._num_accepted(draft, p_QV)
        own_V = p_QV[accepted] if accepted == count else self._residual(p_QV[accepted], draft.q_SV[accepted])
        return [*draft.tokens[:accepted], draw(own_V[None], self._generator.random(1))[0]]

    def _num_accepted(self, draft: Draft, p_QV: Tensor) -> int:
        count = len(p_QV) - 1
        ids_S1 = torch.tensor(draft.tokens[:count], dtype=torch.long, device=p_QV.device)[:, None]
        p_S, q_S = (table[:count].gather(1, ids_S1)[:, 0].tolist() for table in (p_QV, draft.q_SV))
        coins_S = self._generator.random(count)
        return next((slot for slot in range(count) if coins_S[slot] * q_S[slot] >= p_S[slot]), count)

    @staticmethod
    def _residual(p_V: Tensor, q_V: Tensor) -> Tensor:
        """What the drafter gives too little of; `draw` normalises it."""
        return (p_V - q_V).clamp(min=0)


GREEDY = Greedy()


def make_rule(config: EvaluationConfig, sample_id: str, softcap: float | None) -> Rule:
    """The rule for one answer. Its numbers follow from seed and sample id, whatever else is measured and in which order."""
    if config.temperature == 0:
        return GREEDY
    digest = hashlib.sha256(f"{config.seed}:{sample_id}".encode()).digest()
    generator = np.random.default_rng(int.from_bytes(digest[:16]))
    if config.rule == "match":
        return SampleAndMatch(config.temperature, generator)
    return Rejection(config.temperature, generator, softcap)


def matching(drafts: Sequence[int], own: Sequence[int]) -> list[int]:
    """The longest prefix of `drafts` equal to the target's `own` tokens, and its next one; `own` has one for each verified draft, and one more."""
    accepted = 0
    while accepted < len(own) - 1 and drafts[accepted] == own[accepted]:
        accepted += 1
    return list(own[: accepted + 1])


def probabilities(logits_NV: Tensor, temperature: float) -> Tensor:
    """softmax(logits / temperature) in float64."""
    return torch.softmax(logits_NV.double() / temperature, dim=-1)


def draw(weights_NV: Tensor, uniforms_N: Sequence[float] | np.ndarray) -> list[int]:
    """One token a row with probability in proportion to its weight, by the inverse of the cumulated sum."""
    sums_NV = weights_NV.cumsum(dim=-1)
    places_N1 = torch.as_tensor(np.asarray(uniforms_N), device=sums_NV.device)[:, None] * sums_NV[:, -1:]
    # right=True passes over tokens of weight 0. Rounding may put a place on the sum itself, past the last token.
    return torch.searchsorted(sums_NV, places_N1, right=True).clamp(max=sums_NV.shape[1] - 1)[:, 0].tolist()
