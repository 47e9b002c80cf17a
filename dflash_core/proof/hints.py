"""What a checkpoint's tensors say by themselves: signs of a fault that no replay is needed for.

A replay that differs is the proof, and a hint says where to look where no variation reproduces the log. Some hints are certain:
no healthy state shows them, and a fault smaller than the noise band is found by nothing else.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dflash_core.checkpoint.contents import Contents
from dflash_core.proof.faults import Fault

_ROUNDING_SLACK = 1e-3
_ENOUGH = 64  # elements of a tensor: fewer may be round by chance


@dataclass(frozen=True)
class Hint:
    """A sign, and the fault it speaks for. `certain`: it decides by itself."""

    fault: Fault
    text: str
    certain: bool = False


def hints(contents: Contents, betas: tuple[float, float], others: Mapping[str, Contents]) -> tuple[Hint, ...]:
    """Signs in the checkpoint itself, and in what it shares with others of the run; none before the first step."""
    return (*_of_weights(contents.weights, others), *_of_moments(contents, betas)) if contents.step else ()


def _of_weights(weights: Mapping[str, Tensor], others: Mapping[str, Contents]) -> Iterator[Hint]:
    if bad := [name for name, tensor in weights.items() if not torch.isfinite(tensor).all()]:
        yield Hint("weights", f"{bad[0]} holds numbers that are not finite", certain=True)
    large = [tensor for tensor in weights.values() if tensor.numel() >= _ENOUGH]
    if large and all(torch.equal(tensor, tensor.bfloat16().to(tensor.dtype)) for tensor in large):
        yield Hint("weights", "every weight is a bfloat16 number: the float32 masters are lost", certain=True)
    for source, other in others.items():
        same = [name for name, tensor in weights.items() if tensor.numel() >= _ENOUGH and torch.equal(tensor, other.weights[name])]
        if same:
            yield Hint("weights", f"{len(same)} tensors are those of {source} to the bit, first {same[0]}")


def _of_moments(contents: Contents, betas: tuple[float, float]) -> Iterator[Hint]:
    moments = contents.moments
    by_key = {key: {n: t for n, t in moments.items() if n.endswith(f".{key}")} for key in ("step", "exp_avg", "exp_avg_sq")}
    if not moments:
        yield Hint("moments", f"it holds no optimizer state after {contents.step} steps", certain=True)
        return
    if counters := {float(tensor) for tensor in by_key["step"].values()} - {float(contents.step)}:
        yield Hint("step_counter", f"optimizer step counters are {_range(counters)} after {contents.step} steps")
    for key, what in (("exp_avg", "first"), ("exp_avg_sq", "second")):
        if by_key[key] and all(not tensor.any() for tensor in by_key[key].values()):
            yield Hint("moments", f"all {what} moments are zero after {contents.step} steps", certain=True)
    large = [t for key in ("exp_avg", "exp_avg_sq") for t in by_key[key].values() if t.numel() >= _ENOUGH and t.any()]
    if large and all(torch.equal(tensor, tensor.bfloat16().to(tensor.dtype)) for tensor in large):
        yield Hint("moments", "every moment is a bfloat16 number", certain=True)
    if impossible := _impossible(by_key["exp_avg"], by_key["exp_avg_sq"], betas):
        yield Hint("moments", f"first moments of {impossible} are larger than any gradients with these second moments can make them")


def _impossible(first: Mapping[str, Tensor], second: Mapping[str, Tensor], betas: tuple[float, float]) -> str | None:
    """A parameter whose moments can't be of the same gradients.

    By Cauchy and Schwarz m^2 <= v (1 - b1)^2 / ((1 - b2) (1 - b1^2 / b2)) wherever b1^2 < b2.
    """
    one, two = betas
    if one * one >= two:
        return None
    bound = (1 - one) / math.sqrt((1 - two) * (1 - one * one / two)) * (1 + _ROUNDING_SLACK)
    for name, moment in first.items():
        parameter = name.removesuffix(".exp_avg")
        spread = second[f"{parameter}.exp_avg_sq"]
        # v of tiny gradients underflows before m does.
        if bool((moment.abs() > bound * spread.clamp(min=0).sqrt() + 1e-18).any()):
            return parameter
    return None


def _range(values: set[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
