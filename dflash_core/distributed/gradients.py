"""One update over many ranks: gradients and small numbers are sums over the drafter ranks, in a fixed order.

A step's loss is sum / denominator with the denominator of all ranks, so gradients are summed, never averaged. Two
ways behind one interface: every rank has the whole drafter (`ddp`), or a shard of it (`fsdp2`).

torch's own DistributedDataParallel is not used: it regroups its buckets after the first step, so a run that resumes
adds up in another order than one that never stopped, and it needs a backward on every rank.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from dflash_core.drafter.model import Drafter

# Bytes of one all-reduce: small enough to start while the backward still runs, large enough for the network.
BUCKET_BYTES = 25 << 20


class Ranks(Protocol):
    """What a step needs of the other drafter ranks."""

    num_ranks: int
    index: int
    lockstep: bool  # every rank must run the same number of micro-batches, since forwards are collective

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sums over ranks, float64; equal on all ranks."""
        ...

    def before_backward(self, last: bool) -> None:
        """Call before each micro-batch's forward; `last` of this step."""
        ...

    def finish_gradients(self) -> None:
        """Call after the last backward: gradients are then sums over all ranks, on a rank without a micro-batch too."""
        ...

    def clip(self, max_norm: float) -> float:
        """Scale gradients to a total norm of at most `max_norm`; returns the norm before, equal on all ranks."""
        ...


class Alone:
    """One process."""

    num_ranks, index, lockstep = 1, 0, False

    def __init__(self, drafter: nn.Module) -> None:
        self._drafter = drafter

    def sum(self, values: Sequence[float]) -> list[float]:
        return [float(value) for value in values]

    def before_backward(self, last: bool) -> None:
        pass

    def finish_gradients(self) -> None:
        pass

    def clip(self, max_norm: float) -> float:
        return float(nn.utils.clip_grad_norm_(self._drafter.parameters(), max_norm))


class _Group:
    """Sums of small numbers by gloo, so that no device has to wait for them."""

    def __init__(self, numbers: dist.ProcessGroup) -> None:
        self._numbers = numbers
        self.num_ranks, self.index = dist.get_world_size(numbers), dist.get_rank(numbers)

    def sum(self, values: Sequence[float]) -> list[float]:
        total = torch.tensor([float(value) for value in values], dtype=torch.float64)
        dist.all_reduce(total, group=self._numbers)
        return total.tolist()


class DataParallel(_Group):
    """Every rank holds the whole drafter. Buckets are fixed for good, so a sum has one order in every session.

    A bucket is reduced as soon as the last micro-batch's backward has filled it, while that goes on.
    """

    lockstep = False

    def __init__(self, drafter: Drafter, group: dist.ProcessGroup, numbers: dist.ProcessGroup, bucket_bytes: int = BUCKET_BYTES) -> None:
        super().__init__(numbers)
        self._drafter, self._group = drafter, group
        self._buckets = [_Bucket(parameters) for parameters in _in_buckets(drafter, bucket_bytes)]
        self._started: list[tuple[_Bucket, dist.Work]] = []
        self._filling = False
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(lambda _, bucket=bucket: self._arrived(bucket))

    def before_backward(self, last: bool) -> None:
        self._filling = last
        for bucket in self._buckets:
            bucket.missing = len(bucket.parameters)

    def finish_gradients(self) -> None:
        self._filling = False
        while len(self._started) < len(self._buckets):
            self._start(self._buckets[len(self._started)])
        for bucket, work in self._started:
            work.wait()
            bucket.spread()
        self._started.clear()

    def clip(self, max_norm: float) -> float:
        return float(nn.utils.clip_grad_norm_(self._drafter.parameters(), max_norm))

    def _arrived(self, bucket: "_Bucket") -> None:
        if not self._filling:
            return
        bucket.missing -= 1
        # In the order of the buckets, whatever the order in which they fill up: it must be the same in all ranks.
        while len(self._started) < len(self._buckets) and self._buckets[len(self._started)].missing == 0:
            self._start(self._buckets[len(self._started)])

    def _start(self, bucket: "_Bucket") -> None:
        bucket.collect()
        self._started.append((bucket, dist.all_reduce(bucket.flat, group=self._group, async_op=True)))


class _Bucket:
    """Parameters whose gradients are reduced together, through one kept buffer."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = tuple(parameters)
        self.missing = len(self.parameters)
        self.flat = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float32, device=parameters[0].device)
        self._views = [part.view_as(p) for part, p in zip(self.flat.split([p.numel() for p in parameters]), parameters, strict=True)]

    def collect(self) -> None:
        """Gradients to the buffer; a rank without any adds zeros."""
        for view, parameter in zip(self._views, self.parameters, strict=True):
            view.zero_() if parameter.grad is None else view.copy_(parameter.grad)

    def spread(self) -> None:
        """The buffer to gradients."""
        for view, parameter in zip(self._views, self.parameters, strict=True):
            parameter.grad = view.clone() if parameter.grad is None else parameter.grad.copy_(view)


def _in_buckets(drafter: Drafter, bucket_bytes: int) -> list[list[nn.Parameter]]:
    """Parameters from the last layer to the first, about the order in which gradients arrive."""
    buckets: list[list[nn.Parameter]] = [[]]
    room = bucket_bytes
    for parameter in reversed(list(drafter.parameters())):
        size = parameter.numel() * 4
        if buckets[-1] and size > room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(parameter)
        room -= size
    return buckets


class FullyShard(_Group):
    """Every rank holds a shard of weights, gradients and moments (FSDP2); a layer's weights are gathered while it runs.

    Weights are gathered in float32 and cast by autocast, as in `ddp`, so that both ways compute the same numbers.
    """

    lockstep = True

    def __init__(self, drafter: Drafter, group: dist.ProcessGroup, numbers: dist.ProcessGroup) -> None:
        super().__init__(numbers)
        self._drafter = drafter
        mesh = DeviceMesh.from_group(group, next(drafter.parameters()).device.type)
        for module in (*drafter.layers, drafter):
            fully_shard(module, mesh=mesh)
            # Sums instead of averages; gloo has neither averages nor scaled sums.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)

    def before_backward(self, last: bool) -> None:
        self._drafter.set_requires_gradient_sync(last)

    def finish_gradients(self) -> None:
        pass

    def clip(self, max_norm: float) -> float:
        norm = nn.utils.clip_grad_norm_(self._drafter.parameters(), max_norm)
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def full(tensor: Tensor) -> Tensor:
    """The whole tensor of a shard (collective), on the CPU so that the device holds one at a time; or the tensor itself."""
    return tensor.full_tensor().cpu() if isinstance(tensor, DTensor) else tensor


def first_row(tensor: DTensor) -> int:
    """Where this rank's rows of a tensor that is sharded by rows begin."""
    _, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return offsets[0]


def like(own: Tensor, whole: Tensor) -> Tensor:
    """A copy of a whole tensor on the device of `own`, cut as `own` is; no rank is asked for anything."""
    moved = whole.to(own.device, copy=True)
    return distribute_tensor(moved, own.device_mesh, own.placements, src_data_rank=None) if isinstance(own, DTensor) else moved
