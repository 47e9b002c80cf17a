"""A drafter of a few thousand weights, and batches for it."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from dflash_core.data.anchors import block_labels
from dflash_core.drafter.head_loss import head_cross_entropy
from dflash_core.drafter.model import Drafter
from dflash_core.drafter.spec import DrafterSpec

VOCAB = 40
SPEC = DrafterSpec(
    hidden_size=32,
    intermediate_size=48,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    num_layers=2,
    block_size=4,
    mask_token_id=VOCAB - 1,
    target_layer_ids=(1, 3),
    num_target_layers=6,
    vocab_size=VOCAB,
)
SLIDING = replace(SPEC, layer_types=("sliding_attention", "full_attention"), sliding_window=5)


def make_drafter(spec: DrafterSpec, seed: int = 0) -> Drafter:
    """Random weights, norms off 1 so that a norm left out would show."""
    torch.manual_seed(seed)
    drafter = Drafter(spec)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.2 + (1.0 if parameter.dim() == 1 else 0.0))
    return drafter


@dataclass(frozen=True)
class ToyBatch:
    """Rows of random tokens and features, with a frozen embedding that is also the head."""

    ids_BT: Tensor
    loss_mask_BT: Tensor
    lengths_B: Tensor
    features_BTF: Tensor
    anchors_BA: Tensor
    keep_BA: Tensor
    embed_VD: Tensor

    def embeds_BAKD(self, spec: DrafterSpec) -> Tensor:
        """Embeddings of [anchor token, MASK * (K-1)]."""
        ids_BAK = torch.full((*self.anchors_BA.shape, spec.block_size), spec.mask_token_id)
        ids_BAK[..., 0] = self.ids_BT.gather(1, self.anchors_BA)
        return self.embed_VD[ids_BAK]

    def labels(self, spec: DrafterSpec) -> tuple[Tensor, Tensor]:
        """labels_BAS and mask_BAS."""
        return block_labels(self.ids_BT, self.loss_mask_BT, self.lengths_B, self.anchors_BA, self.keep_BA, spec.block_size)

    def ce_BAS(self, drafter: Drafter, attention: str = "fast") -> Tensor:
        """Cross-entropy of each labelled slot, 0 elsewhere."""
        labels_BAS, mask_BAS = self.labels(drafter.spec)
        hidden_BASD = drafter(
            self.features_BTF, self.embeds_BAKD(drafter.spec), self.anchors_BA, attention, label_slots_only=True
        )
        ce_N = head_cross_entropy(hidden_BASD[mask_BAS], self.embed_VD, labels_BAS[mask_BAS]).ce_N
        return torch.zeros(mask_BAS.shape).masked_scatter(mask_BAS, ce_N)

    def rows(self, *indices: int) -> "ToyBatch":
        """Some of the rows."""
        at = list(indices)
        return ToyBatch(*(value if name == "embed_VD" else value[at] for name, value in vars(self).items()))


def make_batch(spec: DrafterSpec, num_rows: int = 2, length: int = 30, num_anchors: int = 6, seed: int = 1) -> ToyBatch:
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randperm(length - 2, generator=generator)[:num_anchors] for _ in range(num_rows)]
    anchors = torch.stack(drawn).sort(dim=1).values
    return ToyBatch(
        ids_BT=torch.randint(0, spec.mask_token_id, (num_rows, length), generator=generator),
        loss_mask_BT=torch.rand(num_rows, length, generator=generator) > 0.2,
        lengths_B=torch.full((num_rows,), length),
        features_BTF=torch.randn(num_rows, length, spec.features_size, generator=generator),
        anchors_BA=anchors,
        keep_BA=torch.ones_like(anchors, dtype=torch.bool),
        embed_VD=torch.randn(spec.vocab_size, spec.hidden_size, generator=generator),
    )


def gradients(drafter: Drafter, loss: Tensor) -> list[Tensor]:
    """Gradient of each parameter, in order."""
    return list(torch.autograd.grad(loss, list(drafter.parameters())))


@pytest.fixture(params=[SPEC, SLIDING], ids=["full", "sliding"])
def spec(request: pytest.FixtureRequest) -> DrafterSpec:
    return request.param
