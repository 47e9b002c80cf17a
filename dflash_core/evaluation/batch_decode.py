"""Real decoding of several prompts at once: what `decode.py` does with one, text by text the same.

A forward of few tokens is bound by reading the weights, so several texts cost little more than one; a block fills that gap as well,
which is why a drafter gains less the more texts there are. Time is booked on the texts that were running, in equal shares.
Dims: B texts, Q tokens of one forward, K block slots incl. anchor, V vocab, F features width.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch

from dflash_core.drafter.model import Drafter
from dflash_core.drafter.ragged import RaggedContext
from dflash_core.evaluation.decode import Decoded, TimeSplit, head_logits, resolve_block_size, time_on, until_stop
from dflash_core.evaluation.rules import Draft, Rule
from dflash_core.target.greedy import rows_to_keep
from dflash_core.target.model import Target
from dflash_core.target.ragged import RaggedTexts

PADDED_TO = 32  # prompts; each new length costs oneDNN about a second
NO_DRAFT = Draft(())


@dataclass
class _Text:
    """One prompt and what it has been answered with so far."""

    prompt: Sequence[int]
    rule: Rule
    tokens: list[int] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    drafts: list[tuple[int, ...]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("total", "prefill", "target", "drafter"), 0.0))

    def commit(self, draft: Draft, logits_QV: torch.Tensor, limit: int, stop_ids: Collection[int]) -> int:
        """Take a round's tokens; gives how many."""
        count = min(len(draft.tokens) + 1, limit - len(self.tokens))  # near the limit, only what can still be committed is verified
        own = self.rule.verify(draft, logits_QV[:count]) if draft.tokens else [self.rule.choose(logits_QV[0])]
        committed = until_stop(own, stop_ids)
        self.tokens += committed
        self.rounds.append(len(committed))
        self.drafts += [draft.tokens] if draft.tokens else []
        return len(committed)

    def decoded(self) -> Decoded:
        """The whole answer."""
        return Decoded(tuple(self.tokens), tuple(self.rounds), tuple(self.drafts), TimeSplit(**self.seconds))


class _Shares:
    """Books wall time on texts, in equal shares of the seconds since it was last asked."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last = time_on(device)

    def book(self, texts: Sequence[_Text], part: str | None = None) -> None:
        """On the total, and on a part."""
        now = time_on(self._device)
        for text in texts:
            for name in filter(None, ("total", part)):
                text.seconds[name] += (now - self._last) / len(texts)
        self._last = now


@torch.inference_mode()
def batch_decode(
    target: Target,
    drafter: Drafter | None,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    stop_ids: Collection[int],
    rules: Sequence[Rule],
    block_size: int | None = None,
) -> list[Decoded]:
    """Decode all prompts together, with a drafter or by the target alone; arguments as for `speculative_decode`.

    Args:
        rules: one a prompt, made for its answer alone.

    Raises:
        ConfigError: see `RaggedTexts`.
    """
    texts = [_Text(prompt, rule) for prompt, rule in zip(prompts, rules, strict=True)]
    batch, shares = _Batch(target, drafter, texts, max_new_tokens, block_size), _Shares(torch.device(target.device))
    with batch.cache:
        batch.prefill()
        shares.book(texts, "prefill")
        while any(running := batch.running(stop_ids)):
            if batch.drop_done(running):
                running = batch.running(stop_ids)
            at_work = [text for text, runs in zip(batch.texts, running, strict=True) if runs]
            shares.book(at_work)
            drafts = batch.draft()
            shares.book(at_work, "drafter" if drafter is not None else None)
            batch.verify(drafts, running, stop_ids)
            shares.book(at_work, "target")
    return [text.decoded() for text in texts]


class _Batch:
    """The texts that are decoded together. Those that are done stay as dead weight until half of the batch is."""

    def __init__(self, target: Target, drafter: Drafter | None, texts: Sequence[_Text], max_new_tokens: int, block_size: int | None) -> None:
        self.target, self.drafter, self.texts, self.limit = target, drafter, list(texts), max_new_tokens
        self.num_slots = resolve_block_size(drafter, block_size) if drafter is not None else 1
        self.longest = -(-max(len(text.prompt) for text in texts) // PADDED_TO) * PADDED_TO
        layer_ids = drafter.spec.target_layer_ids if drafter is not None else ()
        self.cache = RaggedTexts(target, layer_ids, len(texts), self.longest + max_new_tokens + self.num_slots)
        self.context = RaggedContext(drafter, self.cache.rows) if drafter is not None else None

    def prefill(self) -> None:
        """All prompts but for their last tokens in one forward, then those, so that each text's first token follows from one row."""
        if any(len(text.prompt) > 1 for text in self.texts):
            padded = [[*text.prompt[:-1], *[0] * (self.longest - len(text.prompt) + 1)] for text in self.texts]
            self._forward(padded, [len(text.prompt) - 1 for text in self.texts], keep_logits=False)
        logits_B1V = self._forward([text.prompt[-1:] for text in self.texts], [1] * len(self.texts))
        for text, logits_1V in zip(self.texts, logits_B1V, strict=True):
            text.tokens.append(text.rule.choose(logits_1V[0]))

    def _forward(self, ids: Sequence[Sequence[int]], counts: Sequence[int], keep_logits: bool = True) -> torch.Tensor:
        """The first `counts` tokens of each text are committed; the others are padding."""
        logits_BQV, features_BQF = self.cache.step(ids, keep_logits)
        self._advance(features_BQF, counts)
        return logits_BQV

    def _advance(self, features_BQF: torch.Tensor, counts: Sequence[int]) -> None:
        if self.context is not None:
            self.context.write(features_BQF)
        self.cache.rows.advance(counts)

    def draft(self) -> list[Draft]:
        """Each text's proposals."""
        if self.context is None:
            return [NO_DRAFT] * len(self.texts)
        masks = [self.drafter.spec.mask_token_id] * (self.num_slots - 1)
        ids_BK = torch.tensor([[text.tokens[-1], *masks] for text in self.texts], device=self.target.device)
        hidden_BSD = self.context.propose(self.target.embed(ids_BK))[:, 1:]
        logits_BSV = head_logits(hidden_BSD, self.target.head_weight_VD)
        return [text.rule.draft(logits_SV) for text, logits_SV in zip(self.texts, logits_BSV, strict=True)]

    def verify(self, drafts: Sequence[Draft], running: Sequence[bool], stop_ids: Collection[int]) -> None:
        """One target forward. All texts verify whole blocks, so that forwards have one shape."""
        ids = [[text.tokens[-1], *draft.tokens] for text, draft in zip(self.texts, drafts, strict=True)]
        logits_BQV, features_BQF = self.cache.step(ids)
        counts = [
            text.commit(draft, logits_QV, self.limit, stop_ids) if runs else 0
            for text, draft, logits_QV, runs in zip(self.texts, drafts, logits_BQV, running, strict=True)
        ]
        self._advance(features_BQF, counts)

    def running(self, stop_ids: Collection[int]) -> list[bool]:
        """Which texts aren't done."""
        return [len(text.tokens) < self.limit and text.tokens[-1] not in stop_ids for text in self.texts]

    def drop_done(self, running: Sequence[bool]) -> bool:
        """Halve the batch if half is done; gives whether it did."""
        keep = rows_to_keep(running)
        if keep is None:
            return False
        self.texts = [self.texts[i] for i in keep]
        self.cache.select(keep)
        if self.context is not None:
            self.context.select(keep)
        return True
