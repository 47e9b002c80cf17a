"""Variations of the state that a run may have gone on from: weights, moments, counters, masters."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations

import torch
from torch import Tensor, nn

from dflash_core.checkpoint.contents import Contents
from dflash_core.proof.tensors import first_shard_for_all, layers, moved, parts, swapped
from dflash_core.proof.variation import OnUpdate, Variation

_SHARDS = (2, 4, 8)
_ROUNDED = (torch.bfloat16, torch.float16)


def wrong_weights(contents: Contents, initial: Mapping[str, Tensor], others: Mapping[str, Contents]) -> Iterator[Variation]:
    """Other weights at the first step: the run's first ones, an older checkpoint's, rounded, or in other layers."""
    own = dict(contents.weights)
    for dtype in _ROUNDED:
        rounded = {name: tensor.to(dtype).to(tensor.dtype) for name, tensor in own.items()}
        yield _weights(rounded, f"weights rounded to {str(dtype).removeprefix('torch.')}")
    for source, theirs in _sources(initial, others).items():
        yield _weights(dict(theirs), f"all weights are those of {source}")
        for part, names in parts(own).items():
            yield _weights(own | {name: theirs[name] for name in names}, f"{part} is that of {source}")
    for one, other in combinations(layers(own), 2):
        yield _weights(swapped(own, one, other), f"{one} and {other} are exchanged")
    for shards in _SHARDS:
        yield _weights(first_shard_for_all(own, shards), f"one of {shards} shards of the weights was given to all")
    for source, theirs in others.items():
        for name in own:
            yield _weights(own | {name: theirs.weights[name]}, f"{name} is that of {source}")


def wrong_moments(contents: Contents, others: Mapping[str, Contents]) -> Iterator[Variation]:
    """Another optimizer state: lost, mixed up, rounded, another checkpoint's; or its counters alone."""
    own = dict(contents.moments)
    yield Variation(fault="moments", text="the optimizer's state is lost", contents=lambda c: replace(c, moments={}))
    yield from _counters(own, contents.step)
    for key, what in (("exp_avg_sq", "second"), ("exp_avg", "first")):
        yield _moments(own | {n: torch.zeros_like(t) for n, t in own.items() if n.endswith(f".{key}")}, f"the {what} moments are zero")
    for one, other in combinations(layers(own), 2):
        yield _moments(swapped(own, one, other), f"the moments of {one} and {other} are exchanged")
    for by, what in ((1, "shifted by one slot"), (-1, "shifted by one slot backwards"), (0, "in the reverse order")):
        yield _moments(moved(own, by), f"moments of parameters of one shape are {what}")
    rounded = {n: t if n.endswith(".step") else t.bfloat16().to(t.dtype) for n, t in own.items()}
    yield _moments(rounded, "moments rounded to bfloat16")
    for shards in _SHARDS:
        yield _moments(first_shard_for_all(own, shards), f"one of {shards} shards of the moments was given to all")
    for source, theirs in others.items():
        yield _moments(dict(theirs.moments), f"the optimizer's state is that of {source}")


def wrong_masters(contents: Contents, initial: Mapping[str, Tensor], others: Mapping[str, Contents]) -> Iterator[Variation]:
    """The forward pass had the right weights, the update wrote others: masters that the load did not fill, or rounded ones."""
    for source, theirs in _sources(initial, others).items():
        text = f"the first update was made on the master weights of {source}"
        yield Variation(fault="masters", text=text, before_update=_put_once(theirs))
    text = "updates were made on weights kept in bfloat16"
    yield Variation(fault="masters", text=text, after_update=lambda _, drafter: _round(drafter))


def _sources(initial: Mapping[str, Tensor], others: Mapping[str, Contents]) -> dict[str, Mapping[str, Tensor]]:
    """Weights that the run had at other times."""
    return ({"the run's beginning": initial} if initial else {}) | {name: other.weights for name, other in others.items()}


def _counters(own: Mapping[str, Tensor], step: int) -> Iterator[Variation]:
    counters = {name: tensor for name, tensor in own.items() if name.endswith(".step")}
    for value in dict.fromkeys((step, 0, 1)):
        changed = {name: torch.full_like(tensor, value) for name, tensor in counters.items()}
        text = f"the optimizer's step counters are {value}"
        yield Variation(fault="step_counter", text=text, contents=lambda c, changed=changed: replace(c, moments={**c.moments, **changed}))


def _weights(weights: Mapping[str, Tensor], text: str) -> Variation:
    return Variation(fault="weights", text=text, contents=lambda c: replace(c, weights=weights))


def _moments(moments: Mapping[str, Tensor], text: str) -> Variation:
    return Variation(fault="moments", text=text, contents=lambda c: replace(c, moments=moments))


def _put_once(weights: Mapping[str, Tensor]) -> OnUpdate:
    def put(number: int, drafter: nn.Module) -> None:
        if number == 1:
            for name, parameter in drafter.named_parameters():
                parameter.copy_(weights[name].to(parameter.device))

    return put


def _round(drafter: nn.Module) -> None:
    for parameter in drafter.parameters():
        parameter.copy_(parameter.bfloat16().to(parameter.dtype))
