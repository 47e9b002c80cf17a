"""Names of a checkpoint's tensors: which belong to one layer, which could be taken for one another."""

from collections.abc import Iterable, Mapping

from torch import Tensor

Tensors = Mapping[str, Tensor]


def parts(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Names by part of the drafter: `layers.0`, or the module itself where it stands alone."""
    found: dict[str, list[str]] = {}
    for name in names:
        pieces = name.split(".")
        found.setdefault(".".join(pieces[:2]) if pieces[0] == "layers" else pieces[0], []).append(name)
    return {part: tuple(names) for part, names in found.items()}


def layers(names: Iterable[str]) -> tuple[str, ...]:
    """`layers.0`, `layers.1`, ..."""
    return tuple(part for part in parts(names) if part.startswith("layers."))


def swapped(tensors: Tensors, one: str, other: str) -> dict[str, Tensor]:
    """The same with the tensors of two layers exchanged."""
    exchange = {f"{one}.": f"{other}.", f"{other}.": f"{one}."}
    out = dict(tensors)
    for name in tensors:
        for here, there in exchange.items():
            if name.startswith(here):
                out[name] = tensors[there + name.removeprefix(here)]
    return out


def moved(moments: Tensors, by: int) -> dict[str, Tensor]:
    """Moments of each parameter replaced by those of the one `by` places on among parameters of its shape; 0 reverses them.

    The order is that of the names, which is the drafter's own.
    """
    out = dict(moments)
    for key in ("exp_avg", "exp_avg_sq"):
        by_shape: dict[tuple[int, ...], list[str]] = {}
        for name, tensor in moments.items():
            if name.endswith(f".{key}"):
                by_shape.setdefault(tuple(tensor.shape), []).append(name)
        for names in by_shape.values():
            sources = names[::-1] if by == 0 else names[by % len(names) :] + names[: by % len(names)]
            out |= {name: moments[source] for name, source in zip(names, sources, strict=True)}
    return out


def first_shard_for_all(tensors: Tensors, num_shards: int) -> dict[str, Tensor]:
    """Every shard of a tensor, cut along its first dimension, replaced by the first one."""
    out = dict(tensors)
    for name, tensor in tensors.items():
        if tensor.dim() and len(tensor) % num_shards == 0:
            shard = tensor[: len(tensor) // num_shards]
            out[name] = shard.repeat(num_shards, *([1] * (tensor.dim() - 1)))
    return out
