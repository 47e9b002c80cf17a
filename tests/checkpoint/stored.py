"""A small checkpoint whose tensors follow from its step, and a way to damage it."""

from pathlib import Path

import torch

from dflash_core.checkpoint.contents import Contents


def contents(step: int) -> Contents:
    generator = torch.Generator().manual_seed(step)
    weights = {"fc.weight": torch.randn(8, 4, generator=generator), "norm.weight": torch.randn(8, generator=generator)}
    moments = {f"{k}.exp_avg": v * 0.1 for k, v in weights.items()} | {"fc.weight.step": torch.tensor(float(step))}
    return Contents(step, weights, moments, {"step": step, "next_sample": step * 3})


def flip_bit(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 0x10
    path.write_bytes(raw)
