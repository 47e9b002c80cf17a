"""The plan's formulas of activations, held to what autograd keeps and to the live peak of a backward."""

import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dflash_core.drafter.model import Drafter
from dflash_core.drafter.spec import DrafterSpec
from dflash_core.plan_estimate.activations import Numerics, backward_passing, drafter_kept
from dflash_core.plan_estimate.workload import MicroShape


def test_kept_activations_are_what_autograd_saves() -> None:
    spec = DrafterSpec(
        hidden_size=64, intermediate_size=192, num_heads=8, num_kv_heads=2, head_dim=16, num_layers=3, block_size=8, mask_token_id=1,
        target_layer_ids=(1, 2), num_target_layers=6, vocab_size=512,
    )  # fmt: skip
    shape = MicroShape(rows=2, length=128, anchors=64, slots=8)
    for compute, features in ((4, torch.float32), (4, torch.bfloat16), (2, torch.bfloat16)):
        expected = drafter_kept(spec, shape, Numerics("cpu", compute, 2, features.itemsize))
        assert _saved_bytes(spec, shape, features, compute == 2) == pytest.approx(expected, rel=0.03)


def _saved_bytes(spec: DrafterSpec, shape: MicroShape, dtype: torch.dtype, autocast: bool) -> int:
    """Bytes of the storages that a forward saves, parameters, their casts and the micro-batch's own features left out."""
    drafter, saved = Drafter(spec), {}
    features_BTF = torch.randn(shape.rows, shape.length, spec.features_size).to(dtype)
    embeds_BAKD = torch.randn(shape.rows, shape.anchors, shape.slots, spec.hidden_size)
    anchors_BA = torch.arange(1, shape.anchors + 1).expand(shape.rows, -1)
    outside = {t.untyped_storage().data_ptr() for t in (*drafter.parameters(), features_BTF)}
    matrices = {tuple(p.shape) for p in drafter.parameters() if p.ndim == 2} | {tuple(p.T.shape) for p in drafter.parameters() if p.ndim == 2}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        is_cast = tensor.dtype == torch.bfloat16 and tuple(tensor.shape) in matrices
        if storage.data_ptr() not in outside and not is_cast:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        drafter(features_BTF, embeds_BAKD, anchors_BA, label_slots_only=True)
    return sum(saved.values())


class _LivePeak(TorchDispatchMode):
    """Most bytes of tensors at once; `live` holds the bytes of each storage that is still there."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and (storage := tensor.untyped_storage())._cdata not in self.live:
                self.live[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self.live.pop, storage._cdata)
        self.peak = max(self.peak, sum(self.live.values()))
        return out


@pytest.mark.parametrize("compute", [4, 2])
def test_a_backward_holds_the_copies_that_attention_makes(compute: int) -> None:
    """Of a drafter whose MLP is small beside its queries, so that attention's backward is the peak, in float32 under bfloat16 too."""
    spec = DrafterSpec(
        hidden_size=16, intermediate_size=16, num_heads=8, num_kv_heads=4, head_dim=32, num_layers=1, block_size=8, mask_token_id=1,
        target_layer_ids=(1, 2), num_target_layers=6, vocab_size=32,
    )  # fmt: skip
    shape, numerics = MicroShape(rows=2, length=128, anchors=96, slots=8), Numerics("cpu", compute, 4, 4)
    drafter = Drafter(spec)
    features_BTF, embeds_BAKD = torch.randn(2, 128, spec.features_size), torch.randn(2, 96, 8, 16)
    anchors_BA = torch.arange(1, 97).expand(2, -1)
    with _LivePeak() as memory, torch.autocast("cpu", torch.bfloat16, enabled=compute == 2):
        drafter(features_BTF, embeds_BAKD, anchors_BA, label_slots_only=True).sum().backward()
    assert memory.peak == pytest.approx(drafter_kept(spec, shape, numerics) + backward_passing(spec, shape, numerics), rel=0.1)
