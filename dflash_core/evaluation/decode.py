"""Real decoding: the target alone, and the target with a drafter, by the same rule of choosing tokens.

Acceptance length is counted as in gpt-fast and z-lab: a round is one target forward after the prefill,
and it commits the accepted drafts plus one token of the target's own. The prefill and its token aren't
counted, tokens past a stop token or the limit aren't committed, and the round they cut counts with what
it committed.
Dims: T, Q tokens of one forward, K block slots incl. anchor, D hidden, F features width, V vocab; batch is 1.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from dflash_core.drafter.model import Drafter
from dflash_core.evaluation.rules import GREEDY, Draft, Rule
from dflash_core.target.continuation import Continuation
from dflash_core.target.model import Target


@dataclass(frozen=True)
class TimeSplit:
    """Wall seconds of one decoding; `overhead` is what is in neither the target nor the drafter."""

    total: float
    prefill: float
    target: float
    drafter: float

    @property
    def overhead(self) -> float:
        """Seconds of bookkeeping: cropping, copying. Choosing tokens counts with the network whose logits they come from."""
        return self.total - self.prefill - self.target - self.drafter


@dataclass(frozen=True)
class Decoded:
    """What one prompt was answered with.

    Attributes:
        tokens: new tokens; the first is the prefill's.
        rounds: tokens committed by each target forward after the prefill; all 1 for the target alone.
        drafts: the K - 1 proposals of each round, empty for the target alone.
        seconds: where the time went.
    """

    tokens: tuple[int, ...]
    rounds: tuple[int, ...]
    drafts: tuple[tuple[int, ...], ...]
    seconds: TimeSplit


class _Clock:
    """Adds up wall time by part; waits for the device, else a kernel's time lands on the next part."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.parts = device, {"prefill": 0.0, "target": 0.0, "drafter": 0.0}
        self.begin = self.last = time_on(device)

    def skip(self) -> None:
        """Start a part here; what lies before stays overhead."""
        self.last = time_on(self.device)

    def add(self, part: str) -> None:
        """Book the time since the last `skip` or `add` on `part`."""
        now = time_on(self.device)
        self.parts[part] += now - self.last
        self.last = now

    def split(self) -> TimeSplit:
        """The sums so far."""
        return TimeSplit(total=time_on(self.device) - self.begin, **self.parts)


def time_on(device: torch.device) -> float:
    """Seconds of the clock, when all that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@torch.inference_mode()
def target_decode(
    target: Target, prompt_ids: Sequence[int], max_new_tokens: int, stop_ids: Collection[int], rule: Rule = GREEDY
) -> Decoded:
    """Decode with the target alone, one cached forward a token.

    Args:
        target: the frozen target.
        prompt_ids: at least one token id.
        max_new_tokens: limit, the prefill's token included.
        stop_ids: a token among these is committed and ends the answer.
        rule: chooses tokens; one that draws is made for this answer alone.
    """
    clock = _Clock(torch.device(target.device))
    with Continuation(target, ()) as text:
        tokens = [rule.choose(text.prefill(prompt_ids)[0][-1])]
        clock.add("prefill")
        while len(tokens) < max_new_tokens and tokens[-1] not in stop_ids:
            clock.skip()
            logits_1V, _ = text.step(tokens[-1:])
            text.drop(0)
            tokens.append(rule.choose(logits_1V[0]))
            clock.add("target")
    return Decoded(tuple(tokens), (1,) * (len(tokens) - 1), (), clock.split())


@torch.inference_mode()
def speculative_decode(
    target: Target,
    drafter: Drafter,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    stop_ids: Collection[int],
    block_size: int | None = None,
    rule: Rule = GREEDY,
) -> Decoded:
    """Decode with drafted blocks that the target verifies; greedily, the tokens are those of `target_decode`.

    The anchor at position a sees the features of positions before a (dflash_spec.md 0.4), so a round hands the
    drafter only the rows that the round before committed. The drafter always fills the whole block, near the
    limit too: block attention has both directions, and a shorter block would draft other tokens than the chain
    walk does. The target verifies only what can still be committed.

    Args:
        target: the frozen target.
        drafter: of that target, on the same device and in the same dtype.
        prompt_ids: at least one token id.
        max_new_tokens: limit, the prefill's token included.
        stop_ids: a token among these is committed and ends the answer.
        block_size: K, at most the trained one (its default).
        rule: drafts and accepts; one that draws is made for this answer alone.
    """
    layer_ids, num_slots = drafter.spec.target_layer_ids, resolve_block_size(drafter, block_size)
    clock, drafter_cache = _Clock(torch.device(target.device)), drafter.new_cache()
    with Continuation(target, layer_ids) as text:
        logits_QV, features_1QF = text.prefill(prompt_ids)
        tokens, rounds, drafts = [rule.choose(logits_QV[-1])], [], []
        clock.add("prefill")
        while len(tokens) < max_new_tokens and tokens[-1] not in stop_ids:
            clock.skip()
            draft = propose_tokens(target, drafter, features_1QF, tokens[-1], drafter_cache, num_slots, rule)
            clock.add("drafter")
            verified = [tokens[-1], *draft.tokens][: max_new_tokens - len(tokens)]
            logits_QV, features_1QF = text.step(verified)
            committed = until_stop(rule.verify(draft, logits_QV), stop_ids)
            clock.add("target")
            tokens += committed
            rounds.append(len(committed))
            drafts.append(draft.tokens)
            text.drop(len(verified) - len(committed))
            features_1QF = features_1QF[:, : len(committed)]  # the anchor's row and those of the accepted drafts
    return Decoded(tuple(tokens), tuple(rounds), tuple(drafts), clock.split())


def propose_tokens(
    target: Target,
    drafter: Drafter,
    features_1TF: torch.Tensor,
    anchor_id: int,
    drafter_cache: object,
    block_size: int,
    rule: Rule = GREEDY,
) -> Draft:
    """Draft the K - 1 tokens after the anchor; `features_1TF` are the rows committed since the last call."""
    ids_1K = _row([anchor_id] + [drafter.spec.mask_token_id] * (block_size - 1), target)
    embeds_1KD = target.embed(ids_1K)
    hidden_1KD = drafter.propose(features_1TF, embeds_1KD, drafter_cache)
    return rule.draft(head_logits(hidden_1KD[0, 1:], target.head_weight_VD))


def head_logits(hidden_ND: torch.Tensor, head_weight_VD: torch.Tensor) -> torch.Tensor:
    """Draft logits [N, V] in the drafter's dtype, without the softcap: it is monotone, so the best token is the same."""
    return functional.linear(hidden_ND, head_weight_VD.to(hidden_ND.dtype))


def until_stop(tokens: list[int], stop_ids: Collection[int]) -> list[int]:
    """Nothing after the first stop token is committed."""
    return next((tokens[: index + 1] for index, token in enumerate(tokens) if token in stop_ids), tokens)


def resolve_block_size(drafter: Drafter, block_size: int | None) -> int:
    """K to decode with: the trained one, or a smaller one (a block trained large works small, not the reverse)."""
    trained = drafter.spec.block_size
    chosen = trained if block_size is None else block_size
    assert 2 <= chosen <= trained, (chosen, trained)
    return chosen


def _row(ids: Sequence[int], target: Target) -> torch.Tensor:
    """Ids as one row, int64 [1, T], where the target is."""
    return torch.tensor([list(ids)], dtype=torch.long, device=target.device)
