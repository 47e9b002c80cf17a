"""The chain walk by visited anchors only: one block a row and drafter forward, all rows in step.

It drafts 1/τ of the blocks of `chain_walk`, in as many small forwards as the longest row has rounds. The context's keys
and values are computed once.
Dims: B rows still walking, T padded tokens, K block slots incl. anchor, S = K - 1 label slots, D hidden, H key/value
heads, d head width, N deciding rows.
"""

from collections.abc import Sequence

import torch

from dflash_core.drafter.attention import Blocks, reference_attention
from dflash_core.drafter.layers import KnownKeys, Queries
from dflash_core.drafter.model import Drafter
from dflash_core.evaluation.chain_walk import Walked, Walker, WalkRow, block_embeds, make_walkers, padded_features
from dflash_core.evaluation.decode import head_logits, resolve_block_size
from dflash_core.target.model import Target

Context = list[tuple[torch.Tensor, torch.Tensor]]


@torch.inference_mode()
def lockstep_walk(target: Target, drafter: Drafter, rows: Sequence[WalkRow], block_size: int | None = None) -> tuple[Walked, ...]:
    """The rounds that `chain_walk` finds. Arguments as there; all rows' contexts are held at once."""
    num_slots = resolve_block_size(drafter, block_size)
    walkers = make_walkers(rows, num_slots)
    running = [walker for walker in walkers if walker.running]
    if not running:
        return tuple(Walked(()) for _ in walkers)
    head_weight_VD = target.head_weight_VD.to(drafter.fc.weight.dtype)
    context = _context(drafter, padded_features([walker.row for walker in running], drafter))
    while running:
        hidden_BSD = _draft(target, drafter, context, running, num_slots)
        deciding = list(enumerate(running))
        while deciding:
            picked_ND = torch.stack([hidden_BSD[place, walker.slot - 1] for place, walker in deciding])
            drafted = head_logits(picked_ND, head_weight_VD).argmax(dim=-1).tolist()
            deciding = [item for item, token in zip(deciding, drafted, strict=True) if not item[1].advance(token)]
        left = [place for place, walker in enumerate(running) if walker.running]
        if len(left) < len(running):
            running = [running[place] for place in left]
            context = [(k_BHTd[left], v_BHTd[left]) for k_BHTd, v_BHTd in context]
    return tuple(Walked(tuple(walker.rounds)) for walker in walkers)


def _context(drafter: Drafter, features_BTF: torch.Tensor) -> Context:
    """Keys and values [B, H, T, d] of every layer, as Drafter.forward computes them."""
    context_BTD = drafter.hidden_norm(drafter.fc(features_BTF))
    angles = drafter.rope(torch.arange(features_BTF.shape[1], device=features_BTF.device)[None])
    return [layer.self_attn.context(context_BTD, angles) for layer in drafter.layers]


def _draft(target: Target, drafter: Drafter, context: Context, running: Sequence[Walker], num_slots: int) -> torch.Tensor:
    """Hidden states [B, S, D] of one block a row, at each walker's anchor."""
    anchors_B1 = torch.tensor([[walker.anchor] for walker in running], device=context[0][0].device)
    ids_B1 = torch.tensor([[walker.row.tokens[walker.anchor]] for walker in running], device=anchors_B1.device)
    angles = drafter.rope(anchors_B1[..., None] + torch.arange(num_slots, device=anchors_B1.device))
    blocks = Blocks.plan(anchors_B1, num_slots, drafter.spec.num_heads // drafter.spec.num_kv_heads)
    x_B1KD = block_embeds(target, drafter, ids_B1, num_slots, drafter.fc.weight.dtype)
    queries = Queries(angles, blocks, 0, reference_attention)
    for layer, keys_values in zip(drafter.layers, context, strict=True):
        x_B1KD = layer(x_B1KD, KnownKeys(keys_values), queries)
    return drafter.norm(x_B1KD)[:, 0, 1:]
