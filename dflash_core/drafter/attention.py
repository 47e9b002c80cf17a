"""Attention of anchored blocks: the fast grouped path, beside the masked reference that defines it.

A block at anchor a has K slots at positions a..a+K-1. Each of its queries sees the context rows at
positions < a, strictly, and the K slots of its own block; never another block. A sliding layer with
window W sees, at slot k, context rows >= a + k - (W - 1), and of its block the slots <= k (the rule of
the serving engines: dflash_spec.md 1.4).

The reference scores every query against every context row and every block, so it grows with the
square of the anchors. The fast path takes anchors in groups of neighbours: a group scores the context
before its last anchor only, and each block its own slots, so time and memory are linear in anchors.

Query heads that share a key head are folded into the query rows, so keys are never repeated.

Dims: B batch rows, H key/value heads, A anchors, K block slots, T context rows, d head width,
R query rows of a block = query slots * query heads a key head (slot-major).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

# Query rows of one group on an accelerator, where a group also scores the slots of its fellow blocks
# and masks them; few rows keep that waste below the context's share.
ACCELERATOR_GROUP_ROWS = 512
# On a CPU, the rows at which torch's flash kernel takes its widest tiles (256 rows from 768 on).
CPU_GROUP_ROWS = 768
# Context rows before a group's first anchor from which a call of their own, without a mask, is worth it.
MIN_FREE_ROWS = 64


@dataclass(frozen=True)
class Group:
    """Anchors [start, stop) of one batch row; `lowest` and `highest` are the extremes of their positions."""

    row: int
    start: int
    stop: int
    lowest: int
    highest: int


@dataclass(frozen=True)
class Blocks:
    """What the masks of all layers follow from: where the blocks are, and which query rows they have."""

    anchors_BA: Tensor
    slots_R: Tensor
    groups: tuple[Group, ...]

    @classmethod
    def plan(cls, anchors_BA: Tensor, num_slots: int, heads_per_key: int, first_slot: int = 0) -> "Blocks":
        """Group neighbours. Right for any order of the anchors, fast where each row is sorted.

        Args:
            num_slots: K; queries are the slots from `first_slot` on.
            heads_per_key: query heads that share one key head.
        """
        device = anchors_BA.device
        slots_R = torch.arange(first_slot, num_slots, device=device).repeat_interleave(heads_per_key)
        rows = CPU_GROUP_ROWS if device.type == "cpu" else ACCELERATOR_GROUP_ROWS
        size = -(-rows // len(slots_R))
        groups = []
        for row, anchors in enumerate(anchors_BA.tolist()):
            for start in range(0, len(anchors), size):
                part = anchors[start : start + size]
                groups.append(Group(row, start, start + len(part), min(part), max(part)))
        return cls(anchors_BA, slots_R, tuple(groups))


def reference_attention(
    q_BHARd: Tensor,
    k_BHTd: Tensor,
    v_BHTd: Tensor,
    block_k_BHAKd: Tensor,
    block_v_BHAKd: Tensor,
    blocks: Blocks,
    window: int | None,
) -> Tensor:
    """The definition: one dense softmax over all context rows and all blocks, masked. Returns out_BHARd."""
    B, _, A, R, d = q_BHARd.shape
    T, K = k_BHTd.shape[2], block_k_BHAKd.shape[3]
    device = q_BHARd.device
    keys_BHNd = torch.cat((k_BHTd, block_k_BHAKd.flatten(2, 3)), dim=2)
    values_BHNd = torch.cat((v_BHTd, block_v_BHAKd.flatten(2, 3)), dim=2)
    context_BART = context_mask(blocks.anchors_BA, blocks.slots_R, torch.arange(T, device=device), window)
    own_RK = block_mask(blocks.slots_R, K, window)
    same_AA = torch.eye(A, dtype=torch.bool, device=device)
    own_ARAK = same_AA[:, None, :, None] & own_RK[None, :, None, :]
    visible_BARN = torch.cat((context_BART, own_ARAK.reshape(1, A, R, A * K).expand(B, A, R, A * K)), dim=-1)
    scores_BHARN = torch.einsum("bhard,bhnd->bharn", q_BHARd, keys_BHNd).float() * d**-0.5
    weights_BHARN = scores_BHARN.masked_fill(~visible_BARN[:, None], float("-inf")).softmax(dim=-1)
    return torch.einsum("bharn,bhnd->bhard", weights_BHARN.to(values_BHNd.dtype), values_BHNd)


def fast_attention(
    q_BHARd: Tensor,
    k_BHTd: Tensor,
    v_BHTd: Tensor,
    block_k_BHAKd: Tensor,
    block_v_BHAKd: Tensor,
    blocks: Blocks,
    window: int | None,
) -> Tensor:
    """The same as `reference_attention`, linear in the anchors. Returns out_BHARd."""
    if q_BHARd.device.type == "cpu":
        return GroupedAttention.apply(q_BHARd, k_BHTd, v_BHTd, block_k_BHAKd, block_v_BHAKd, blocks, window)
    return sdpa_attention(q_BHARd, k_BHTd, v_BHTd, block_k_BHAKd, block_v_BHAKd, blocks, window)


def sdpa_attention(
    q_BHARd: Tensor,
    k_BHTd: Tensor,
    v_BHTd: Tensor,
    block_k_BHAKd: Tensor,
    block_v_BHAKd: Tensor,
    blocks: Blocks,
    window: int | None,
) -> Tensor:
    """The fast path of accelerators: a masked SDPA call a group, which any device and autograd understand."""
    R, K = q_BHARd.shape[3], block_k_BHAKd.shape[3]
    outputs: list[Tensor] = []
    for group in blocks.groups:
        row, anchors = slice(group.row, group.row + 1), slice(group.start, group.stop)
        low, high = context_span(group, blocks, window)
        size = group.stop - group.start
        keys = torch.cat((k_BHTd[row, :, low:high], block_k_BHAKd[row, :, anchors].flatten(2, 3)), dim=2)
        values = torch.cat((v_BHTd[row, :, low:high], block_v_BHAKd[row, :, anchors].flatten(2, 3)), dim=2)
        positions = torch.arange(low, high, device=q_BHARd.device)
        context = context_mask(blocks.anchors_BA[row, anchors], blocks.slots_R, positions, window)[0].flatten(0, 1)
        same = torch.eye(size, dtype=torch.bool, device=q_BHARd.device)
        own = (same[:, None, :, None] & block_mask(blocks.slots_R, K, window)[None, :, None, :]).reshape(size * R, size * K)
        queries = q_BHARd[row, :, anchors].flatten(2, 3)
        out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=torch.cat((context, own), dim=-1))
        outputs.append(out.unflatten(2, (size, R)))
    num_groups = len(blocks.groups) // len(q_BHARd)
    rows = [torch.cat(outputs[i : i + num_groups], dim=2) for i in range(0, len(outputs), num_groups)]
    return torch.cat(rows, dim=0)


def context_span(group: Group, blocks: Blocks, window: int | None) -> tuple[int, int]:
    """Context rows [low, high) outside of which no query of the group sees anything."""
    first_slot = blocks.slots_R[0].item() if window is not None else 0
    return (0 if window is None else max(0, min(group.highest, group.lowest + first_slot - window + 1))), group.highest


def context_mask(anchors_BA: Tensor, slots_R: Tensor, positions_T: Tensor, window: int | None) -> Tensor:
    """visible_BART (R is 1 where every slot of a block sees the same): which context rows a query sees."""
    visible_BART = positions_T < anchors_BA[..., None, None]
    if window is not None:
        visible_BART = visible_BART & (positions_T >= (anchors_BA[..., None] + slots_R - (window - 1))[..., None])
    return visible_BART.expand(*anchors_BA.shape, len(slots_R), len(positions_T))


def block_mask(slots_R: Tensor, num_slots: int, window: int | None) -> Tensor:
    """visible_RK: which slots of its own block a query sees. Sliding layers are causal, and bounded by the window."""
    slots_K = torch.arange(num_slots, device=slots_R.device)
    if window is None:
        return torch.ones(len(slots_R), num_slots, dtype=torch.bool, device=slots_R.device)
    return (slots_K <= slots_R[:, None]) & (slots_K > slots_R[:, None] - window)


class GroupedAttention(torch.autograd.Function):
    """The fast path of CPUs: torch's flash kernel on each group's context, each block's own slots apart.

    The parts of a softmax over disjoint keys merge exactly by their log-sum-exps, and with the merged
    output and log-sum-exp the backward of each part is the plain flash backward of that part alone.
    Autograd can't do this (the kernel's log-sum-exp has no gradient), hence a Function.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q_BHARd: Tensor,
        k_BHTd: Tensor,
        v_BHTd: Tensor,
        block_k_BHAKd: Tensor,
        block_v_BHAKd: Tensor,
        blocks: Blocks,
        window: int | None,
    ) -> Tensor:
        scores_BHARK = _own_scores(q_BHARd, block_k_BHAKd, blocks, window)
        lse_BHAR = scores_BHARK.logsumexp(dim=-1)
        weights_BHARK = (scores_BHARK - lse_BHAR[..., None]).exp().to(q_BHARd.dtype)
        out_BHARd = weights_BHARK @ block_v_BHAKd
        for group, low, high, mask in _context_parts(blocks, window, q_BHARd.dtype):
            at = (slice(group.row, group.row + 1), slice(None), slice(group.start, group.stop))
            keys = (slice(group.row, group.row + 1), slice(None), slice(low, high))
            part, part_lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                q_BHARd[at].flatten(2, 3), k_BHTd[keys], v_BHTd[keys], attn_mask=mask
            )
            part_lse = part_lse.view_as(lse_BHAR[at])
            if mask is not None:  # the kernel reports 0 for a row that sees nothing
                part_lse = part_lse.masked_fill(mask.isinf().all(dim=-1).view(part_lse.shape[2:]), float("-inf"))
            merged = torch.logaddexp(lse_BHAR[at], part_lse)
            before, added = (lse_BHAR[at] - merged).exp(), (part_lse - merged).exp()
            out_BHARd[at] = out_BHARd[at] * before[..., None] + part.view_as(out_BHARd[at]) * added[..., None]
            lse_BHAR[at] = merged
        ctx.save_for_backward(q_BHARd, k_BHTd, v_BHTd, block_k_BHAKd, block_v_BHAKd, out_BHARd, lse_BHAR)
        ctx.blocks, ctx.window = blocks, window
        return out_BHARd

    @staticmethod
    def backward(ctx: Any, grad_BHARd: Tensor) -> tuple[Tensor | None, ...]:
        q_BHARd, k_BHTd, v_BHTd, block_k_BHAKd, block_v_BHAKd, out_BHARd, lse_BHAR = ctx.saved_tensors
        blocks, window = ctx.blocks, ctx.window
        grad_BHARd = grad_BHARd.contiguous()
        scores_BHARK = _own_scores(q_BHARd, block_k_BHAKd, blocks, window)
        weights_BHARK = (scores_BHARK - lse_BHAR[..., None]).exp()
        delta_BHAR = (grad_BHARd * out_BHARd).sum(dim=-1, dtype=torch.float32)
        grad_scores = (grad_BHARd @ block_v_BHAKd.mT).float().sub_(delta_BHAR[..., None]).mul_(weights_BHARK)
        grad_scores = grad_scores.mul_(q_BHARd.shape[-1] ** -0.5).to(q_BHARd.dtype)
        grad_block_k, grad_block_v = grad_scores.mT @ q_BHARd, weights_BHARK.to(q_BHARd.dtype).mT @ grad_BHARd
        # In float32 under bfloat16 as well: many groups add to the same context row, and torch's bfloat16
        # flash backward takes twice as long on a CPU as its float32 one.
        grad_q, grad32_BHARd, q32_BHARd, out32_BHARd, k32_BHTd, v32_BHTd = (
            x.float() for x in (grad_scores @ block_k_BHAKd, grad_BHARd, q_BHARd, out_BHARd, k_BHTd, v_BHTd)
        )
        grad_k, grad_v = torch.zeros_like(k32_BHTd), torch.zeros_like(v32_BHTd)
        for group, low, high, mask in _context_parts(blocks, window, torch.float32):
            at = (slice(group.row, group.row + 1), slice(None), slice(group.start, group.stop))
            keys = (slice(group.row, group.row + 1), slice(None), slice(low, high))
            part_q, part_k, part_v = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                grad32_BHARd[at].flatten(2, 3),
                q32_BHARd[at].flatten(2, 3),
                k32_BHTd[keys],
                v32_BHTd[keys],
                out32_BHARd[at].flatten(2, 3),
                lse_BHAR[at].flatten(2, 3),
                0.0,
                False,
                attn_mask=mask,
            )
            grad_q[at] += part_q.view_as(grad_q[at])
            grad_k[keys] += part_k
            grad_v[keys] += part_v
        dtype = q_BHARd.dtype
        return grad_q.to(dtype), grad_k.to(dtype), grad_v.to(dtype), grad_block_k, grad_block_v, None, None


def _own_scores(q_BHARd: Tensor, block_k_BHAKd: Tensor, blocks: Blocks, window: int | None) -> Tensor:
    """Scaled scores of each block's queries on its own slots, float32."""
    scores_BHARK = (q_BHARd @ block_k_BHAKd.mT).float() * q_BHARd.shape[-1] ** -0.5
    if window is None:
        return scores_BHARK
    return scores_BHARK.masked_fill(~block_mask(blocks.slots_R, block_k_BHAKd.shape[3], window), float("-inf"))


def _context_parts(blocks: Blocks, window: int | None, dtype: torch.dtype) -> Iterator[tuple[Group, int, int, Tensor | None]]:
    """(group, low, high, additive mask or None): context rows that every query of a group sees, and the masked rest."""
    for group in blocks.groups:
        low, high = context_span(group, blocks, window)
        if window is None and group.lowest - low >= MIN_FREE_ROWS:
            yield group, low, group.lowest, None
            low = group.lowest
        if low < high:
            positions = torch.arange(low, high, device=blocks.anchors_BA.device)
            anchors = blocks.anchors_BA[group.row, group.start : group.stop]
            visible = context_mask(anchors, blocks.slots_R, positions, window).flatten(0, 1)
            yield group, low, high, torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, float("-inf"))
