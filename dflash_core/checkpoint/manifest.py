"""The manifest of a checkpoint, which vouches for its files, and the note beside it that says how far it is trusted.

manifest.json is written once, before the checkpoint appears: format, step, where it comes from, size and crc32 of each file,
digests of weights, moments and generators, and a digest of its own that the run's log repeats. status.json changes
afterwards, so it stands outside of the manifest, and names the manifest that it is about.
"""

import json
import os
import re
import uuid
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from dflash_core.checkpoint.digests import json_digest
from dflash_core.errors import CheckpointError

FORMAT = 2  # 1 had neither lineage nor digests by piece
MANIFEST, STATUS = "manifest.json", "status.json"
Status = Literal["committed", "proven", "rejected"]
STEP_NAME = re.compile(r"step-(\d{8,})")  # a copy may have any other name
_CHUNK_BYTES = 8 << 20


def step_name(step: int) -> str:
    """Directory of a step's checkpoint."""
    return f"step-{step:08d}"


def full_name(typed: str) -> str:
    """The directory's name, from that or from its step, whichever a person has typed."""
    return step_name(int(typed)) if typed.isdigit() else typed


def sealed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest with its own digest."""
    return dict(manifest) | {"digest": _own_digest(manifest)}


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of the checkpoint in `path`, checked against itself and its place, not yet against the files.

    Raises:
        CheckpointError: it is missing, broken, of another step or format, or not what it says of itself.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        own = manifest["digest"]
        if manifest["format"] != FORMAT:
            raise CheckpointError(f"{path.name}: format {manifest['format']}, this version reads {FORMAT}.")
        if (found := _own_digest(manifest)) != own:
            raise CheckpointError(f"{path.name}/{MANIFEST}: digest {found[:12]}, it says {own[:12]} itself.")
        if STEP_NAME.fullmatch(path.name) and (name := step_name(manifest["step"])) != path.name:
            raise CheckpointError(f"{path.name}/{MANIFEST}: it is of {name}, expected {path.name}.")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path.name} is not a whole checkpoint: {type(error).__name__} {error}.") from None
    return manifest


def verify(path: Path, logged_digest: str | None = None) -> dict[str, Any]:
    """Check a checkpoint's manifest and the bytes of its files; returns the manifest.

    Raises:
        CheckpointError: what is missing or differs, with both values.
    """
    manifest = read_manifest(path)
    if logged_digest is not None and manifest["digest"] != logged_digest:
        raise CheckpointError(f"{path.name}/{MANIFEST}: digest {manifest['digest'][:12]}, the log says {logged_digest[:12]}.")
    try:
        for name, expected in manifest["files"].items():
            size, crc = size_and_crc(path / name)
            if (size, crc) != (expected["size"], expected["crc32"]):
                raise CheckpointError(
                    f"{path.name}/{name}: {size} bytes with crc32 {crc:08x}, the manifest says {expected['size']} with {expected['crc32']:08x}."
                )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path.name} is not a whole checkpoint: {type(error).__name__} {error}.") from None
    return manifest


def note_of(status: Status, digest: str, verdict: Mapping[str, Any]) -> dict[str, Any]:
    """What status.json says; `digest` is the manifest's."""
    return {"status": status, "manifest": digest, "verdict": dict(verdict)}


def read_status(path: Path) -> Status:
    """State of the checkpoint in `path`: rejected where the note is missing, damaged or about another one, which a save never leaves."""
    try:
        note = json.loads((path / STATUS).read_text(encoding="utf-8"))
        ours = note["manifest"] == json.loads((path / MANIFEST).read_text(encoding="utf-8"))["digest"]
        whole = note.keys() == {"status", "manifest", "verdict"} and note["status"] in get_args(Status)
        return note["status"] if ours and whole else "rejected"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "rejected"


def read_verdict(path: Path) -> dict[str, Any]:
    """What the proof said of the checkpoint in `path`; empty where it said nothing."""
    try:
        return dict(json.loads((path / STATUS).read_text(encoding="utf-8"))["verdict"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def write_json(path: Path, tree: Mapping[str, Any]) -> None:
    """Write and sync."""
    with path.open("w", encoding="utf-8") as file:
        json.dump(tree, file, indent=1, sort_keys=True, allow_nan=False)
        os.fchmod(file.fileno(), 0o644)
        file.flush()
        os.fsync(file.fileno())


def replace_json(path: Path, tree: Mapping[str, Any]) -> None:
    """Write beside and rename: a reader sees the old file or the new one."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}")
    write_json(temporary, tree)
    os.replace(temporary, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Make a file, or the names in a directory, durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def size_and_crc(path: Path) -> tuple[int, int]:
    """Of a file on disk."""
    size = crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return size, crc


def _own_digest(manifest: Mapping[str, Any]) -> str:
    return json_digest({key: value for key, value in manifest.items() if key != "digest"})
