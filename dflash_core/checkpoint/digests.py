"""Digests of a state: of tensors by name, the same from memory, from one file, and from the files of many ranks."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from dflash_core.checkpoint.contents import Piece, cut

Line = tuple[str, int, str]  # name, first row, and what the digest takes of that piece


def line_of(name: str, piece: Piece, content: str) -> Line:
    """`content` is the sha256 of the piece's bytes."""
    return name, piece.first_row, f"{piece.rows.dtype} {piece.shape} {content}"


def digest_of(lines: Iterable[Line]) -> str:
    """sha256 over pieces in the order of names and rows, so that each rank can hash its own."""
    total = hashlib.sha256()
    for name, first_row, text in sorted(map(tuple, lines)):
        total.update(f"{name} {first_row} {text}\n".encode())
    return total.hexdigest()


def tensors_digest(tensors: Mapping[str, torch.Tensor], cuts: Mapping[str, tuple[int, ...]] | None = None) -> str:
    """Digest of whole tensors; `cuts` (`Contents.cuts`) are those of a checkpoint that several ranks saved."""
    return digest_of(
        line_of(name, piece, hashlib.sha256(raw_bytes(piece.rows)).hexdigest())
        for name, tensor in tensors.items()
        for piece in cut(tensor, (cuts or {}).get(name, (0,)))
    )


def json_digest(tree: Any) -> str:
    """sha256 of a JSON tree, independent of how a file spells it."""
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor, without a copy where it is contiguous on the host."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
