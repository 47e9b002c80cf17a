"""The modules of one drafter layer, with the parameter names and the numerics of z-lab's code.

Dims: B batch rows, T context rows, A anchors, K block slots, D hidden, H key/value heads,
G query heads a key head, d head width, R = query slots * G.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dflash_core.drafter.attention import Blocks
from dflash_core.drafter.norm_rope import norm_rotate, rms_norm
from dflash_core.drafter.spec import DrafterSpec

AttentionFunction = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Blocks, int | None], Tensor]


KeysValues = tuple[Tensor, Tensor]
Angles = tuple[Tensor, Tensor]  # cos and sin, float32, d/2 wide


class KeysSource(Protocol):
    """Where a layer's keys and values of the context come from."""

    def keys_values(self, attention: "DrafterAttention") -> KeysValues:
        """k_BHTd and v_BHTd for this layer."""
        ...


@dataclass(frozen=True)
class Context:
    """Context rows after `hidden_norm`, from which each layer makes its own keys."""

    rows_BTD: Tensor
    angles: Angles

    def keys_values(self, attention: "DrafterAttention") -> KeysValues:
        return attention.context(self.rows_BTD, self.angles)


@dataclass(frozen=True)
class KnownKeys:
    """Keys and values that are at hand."""

    pair: KeysValues

    def keys_values(self, attention: "DrafterAttention") -> KeysValues:
        return self.pair


@dataclass(frozen=True)
class Queries:
    """Where the blocks are and which of their slots ask: those from `first_slot` on. `angles` are of all slots, [B, A, K]."""

    angles: Angles
    blocks: Blocks
    first_slot: int
    attend: AttentionFunction


class RMSNorm(nn.Module):
    """Qwen3's, computed in float32.

    Under autocast `for_linear` rounds once what would else be cast for each of the linear layers that
    read it, and its gradient back as often (a tenth of a bfloat16 step on a CPU).
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor, for_linear: bool = False) -> Tensor:
        autocast = for_linear and torch.is_autocast_enabled(x.device.type)
        return rms_norm(x, self.weight, self.eps, torch.get_autocast_dtype(x.device.type) if autocast else None)


class DrafterAttention(nn.Module):
    """Queries of a block over the context features and the block's own slots; one k_proj and v_proj for both."""

    def __init__(self, spec: DrafterSpec, layer: int) -> None:
        super().__init__()
        self.head_dim, self.num_kv_heads = spec.head_dim, spec.num_kv_heads
        self.heads_per_key = spec.num_heads // spec.num_kv_heads
        self.window = spec.window_of(layer)
        self.q_proj = nn.Linear(spec.hidden_size, spec.num_heads * spec.head_dim, bias=False)
        self.k_proj = nn.Linear(spec.hidden_size, spec.num_kv_heads * spec.head_dim, bias=False)
        self.v_proj = nn.Linear(spec.hidden_size, spec.num_kv_heads * spec.head_dim, bias=False)
        self.o_proj = nn.Linear(spec.num_heads * spec.head_dim, spec.hidden_size, bias=False)
        self.q_norm = RMSNorm(spec.head_dim, spec.rms_norm_eps)
        self.k_norm = RMSNorm(spec.head_dim, spec.rms_norm_eps)

    def context(self, context_BTD: Tensor, angles: tuple[Tensor, Tensor]) -> KeysValues:
        """Keys and values of context rows, k_BHTd and v_BHTd: what a cache keeps."""
        k_BTHd = self.k_proj(context_BTD).unflatten(-1, (self.num_kv_heads, self.head_dim))
        v_BTHd = self.v_proj(context_BTD).unflatten(-1, (self.num_kv_heads, self.head_dim))
        return self._rotated(k_BTHd, self.k_norm, angles).transpose(1, 2), v_BTHd.transpose(1, 2)

    def forward(self, x_BAKD: Tensor, context: KeysValues, queries: Queries) -> Tensor:
        """Attended slots from `queries.first_slot` on, [B, A, K - first_slot, D]."""
        cos, sin = queries.angles
        first_slot = queries.first_slot
        k_BAKHd = self.k_proj(x_BAKD).unflatten(-1, (self.num_kv_heads, self.head_dim))
        v_BAKHd = self.v_proj(x_BAKD).unflatten(-1, (self.num_kv_heads, self.head_dim))
        q_BAKNd = self.q_proj(x_BAKD[:, :, first_slot:]).unflatten(-1, (-1, self.head_dim))
        q_BAKNd = self._rotated(q_BAKNd, self.q_norm, (cos[:, :, first_slot:], sin[:, :, first_slot:]))
        q_BAKHGd = q_BAKNd.unflatten(3, (self.num_kv_heads, self.heads_per_key))
        out_BHARd = queries.attend(
            q_BAKHGd.permute(0, 3, 1, 2, 4, 5).flatten(3, 4),
            *context,
            self._rotated(k_BAKHd, self.k_norm, queries.angles).permute(0, 3, 1, 2, 4),
            v_BAKHd.permute(0, 3, 1, 2, 4),
            queries.blocks,
            self.window,
        )
        out_BAKHGd = out_BHARd.unflatten(3, (-1, self.heads_per_key)).permute(0, 2, 3, 1, 4, 5)
        return self.o_proj(out_BAKHGd.flatten(3))

    @staticmethod
    def _rotated(x: Tensor, norm: RMSNorm, angles: tuple[Tensor, Tensor]) -> Tensor:
        """Per-head norm, then RoPE; x [..., heads, d], angles [..., d/2]."""
        cos, sin = angles
        return norm_rotate(x, norm.weight, cos[..., None, :], sin[..., None, :], norm.eps)


class DrafterMLP(nn.Module):
    """SiLU-gated, no bias."""

    def __init__(self, spec: DrafterSpec) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=False)
        self.up_proj = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=False)
        self.down_proj = nn.Linear(spec.intermediate_size, spec.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DrafterLayer(nn.Module):
    """Pre-norm attention and MLP, each added to the residual."""

    def __init__(self, spec: DrafterSpec, layer: int) -> None:
        super().__init__()
        self.self_attn = DrafterAttention(spec, layer)
        self.mlp = DrafterMLP(spec)
        self.input_layernorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)

    def forward(self, x_BAKD: Tensor, context: KeysSource, queries: Queries) -> Tensor:
        """Slots from `queries.first_slot` on; all slots of the input are keys.

        The context's keys are made here, not by the caller, so that all parameters of a layer are read within its
        own forward: sharding gathers them there.
        """
        keys_values = context.keys_values(self.self_attn)
        attended = self.self_attn(self.input_layernorm(x_BAKD, for_linear=True), keys_values, queries)
        x_BAKD = x_BAKD[:, :, queries.first_slot :] + attended
        return x_BAKD + self.mlp(self.post_attention_layernorm(x_BAKD, for_linear=True))
