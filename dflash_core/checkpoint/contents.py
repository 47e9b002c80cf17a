"""What a checkpoint holds: the whole state of a run, or the share of it that one rank saves."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from dflash_core.errors import CheckpointError


@dataclass(frozen=True)
class Contents:
    """The whole state: weights and moments by name, and a JSON tree."""

    step: int
    weights: Mapping[str, torch.Tensor]
    moments: Mapping[str, torch.Tensor]
    state: Mapping[str, Any]
    # First row of each piece of a tensor that several ranks saved; digests are taken piece by piece.
    cuts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Piece:
    """Rows of a tensor from `first_row` on: all of them, unless ranks hold a shard each."""

    rows: torch.Tensor
    first_row: int
    shape: tuple[int, ...]  # of the whole tensor

    @classmethod
    def whole(cls, tensor: torch.Tensor) -> "Piece":
        """A tensor that isn't sharded."""
        return cls(tensor, 0, tuple(tensor.shape))


@dataclass(frozen=True)
class Share:
    """What rank `index` of the `count` that save a checkpoint together writes; the first has the JSON tree, too."""

    step: int
    weights: Mapping[str, Piece]
    moments: Mapping[str, Piece]
    state: Mapping[str, Any]
    index: int = 0
    count: int = 1

    @classmethod
    def whole(cls, contents: Contents) -> "Share":
        """Everything, as one process saves it."""
        weights, moments = ({name: Piece.whole(t) for name, t in part.items()} for part in (contents.weights, contents.moments))
        return cls(contents.step, weights, moments, contents.state)


def cut(tensor: torch.Tensor, first_rows: tuple[int, ...] = (0,)) -> Iterable[Piece]:
    """The pieces of a whole tensor."""
    shape = tuple(tensor.shape)
    if len(first_rows) == 1:
        return [Piece(tensor, 0, shape)]
    ends = (*first_rows[1:], shape[0])
    return [Piece(tensor[first:end], first, shape) for first, end in zip(first_rows, ends, strict=True)]


def join(name: str, pieces: Iterable[Piece]) -> tuple[torch.Tensor, tuple[int, ...]]:
    """A whole tensor, and the rows at which it was cut.

    Raises:
        CheckpointError: rows are missing, or there twice.
    """
    ordered = sorted(pieces, key=lambda piece: piece.first_row)
    if len(ordered) == 1 and ordered[0].shape == tuple(ordered[0].rows.shape):
        return ordered[0].rows, (0,)
    shape, row = ordered[0].shape, 0
    for piece in ordered:
        if piece.first_row != row or piece.shape != shape or not shape:
            raise CheckpointError(f"{name}: a piece begins at row {piece.first_row} of {piece.shape}, expected row {row} of {shape}.")
        row += len(piece.rows)
    if row != shape[0]:
        raise CheckpointError(f"{name}: its pieces hold {row} rows, expected {shape[0]}.")
    return torch.cat([piece.rows for piece in ordered]), tuple(piece.first_row for piece in ordered)
