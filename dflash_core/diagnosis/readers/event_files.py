"""Reads TensorBoard event files: their framing and the four protobuf fields that scalars need, nothing else.

A record is its length (8 bytes), a checksum (4), the bytes, a checksum (4). Checksums aren't verified: a damaged record
shows by its length or by fields that don't parse, and reading ends there with what came before.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

from dflash_core.diagnosis.table import Table, TableBuilder

HEADER, FOOTER = 12, 4
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MOST_RECORD_BYTES = 1 << 28


def looks_like_events(head: bytes) -> bool:
    """Whether the first record is the version that TensorBoard begins with."""
    return b"brain.Event:" in head[:64]


def read_event_files(paths: list[Path]) -> Table:
    """Scalars by step, of one or more files of one run."""
    by_step: dict[int, dict[str, float]] = {}
    torn = 0
    for path in paths:
        data = path.read_bytes()
        position = 0
        while position + HEADER <= len(data):
            (size,) = struct.unpack_from("<Q", data, position)
            end = position + HEADER + size + FOOTER
            if size > MOST_RECORD_BYTES or end > len(data):
                torn += 1
                break
            step, scalars = _event(data[position + HEADER : position + HEADER + size])
            if scalars:
                by_step.setdefault(step, {}).update(scalars)
            position = end
    builder = TableBuilder(format="TensorBoard events")
    for number, (step, scalars) in enumerate(sorted(by_step.items()), start=1):
        builder.add(number, {"step": step} | scalars)
    builder.unread |= {"torn event records": torn} if torn else {}
    return builder.table()


def _event(data: bytes) -> tuple[int, dict[str, float]]:
    step, scalars = 0, {}
    try:
        for field, kind, value in _fields(data):
            if field == 2 and kind == VARINT:
                step = int(value)
            elif field == 5 and kind == BYTES:
                scalars |= dict(_value(v) for f, k, v in _fields(value) if f == 1 and k == BYTES)
    except (IndexError, struct.error, UnicodeDecodeError):
        return step, {}
    scalars.pop("", None)
    return step, scalars


def _value(data: bytes) -> tuple[str, float]:
    """Tag and number of one summary value; an empty tag where it is no scalar."""
    tag, number = "", None
    for field, kind, value in _fields(data):
        if field == 1 and kind == BYTES:
            tag = value.decode()
        elif field == 2 and kind == FIXED32:
            number = struct.unpack("<f", value)[0]
        elif field == 8 and kind == BYTES:
            number = _tensor(value)
    return (tag, number) if number is not None else ("", 0.0)


def _tensor(data: bytes) -> float | None:
    """The number in a tensor of one float32 (type 1) or float64 (type 2)."""
    dtype, content = 0, b""
    for field, kind, value in _fields(data):
        if field == 1 and kind == VARINT:
            dtype = value
        elif field == 4 and kind == BYTES or field in (5, 6) and kind in (FIXED32, FIXED64, BYTES):
            content = value
    size = {1: 4, 2: 8}.get(dtype)
    return struct.unpack("<f" if size == 4 else "<d", content)[0] if size and len(content) == size else None


def _fields(data: bytes) -> Iterator[tuple[int, int, bytes | int]]:
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        field, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, position = _varint(data, position)
            yield field, kind, value
            continue
        size = {FIXED64: 8, FIXED32: 4}.get(kind)
        if size is None:
            if kind != BYTES:
                raise IndexError(f"wire type {kind}")
            size, position = _varint(data, position)
        if position + size > len(data):
            raise IndexError("a field ends beyond its record")
        yield field, kind, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 127) << shift
        position += 1
        if byte < 128:
            return value, position
        shift += 7
        if shift > 63:
            raise IndexError("a varint of more than 64 bits")
