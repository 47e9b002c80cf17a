"""The exact cheap acceptance length: a walk along the target's own greedy text, without decoding it again.

Under greedy decoding the committed text is the target's own greedy text, whatever the drafter proposes. So with
that text and its features at hand no target forward is needed: the drafter runs over all anchor positions at
once, and a walk from the answer's first token, by the accepted lengths, visits just the anchors that real
decoding visits. The LM head, which is most of a small drafter's cost, runs only on the slots that decide: slot 1
of a visited anchor, and slot k + 1 only where slot k matched. All rows walk together, one slot a row and call,
so each call is one matrix product over the rows; in all it's one head row a token.

Held to real decoding by tests; lockstep.py drafts visited anchors only, and benchmarks/chain_walk_speed.py measures all three.
Dims: B rows, T padded tokens, A anchors a row, K block slots incl. anchor, D hidden, F features width, V vocab,
N flat slots.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from dflash_core.drafter.model import Drafter
from dflash_core.evaluation.decode import head_logits, resolve_block_size
from dflash_core.target.ends import TargetEnds

# Slots of one drafter forward. 16k slots of SmolLM2's width need about 0.3 GB of activations.
SLOTS_PER_FORWARD = 16_384
# Anchors of the rows that walk together: bounds what is kept, hidden states of anchors * (K - 1) slots.
ANCHORS_PER_WALK = 16_384


@dataclass(frozen=True)
class WalkRow:
    """One prompt with the target's greedy answer.

    Attributes:
        tokens: prompt, then answer (up to and with the stop token, or to the limit).
        prompt_length: index of the answer's first token, the first anchor.
        features_TF: the target's features, at least of all positions but the last; any float dtype.
    """

    tokens: tuple[int, ...]
    prompt_length: int
    features_TF: torch.Tensor

    def __post_init__(self) -> None:
        last = len(self.tokens) - 1
        assert 1 <= self.prompt_length <= last, (self.prompt_length, len(self.tokens))
        assert len(self.features_TF) >= last, (len(self.features_TF), len(self.tokens))

    @property
    def num_anchors(self) -> int:
        """Positions that can be an anchor: those of the answer but its last."""
        return len(self.tokens) - 1 - self.prompt_length


@dataclass(frozen=True)
class NearTie:
    """A visited slot where the drafter's two best logits nearly agree: `position` is the drafted token's."""

    position: int
    margin: float


@dataclass(frozen=True)
class Walked:
    """Tokens that each round of real decoding commits, and the near ties if they were asked for."""

    rounds: tuple[int, ...]
    near_ties: tuple[NearTie, ...] = ()


@dataclass
class Walker:
    """Where one row stands: slot `slot` of the block at `anchor` decides next."""

    row: WalkRow
    block_size: int
    anchor: int
    slot: int = 1
    rounds: list[int] = field(default_factory=list)
    near_ties: list[NearTie] = field(default_factory=list)

    @property
    def running(self) -> bool:
        """Whether there is still a token to commit."""
        return self.anchor < len(self.row.tokens) - 1

    def advance(self, drafted: int) -> bool:
        """Compare the drafted token of the current slot with the text; True if that ended the round."""
        last = len(self.row.tokens) - 1
        matched = drafted == self.row.tokens[self.anchor + self.slot]
        if matched and self.slot < self.block_size - 1 and self.anchor + self.slot < last:
            self.slot += 1
            return False
        # A miss at slot k commits k - 1 drafts and the target's own token; a full match commits one more.
        committed = min(self.slot + matched, last - self.anchor)
        self.rounds.append(committed)
        self.anchor, self.slot = self.anchor + committed, 1
        return True


@torch.inference_mode()
def chain_walk(
    target: TargetEnds, drafter: Drafter, rows: Sequence[WalkRow], block_size: int | None = None, tie_margin: float | None = None
) -> tuple[Walked, ...]:
    """Rounds of real greedy decoding for every row, from one drafter pass over all anchor positions.

    Args:
        target: lends its embedding and LM head.
        drafter: of that target; its dtype is the dtype of the measure.
        rows: prompts with the target's greedy answers, of any lengths.
        block_size: K, at most the trained one (its default).
        tie_margin: list visited slots whose two best logits are nearer than this; None looks for none, which is faster.

    Returns:
        One `Walked` a row, in the order given. A row whose answer is one token has no round.
    """
    num_slots = resolve_block_size(drafter, block_size)
    walkers = make_walkers(rows, num_slots)
    order = sorted((i for i, row in enumerate(rows) if row.num_anchors), key=lambda i: len(rows[i].tokens))
    for together in _packed(order, rows, ANCHORS_PER_WALK):
        parts, offsets, total = [], {}, 0
        for part in _packed(together, rows, max(1, SLOTS_PER_FORWARD // num_slots)):
            hidden_BASD = _block_hidden(target, drafter, [rows[i] for i in part], num_slots)
            for place, i in enumerate(part):
                offsets[i] = total + place * hidden_BASD.shape[1] * (num_slots - 1)
            parts.append(hidden_BASD.flatten(0, 2))
            total += len(parts[-1])
        _walk_heads(target, torch.cat(parts), [(walkers[i], offsets[i]) for i in together], tie_margin)
    return tuple(Walked(tuple(w.rounds), tuple(w.near_ties)) for w in walkers)


def make_walkers(rows: Sequence[WalkRow], block_size: int) -> list[Walker]:
    """One walker a row, at the answer's first token."""
    return [Walker(row, block_size, row.prompt_length) for row in rows]


def _packed(order: Sequence[int], rows: Sequence[WalkRow], most_anchors: int) -> Iterator[list[int]]:
    """Runs of `order` whose padded anchors stay within the limit; a longer row is alone."""
    part: list[int] = []
    widest = 0
    for i in order:
        widest = max(widest, rows[i].num_anchors)
        if part and (len(part) + 1) * widest > most_anchors:
            yield part
            part, widest = [], rows[i].num_anchors
        part.append(i)
    if part:
        yield part


def _block_hidden(target: TargetEnds, drafter: Drafter, rows: Sequence[WalkRow], num_slots: int) -> torch.Tensor:
    """Final hidden states [B, A, K - 1, D] of the blocks at every anchor position; short rows repeat their last anchor."""
    width = max(row.num_anchors for row in rows)
    steps_A = torch.arange(width, device=target.device)
    anchors_BA = torch.stack([row.prompt_length + steps_A.clamp(max=row.num_anchors - 1) for row in rows])
    features_BTF = padded_features(rows, drafter)
    embeds_BAKD = block_embeds(target, drafter, ids_at(rows, anchors_BA), num_slots, features_BTF.dtype)
    return drafter(features_BTF, embeds_BAKD, anchors_BA, label_slots_only=True)


def block_embeds(target: TargetEnds, drafter: Drafter, ids_BA: torch.Tensor, num_slots: int, dtype: torch.dtype) -> torch.Tensor:
    """The target's embeddings of blocks [id, MASK...], [B, A, K, D]."""
    block_ids_BAK = torch.full((*ids_BA.shape, num_slots), drafter.spec.mask_token_id, device=ids_BA.device)
    block_ids_BAK[..., 0] = ids_BA
    return target.embed(block_ids_BAK).to(dtype)


def ids_at(rows: Sequence[WalkRow], anchors_BA: torch.Tensor) -> torch.Tensor:
    """Token ids at the anchors, int64 [B, A]."""
    picked = [[row.tokens[a] for a in anchors] for row, anchors in zip(rows, anchors_BA.tolist(), strict=True)]
    return torch.tensor(picked, device=anchors_BA.device)


def padded_features(rows: Sequence[WalkRow], drafter: Drafter) -> torch.Tensor:
    """Features [B, T, F] padded on the right with zeros, which no anchor of the row sees, in the drafter's dtype."""
    weight = drafter.fc.weight
    return torch.nn.utils.rnn.pad_sequence([row.features_TF for row in rows], batch_first=True).to(weight.device, weight.dtype)


def _walk_heads(target: TargetEnds, hidden_ND: torch.Tensor, walks: list[tuple[Walker, int]], tie_margin: float | None) -> None:
    """Walk all rows to their ends, one slot a row and call; `walks` gives each row's first slot in `hidden_ND`."""
    head_weight_VD = target.head_weight_VD.to(hidden_ND.dtype)
    while walks := [(walker, offset) for walker, offset in walks if walker.running]:
        picked = [offset + (w.anchor - w.row.prompt_length) * (w.block_size - 1) + w.slot - 1 for w, offset in walks]
        logits_NV = head_logits(hidden_ND[torch.tensor(picked, device=hidden_ND.device)], head_weight_VD)
        if tie_margin is not None:
            _note_ties(logits_NV, walks, tie_margin)
        for (walker, _), token in zip(walks, logits_NV.argmax(dim=-1).tolist(), strict=True):
            walker.advance(token)


def _note_ties(logits_NV: torch.Tensor, walks: list[tuple[Walker, int]], tie_margin: float) -> None:
    """Record the rows whose two best logits are nearer than the margin."""
    best_N2 = logits_NV.float().topk(2, dim=-1).values
    for (walker, _), margin in zip(walks, (best_N2[:, 0] - best_N2[:, 1]).tolist(), strict=True):
        if margin < tie_margin:
            walker.near_ties.append(NearTie(walker.anchor + walker.slot, margin))
