"""Hand-written backwards of norm and rotation against autograd."""

import pytest
import torch

from dflash_core.drafter.norm_rope import norm_rotate, reference_norm_rotate, rms_norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norm_rotate_equals_reference(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 5, 4, 8).to(dtype).requires_grad_()
    weight = torch.rand(8, requires_grad=True)
    angles = torch.randn(2, 3, 5, 1, 4)
    upstream = torch.randn(x.shape).to(dtype)
    results = []
    for function in (norm_rotate, reference_norm_rotate):
        out = function(x, weight, angles.cos(), angles.sin(), 1e-6)
        assert out.dtype == dtype
        results.append([out, *torch.autograd.grad(out, (x, weight), upstream)])
    tolerance = 1e-5 if dtype == torch.float32 else 0.03
    for ours, reference in zip(*results, strict=True):
        torch.testing.assert_close(ours, reference, atol=tolerance, rtol=tolerance)


def test_rms_norm_in_bfloat16_rounds_before_the_weight() -> None:
    """As Qwen3 does, where weights are bfloat16 too: weight * (x / rms).to(bfloat16)."""
    x, weight = torch.randn(5, 16).bfloat16(), torch.rand(16).bfloat16()
    x32 = x.float()
    expected = weight * (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + 1e-6)).to(torch.bfloat16)
    assert torch.equal(rms_norm(x, weight, 1e-6), expected)


def test_zero_row_has_finite_gradient() -> None:
    x = torch.zeros(1, 8, requires_grad=True)
    (gradient,) = torch.autograd.grad(rms_norm(x, torch.ones(8, requires_grad=True), 1e-6).sum(), x)
    assert torch.isfinite(gradient).all()
