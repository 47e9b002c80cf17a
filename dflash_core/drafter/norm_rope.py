"""RMSNorm and RoPE as tensor functions, in float32 as Qwen3 computes them."""

from torch import Tensor

from dflash_core.drafter.rope import rotate


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., N], weight [N]."""
    x32 = x.float()
    return weight * (x32 * (x32.square().mean(-1, keepdim=True) + eps).rsqrt()).to(x.dtype)


def norm_rotate(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last axis, then RoPE."""
    return rotate(rms_norm(x, weight, eps).float(), cos, sin).to(x.dtype)
