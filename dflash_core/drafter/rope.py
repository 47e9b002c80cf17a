"""Rotary position embedding of the drafter.

Dims: B batch rows, N positions, H heads, d head width.
"""

import torch
from torch import Tensor
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from dflash_core.drafter.spec import DrafterSpec


class Rope:
    """cos and sin of positions, always float32.

    Not a module: a buffer of frequencies would be rounded by `drafter.to(torch.bfloat16)`, which at
    position 4,000 turns an angle by several radians.
    """

    def __init__(self, spec: DrafterSpec) -> None:
        scaling = spec.rope_scaling or {"rope_type": "default"}
        config = Qwen3Config(
            hidden_size=spec.hidden_size,
            num_attention_heads=spec.num_heads,
            head_dim=spec.head_dim,
            max_position_embeddings=spec.max_position_embeddings,
            rope_parameters={**scaling, "rope_theta": spec.rope_theta},
        )
        with torch.device("cpu"):  # the drafter may be built under another default device
            embedding = Qwen3RotaryEmbedding(config)
        self._inv_freq = embedding.inv_freq.float()
        self._scaling = float(embedding.attention_scaling)

    def __call__(self, positions_BN: Tensor) -> tuple[Tensor, Tensor]:
        """cos_BNd, sin_BNd (each d/2 wide: both halves of a head share their angles)."""
        angles_BNd = positions_BN[..., None].float() * self._inv_freq.to(positions_BN.device)
        return angles_BNd.cos() * self._scaling, angles_BNd.sin() * self._scaling


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the halves of the last axis (neox layout, as Qwen3): x [..., d]; cos, sin broadcast to [..., d/2]."""
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)
