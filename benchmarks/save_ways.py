"""A model with 200 MB of weights and moments, and four ways to save it: ours, torch.save, dcp.save, and the bare copy."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from memory_world import make_world
from torch import nn

from dflash_core.checkpoint.contents import Share
from dflash_core.checkpoint.manifest import sync
from dflash_core.checkpoint.saves import Saves
from dflash_core.checkpoint.snapshot import state_tensors, take_share
from dflash_core.checkpoint.staging import HostBuffers
from dflash_core.checkpoint.store import CheckpointStore
from dflash_core.distributed.gradients import Alone
from dflash_core.training.hooks import Position
from dflash_core.training.records import SilentLog

LAYERS, WIDTH = 24, 834  # 16.7 M parameters: 200 MB with two moments each
ROWS = 512  # positions in a micro-batch: 8 rows of 16 anchors, 4 tokens each


class Model:
    """Linear layers and their AdamW, with moments."""

    def __init__(self, layers: int = LAYERS) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-4)

    def micro_batch(self) -> None:
        """One forward and backward."""
        self.net(torch.randn(ROWS, WIDTH)).square().mean().backward()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def share(self, at: Position, **place: int) -> Share:
        return take_share(self.net, self.optimizer, step=at.step, next_sample=at.step, run_id="r", identity={}, **place)

    def tensors(self) -> list[torch.Tensor]:
        return [tensor for part in state_tensors(self.net, self.optimizer) for tensor in part.values()]

    def saves(self, root: Path) -> Saves:
        config = make_world(checkpoint={"wait": False}).config
        return Saves(self.share, HostBuffers(), CheckpointStore(root), Alone(self.net), SilentLog(), config, {}, "0123abcd")


class OurSave:
    """One boundary with a save that is due; the write is waited for outside of the time."""

    def __init__(self, model: Model, root: Path) -> None:
        self._saves, self._step = model.saves(root), 0
        self.durable_s: list[float] = []

    def __call__(self) -> None:
        self._step += 1
        self._saves.boundary(Position(self._step, self._step), True, self._saves.news())

    def settle(self) -> None:
        """Until it is on disk."""
        began = time.perf_counter()
        self._saves.finish(Position(self._step, self._step))
        self.durable_s.append(time.perf_counter() - began)


def copy_all(tensors: Sequence[torch.Tensor], kept: Sequence[torch.Tensor]) -> None:
    """One `copy_` a tensor: the floor."""
    for tensor, buffer in zip(tensors, kept, strict=True):
        buffer.copy_(tensor.detach())


def torch_save(model: Model, path: Path) -> None:
    """As durable as ours: fsync, rename, fsync of the directory."""
    with path.with_suffix(".tmp").open("wb") as file:
        torch.save({"model": model.net.state_dict(), "optimizer": model.optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    path.with_suffix(".tmp").rename(path)
    sync(path.parent)


def dcp_save(model: Model, path: Path) -> None:
    weights, moments = state_tensors(model.net, model.optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=path, no_dist=True)
