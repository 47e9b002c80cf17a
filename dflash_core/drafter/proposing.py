"""The drafter as decoding runs it: one block at a time, on kept keys and values of the context.

`Drafter.forward` is the definition. A block of 16 slots is so little work that the calls around it count: context and
block rows go through each projection together, the cache has room for the block behind the context, the single block
needs no mask, and rotations come from a table. On a CPU that is a third of the time of the general path.

Dims: N newly committed rows, K block slots, R = N + K, T context and block rows, D hidden, F features width,
H query heads, G = H / key heads, d head width; batch is 1.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from dflash_core.drafter.attention import block_mask, context_mask
from dflash_core.drafter.layers import Angles, DrafterLayer, RMSNorm

if TYPE_CHECKING:
    from dflash_core.drafter.model import Drafter

_FIRST_ROOM = 256  # rows; doubled whenever they are full


class DrafterCache:
    """Keys and values of the committed context rows of each layer; a block lies behind them until the next one takes its place."""

    def __init__(self, drafter: "Drafter") -> None:
        self._rope = drafter.rope
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._tables: Angles | None = None
        self._room = 0
        self.length = 0  # committed rows, which is also the position of the next anchor

    def make_room(self, drafter: "Drafter", num_rows: int) -> None:
        """Let `num_rows` more fit; to be called before the layers of a block."""
        if self.length + num_rows <= self._room:
            return
        self._room = max(_FIRST_ROOM, 2 * self._room, self.length + num_rows)
        weight, spec = drafter.fc.weight, drafter.spec
        fresh = [
            tuple(weight.new_empty(1, spec.num_kv_heads, self._room, spec.head_dim) for _ in ("keys", "values")) for _ in drafter.layers
        ]
        for old, new in zip(self._kept, fresh, strict=False):  # none is old at first
            for part in (0, 1):
                new[part][:, :, : self.length] = old[part][:, :, : self.length]
        self._kept = fresh
        cos, sin = self._rope(torch.arange(self._room, device=weight.device))
        self._tables = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)

    def angles(self, num_rows: int) -> Angles:
        """cos and signed sin, both d wide, of the rows behind the committed ones, for `_rotated`."""
        cos_Td, sin_Td = self._tables
        rows = slice(self.length, self.length + num_rows)
        return cos_Td[rows, None], sin_Td[rows, None]

    def put(self, layer: int, k_1RHd: Tensor, v_1RHd: Tensor) -> tuple[Tensor, Tensor]:
        """Write rows behind the committed ones; gives keys and values [1, heads, T, d] up to them."""
        total = self.length + k_1RHd.shape[1]
        for buffer, rows in zip(self._kept[layer], (k_1RHd, v_1RHd), strict=True):
            buffer[:, :, self.length : total] = rows.transpose(1, 2)
        keys, values = self._kept[layer]
        return keys[:, :, :total], values[:, :, :total]

    def commit(self, num_rows: int) -> None:
        """Keep this many of the rows that were put last; the next ones overwrite the others."""
        self.length += num_rows


@torch.no_grad()
def propose(drafter: "Drafter", new_features_1NF: Tensor, block_embeds_1KD: Tensor, cache: DrafterCache) -> Tensor:
    """See `Drafter.propose`."""
    num_new, num_slots = new_features_1NF.shape[1], block_embeds_1KD.shape[1]
    cache.make_room(drafter, num_new + num_slots)
    angles = cache.angles(num_new + num_slots)
    masks = _masks(drafter, cache.length + num_new, num_slots)
    context_1ND = _normed(drafter.fc(new_features_1NF.to(drafter.fc.weight.dtype)), drafter.hidden_norm)
    x_1KD = block_embeds_1KD.to(drafter.norm.weight.dtype)
    for index, layer in enumerate(drafter.layers):
        x_1KD = _layer(layer, x_1KD, context_1ND, angles, masks.get(layer.self_attn.window), cache, index)
    cache.commit(num_new)
    return _normed(x_1KD, drafter.norm)


def _layer(
    layer: DrafterLayer, x_1KD: Tensor, context_1ND: Tensor, angles: Angles, mask_11RT: Tensor | None, cache: DrafterCache, index: int
) -> Tensor:
    attention, num_slots = layer.self_attn, x_1KD.shape[1]
    heads = (-1, attention.head_dim)
    normed_1KD = _normed(x_1KD, layer.input_layernorm)
    rows_1RD = torch.cat((context_1ND, normed_1KD), dim=1)
    k_1RHd = _rotated(_normed(attention.k_proj(rows_1RD).unflatten(-1, heads), attention.k_norm), angles)
    q_1KHd = _normed(attention.q_proj(normed_1KD).unflatten(-1, heads), attention.q_norm)
    q_1KHd = _rotated(q_1KHd, (angles[0][-num_slots:], angles[1][-num_slots:]))
    keys, values = cache.put(index, k_1RHd, attention.v_proj(rows_1RD).unflatten(-1, heads))
    # Query heads that share a key head become rows of one call: nothing is repeated.
    grouped = q_1KHd.transpose(1, 2).reshape(1, attention.num_kv_heads, -1, attention.head_dim)
    out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask_11RT)
    attended_1KD = attention.o_proj(out.view(1, -1, num_slots, attention.head_dim).transpose(1, 2).flatten(2))
    x_1KD = x_1KD + attended_1KD
    return x_1KD + layer.mlp(_normed(x_1KD, layer.post_attention_layernorm))


def _masks(drafter: "Drafter", anchor: int, num_slots: int) -> dict[int, Tensor]:
    """By window, what the queries [G * K] of a block at `anchor` see; full layers see all rows, so there is no mask for them."""
    masks = {}
    for window in {layer.self_attn.window for layer in drafter.layers} - {None}:
        device = drafter.fc.weight.device
        slots_R = torch.arange(num_slots, device=device).repeat(drafter.spec.num_heads // drafter.spec.num_kv_heads)
        context_11RT = context_mask(torch.tensor([[anchor]], device=device), slots_R, torch.arange(anchor, device=device), window)
        masks[window] = torch.cat((context_11RT, block_mask(slots_R, num_slots, window)[None, None]), dim=-1)
    return masks


def _normed(x: Tensor, norm: RMSNorm) -> Tensor:
    """torch's own RMSNorm takes half the time of ours; in bfloat16 it would round once less than training did."""
    if x.dtype == norm.weight.dtype == torch.float32:
        return F.rms_norm(x, norm.weight.shape, norm.weight, norm.eps)
    return norm(x)


def _rotated(x_1RHd: Tensor, angles: Angles) -> Tensor:
    """`rotate`, with the sign in the table: x * cos + (second half, first half) * signed sin."""
    cos_R1d, sin_R1d = angles
    x1, x2 = x_1RHd.float().chunk(2, dim=-1)
    return torch.cat((x2, x1), dim=-1).mul_(sin_R1d).addcmul_(x_1RHd, cos_R1d).to(x_1RHd.dtype)
