"""Cross-entropy through the target's frozen LM head, without ever holding all logits.

Rows go through the head in chunks, and the gradient with respect to the hidden state is formed while
the chunk's probabilities are at hand: cross-entropy has the same gradient whatever its weight, so the
backward only scales each row by its weight. There is no recompute, and the peak is one chunk of logits
(16 MiB, or 128 rows) instead of all rows (1 GiB for 4,096 rows of 65,536 words).

Dims: N flat label slots, D hidden, V vocabulary, C rows of a chunk.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Logits of one chunk. 2**22 floats are 16 MiB: larger chunks fall out of a CPU's cache, smaller ones
# make thin matrix products.
CHUNK_ELEMENTS = 2**22
# With fewer rows than this, reading the head's weight costs more than multiplying by it.
MIN_CHUNK_ROWS = 128


@dataclass(frozen=True)
class HeadOutput:
    """What the head says of each label slot."""

    ce_N: Tensor
    predicted_N: Tensor


def head_cross_entropy(
    hidden_ND: Tensor, head_weight_VD: Tensor, labels_N: Tensor, softcap: float | None = None, chunk_rows: int | None = None
) -> HeadOutput:
    """Cross-entropy (nats) and argmax of softmax(hidden @ head^T) for each row.

    Args:
        hidden_ND: after the drafter's final norm; only the slots that have a label, for speed.
        head_weight_VD: frozen. Under autocast the products run in its dtype, else in hidden's.
        labels_N: int64.
        softcap: the target's final_logit_softcapping c: logits become c * tanh(logits / c).
        chunk_rows: rows of one chunk; None: `CHUNK_ELEMENTS` / V, at least `MIN_CHUNK_ROWS`.

    Returns:
        ce_N float32, differentiable with respect to hidden_ND only; predicted_N int64.
    """
    device = hidden_ND.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_ND.dtype
    rows = chunk_rows or max(MIN_CHUNK_ROWS, CHUNK_ELEMENTS // len(head_weight_VD))
    ce_N, predicted_N = _HeadCrossEntropy.apply(hidden_ND, head_weight_VD.detach().to(dtype), labels_N, softcap, rows)
    return HeadOutput(ce_N, predicted_N)


def reference_cross_entropy(
    hidden_ND: Tensor, head_weight_VD: Tensor, labels_N: Tensor, softcap: float | None = None
) -> HeadOutput:
    """The definition, with all logits at once."""
    logits_NV = (hidden_ND @ head_weight_VD.detach().to(hidden_ND.dtype).T).float()
    if softcap is not None:
        logits_NV = softcap * torch.tanh(logits_NV / softcap)
    ce_N = torch.nn.functional.cross_entropy(logits_NV, labels_N, reduction="none")
    return HeadOutput(ce_N, logits_NV.argmax(dim=-1))


class _HeadCrossEntropy(torch.autograd.Function):
    """Forward computes d ce / d hidden for a unit upstream gradient, backward scales it row by row."""

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, labels_N: Tensor, softcap: float | None, chunk_rows: int
    ) -> tuple[Tensor, Tensor]:
        num_rows, dtype = len(hidden_ND), weight_VD.dtype
        ce_N = torch.empty(num_rows, dtype=torch.float32, device=hidden_ND.device)
        predicted_N = torch.empty_like(labels_N)
        wants_grad = ctx.needs_input_grad[0]
        grad_ND = torch.empty_like(hidden_ND) if wants_grad else None
        # Buffers for all chunks: a fresh one each would cost a page fault every 4 KiB, half the time of these passes.
        shape = (min(chunk_rows, num_rows), len(weight_VD))
        products = torch.empty(shape, dtype=dtype, device=hidden_ND.device)
        wide = products if dtype == torch.float32 else torch.empty(shape, dtype=torch.float32, device=hidden_ND.device)
        for start in range(0, num_rows, chunk_rows):
            chunk = slice(start, min(start + chunk_rows, num_rows))
            product_CV, logits_CV = products[: chunk.stop - start], wide[: chunk.stop - start]
            torch.mm(hidden_ND[chunk].to(dtype), weight_VD.T, out=product_CV)
            logits_CV.copy_(product_CV)  # nothing to do in float32, where both are one
            if softcap is not None:
                logits_CV.div_(softcap).tanh_().mul_(softcap)
            labels_C1 = labels_N[chunk, None]
            best_C = logits_CV.max(dim=-1)  # several times faster on a CPU than argmax, and the softmax needs the value
            predicted_N[chunk] = best_C.indices
            ce_N[chunk] = best_C.values - logits_CV.gather(1, labels_C1)[:, 0]
            prob_CV = torch.softmax(logits_CV, dim=-1, out=None if softcap is not None else logits_CV)
            # log-sum-exp = best logit - log of its probability, which is at least 1/V and so exact.
            ce_N[chunk] -= prob_CV.gather(1, best_C.indices[:, None])[:, 0].log()
            if wants_grad:
                grad_CV = prob_CV.scatter_add_(1, labels_C1, torch.full_like(labels_C1, -1, dtype=torch.float32))
                if softcap is not None:  # d softcap / d logits = 1 - (capped / c)^2
                    grad_CV.mul_(logits_CV.div_(softcap).square_().neg_().add_(1.0))
                product_CV.copy_(grad_CV)
                grad_ND[chunk] = product_CV @ weight_VD
        ctx.save_for_backward(grad_ND)
        ctx.mark_non_differentiable(predicted_N)
        return ce_N, predicted_N

    @staticmethod
    def backward(ctx: Any, grad_ce_N: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        (grad_ND,) = ctx.saved_tensors
        return grad_ND * grad_ce_N[:, None].to(grad_ND.dtype), None, None, None, None
