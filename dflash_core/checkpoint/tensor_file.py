"""Writes tensors as a safetensors file in chunks, its size, crc32 and digests taken on the way; reads it back.

The library's own writer keeps the interpreter lock until the whole file is written, so that a thread that saves beside the
training would stop it. Here every call on a chunk (write, crc32, sha256) releases the lock.
What is written is synced and dropped from the page cache as it goes: a file that stays there until one fsync at the end costs
twice the processor time, for pages that nobody reads, and pushes out the features that the training does read.
"""

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import safe_open

from dflash_core.checkpoint.contents import Piece, join
from dflash_core.checkpoint.digests import Line, line_of, raw_bytes

_CHUNK_BYTES = 4 << 20  # some milliseconds of work: how soon a write that is given up ends
_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64"}
_PIECES = "pieces"  # in the file's metadata: first row and whole shape of each tensor that is a piece of one


class GivenUp(Exception):
    """The write was called off."""


@dataclass(frozen=True)
class WrittenFile:
    """A file as it was meant: from the bytes in memory, not read back."""

    size: int
    crc32: int
    lines: tuple[Line, ...]


def write_tensors(path: Path, pieces: Mapping[str, Piece], given_up: Callable[[], bool] = lambda: False) -> WrittenFile:
    """Write and sync a new file.

    Raises:
        OSError: the file system refused.
        GivenUp: as `given_up` said.
    """
    names = sorted(pieces, key=lambda name: (-pieces[name].rows.element_size(), name))  # so that every tensor is aligned
    header = _header({name: pieces[name] for name in names})
    size, crc, lines = len(header), zlib.crc32(header), []
    with path.open("xb") as file:
        os.fchmod(file.fileno(), 0o644)  # whatever the umask: another user's proof or export reads it
        file.write(header)
        dropped = 0
        for name in names:
            content = hashlib.sha256()
            for chunk in _chunks(raw_bytes(pieces[name].rows)):
                if given_up():
                    raise GivenUp(path.name)
                file.write(chunk)
                content.update(chunk)
                size, crc = size + len(chunk), zlib.crc32(chunk, crc)
                if size - dropped >= _CHUNK_BYTES:
                    dropped = _sync_and_drop(file, size)
            lines.append(line_of(name, pieces[name], content.hexdigest()))
        file.flush()
        os.fsync(file.fileno())
    return WrittenFile(size, crc, tuple(lines))


def read_tensors(paths: Iterable[Path]) -> tuple[dict[str, torch.Tensor], dict[str, tuple[int, ...]]]:
    """Whole tensors by name from the files that hold them together, and where those are cut that came in pieces.

    Raises:
        OSError, ValueError, SafetensorError, CheckpointError: a file is no such file, or rows are missing.
    """
    pieces: dict[str, list[Piece]] = {}
    for path in paths:
        for name, piece in _read_pieces(path):
            pieces.setdefault(name, []).append(piece)
    joined = {name: join(name, found) for name, found in pieces.items()}
    tensors = {name: tensor for name, (tensor, _) in joined.items()}
    return tensors, {name: cuts for name, (_, cuts) in joined.items() if len(cuts) > 1}


def _read_pieces(path: Path) -> Iterator[tuple[str, Piece]]:
    with safe_open(path, framework="pt") as file:
        placed = json.loads((file.metadata() or {}).get(_PIECES, "{}"))
        for name in file.keys():  # noqa: SIM118 - the library's object is no mapping
            rows = file.get_tensor(name)
            first_row, *shape = placed.get(name, (0, *rows.shape))
            yield name, Piece(rows, first_row, tuple(shape))


def _header(pieces: Mapping[str, Piece]) -> bytes:
    """Length and JSON, padded to eight bytes: https://github.com/huggingface/safetensors#format."""
    tree: dict[str, Any] = {}
    placed = {n: [p.first_row, *p.shape] for n, p in pieces.items() if tuple(p.rows.shape) != p.shape}
    if placed:
        tree["__metadata__"] = {_PIECES: json.dumps(placed)}
    begin = 0
    for name, piece in pieces.items():
        end = begin + piece.rows.numel() * piece.rows.element_size()
        tree[name] = {"dtype": _DTYPES[piece.rows.dtype], "shape": list(piece.rows.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(tree).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _sync_and_drop(file: BinaryIO, size: int) -> int:
    os.fsync(file.fileno())
    if hasattr(os, "posix_fadvise"):  # not on macOS
        os.posix_fadvise(file.fileno(), 0, size, os.POSIX_FADV_DONTNEED)
    return size


def _chunks(raw: memoryview) -> Iterator[memoryview]:
    return (raw[start : start + _CHUNK_BYTES] for start in range(0, len(raw), _CHUNK_BYTES))
