"""The chunked head against all logits at once."""

import pytest
import torch

from dflash_core.drafter import head_loss
from dflash_core.drafter.head_loss import head_cross_entropy, reference_cross_entropy

N, D, V = 37, 16, 50


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden, head = (torch.randn(n, D, generator=generator) for n in (N, V))
    return hidden.requires_grad_(), head, torch.randint(0, V, (N,), generator=generator), torch.randn(N, generator=generator)


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("chunk_rows", [1, 10, 37, 100, None])
def test_equals_reference(softcap: float | None, chunk_rows: int | None) -> None:
    hidden, head, labels, upstream = inputs()
    ours = head_cross_entropy(hidden, head, labels, softcap, chunk_rows)
    reference = reference_cross_entropy(hidden, head, labels, softcap)
    torch.testing.assert_close(ours.ce_N, reference.ce_N, atol=1e-5, rtol=1e-5)
    assert torch.equal(ours.predicted_N, reference.predicted_N)
    gradients = [torch.autograd.grad(output.ce_N, hidden, upstream)[0] for output in (ours, reference)]
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-5)


def test_bfloat16_autocast_keeps_a_float32_loss() -> None:
    hidden, head, labels, _ = inputs()
    with torch.autocast("cpu", torch.bfloat16):
        output = head_cross_entropy(hidden, head, labels)
    assert output.ce_N.dtype == torch.float32
    torch.testing.assert_close(output.ce_N, reference_cross_entropy(hidden, head, labels).ce_N, atol=0.1, rtol=0.02)
    assert torch.autograd.grad(output.ce_N.sum(), hidden)[0].dtype == torch.float32


def test_far_logits_stay_finite() -> None:
    """A label whose probability underflows float32 (logits 300 apart) has a finite loss and gradient."""
    hidden = torch.tensor([[300.0]], requires_grad=True)
    output = head_cross_entropy(hidden, torch.tensor([[1.0], [0.0]]), torch.tensor([1]))
    assert output.ce_N.item() == pytest.approx(300.0)
    assert torch.autograd.grad(output.ce_N.sum(), hidden)[0].item() == pytest.approx(1.0)


def test_no_rows() -> None:
    output = head_cross_entropy(torch.zeros(0, D, requires_grad=True), torch.zeros(V, D), torch.zeros(0, dtype=torch.int64))
    assert output.ce_N.shape == output.predicted_N.shape == (0,)


def test_logits_exist_one_chunk_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The widest tensor of the forward is a chunk, whatever N is."""
    hidden, head, labels, _ = inputs()
    monkeypatch.setattr(head_loss, "CHUNK_ELEMENTS", 4 * V)
    monkeypatch.setattr(head_loss, "MIN_CHUNK_ROWS", 1)
    widest = []
    softmax = torch.softmax
    monkeypatch.setattr(torch, "softmax", lambda x, **kwargs: widest.append(x.numel()) or softmax(x, **kwargs))
    head_cross_entropy(hidden, head, labels)
    assert max(widest) == 4 * V and len(widest) == 10
