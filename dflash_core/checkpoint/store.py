"""Checkpoint directories that appear whole: written under a temporary name, verified, renamed; loaded only if they verify.

A checkpoint holds model.safetensors (float32 weights), optimizer.safetensors (AdamW moments, by parameter
name), state.json (progress, generators, identity) and manifest.json (size and crc32 of each file, digests of
the tensors, its own digest). status.json stands beside the manifest, outside of it, because it changes after
the commit. None of DCP, torch.save and safetensors notices a flipped bit when loading; crc32 runs at
2.2-2.5 GB/s, nearly free beside fsync.
"""

import hashlib
import json
import os
import re
import shutil
import time
import uuid
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from dflash_core.errors import CheckpointError

FORMAT = 1
WEIGHTS, MOMENTS, STATE, MANIFEST, STATUS = (
    "model.safetensors",
    "optimizer.safetensors",
    "state.json",
    "manifest.json",
    "status.json",
)
Status = Literal["committed", "proven", "rejected"]
_COMMITTED_NAME = re.compile(r"step-(\d{8,})")
_REMAINS_NAME = re.compile(r"step-\d{8,}\.(tmp|replaced|deleted)-[0-9a-f]{8}")  # nothing else is ours to delete
_CHUNK_BYTES = 8 << 20


@dataclass(frozen=True)
class Contents:
    """What is saved: weights and moments by name, and a JSON tree."""

    step: int
    weights: Mapping[str, torch.Tensor]
    moments: Mapping[str, torch.Tensor]
    state: Mapping[str, Any]


@dataclass(frozen=True)
class Committed:
    """A checkpoint on disk; `digest` is its manifest's own."""

    path: Path
    step: int
    digest: str
    weights_digest: str
    num_bytes: int

    @property
    def name(self) -> str:
        """Name of the directory."""
        return self.path.name


@dataclass(frozen=True)
class Loaded:
    """The newest good checkpoint, the names of newer ones that were passed over, and why each was."""

    committed: Committed
    contents: Contents
    passed_over: tuple[str, ...]
    skipped: tuple[str, ...]


class CheckpointStore:
    """The checkpoints of one run. One process writes; the run's log lock sees to that."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def save(self, contents: Contents) -> Committed:
        """Write, sync and commit one checkpoint; after return it survives a power cut.

        Raises:
            CheckpointError: the file system refused (disk full, no permission).
        """
        final = self.root / f"step-{contents.step:08d}"
        temporary = self.root / f"{final.name}.tmp-{uuid.uuid4().hex[:8]}"
        try:
            temporary.mkdir(parents=True)
            manifest = _write_files(temporary, contents)
            _sync(temporary)
            if final.exists():  # a damaged one that a resume walked back from
                final.rename(self.root / f"{final.name}.replaced-{uuid.uuid4().hex[:8]}")
            temporary.rename(final)
            _sync(self.root)
        except (OSError, SafetensorError) as error:  # safetensors reports a full disk by its own error, which is no OSError
            shutil.rmtree(temporary, ignore_errors=True)
            raise CheckpointError(
                f"checkpoint {final} can't be written: {getattr(error, 'strerror', None) or error}. Earlier ones are untouched. "
                "Free space or correct permissions, then resume."
            ) from None
        return _committed(final, manifest)

    def names(self) -> tuple[str, ...]:
        """Committed directories, oldest first, good or not."""
        if not self.root.is_dir():
            return ()
        steps = {int(m[1]): p.name for p in self.root.iterdir() if (m := _COMMITTED_NAME.fullmatch(p.name))}
        return tuple(steps[step] for step in sorted(steps))

    def load_newest(self, logged_digests: Mapping[str, str] | None = None) -> Loaded | None:
        """Newest checkpoint that verifies and isn't rejected; None where there is none at all.

        `logged_digests` maps names to the digests that the run's log repeats; a manifest that was swapped as a
        whole verifies by itself, but not against those.

        Raises:
            CheckpointError: there are checkpoints and not one is good.
        """
        skipped: list[str] = []
        names = self.names()[::-1]
        for name in names:
            try:
                committed, contents = self.load(name, (logged_digests or {}).get(name))
            except CheckpointError as error:
                skipped.append(str(error))
                continue
            return Loaded(committed, contents, names[: len(skipped)], tuple(skipped))
        if skipped:
            raise CheckpointError(
                f"none of {len(skipped)} checkpoints in {self.root} is good: {' '.join(skipped)} Restore one, or start a new run."
            )
        return None

    def load(self, name: str, logged_digest: str | None = None) -> tuple[Committed, Contents]:
        """Read one checkpoint after verifying every file.

        Raises:
            CheckpointError: rejected, damaged, or not the one that the log names; says which file and both values.
        """
        path = self.root / name
        if (status := read_status(path)) == "rejected":
            raise CheckpointError(f"{name} has status {status}.")
        manifest = verify(path, logged_digest)
        try:
            weights, moments = load_file(path / WEIGHTS), load_file(path / MOMENTS)
            state = json.loads((path / STATE).read_text(encoding="utf-8"))
        except (OSError, ValueError, SafetensorError) as error:
            raise CheckpointError(f"{name} can't be read: {error}.") from None
        for what, tensors in (("weights", weights), ("moments", moments)):
            if (found := tensors_digest(tensors)) != manifest["digests"][what]:
                raise CheckpointError(
                    f"{name}: digest of the {what} is {found[:12]}, its manifest says {manifest['digests'][what][:12]}."
                )
        return _committed(path, manifest), Contents(manifest["step"], weights, moments, state)

    def prune(self, keep_last: int, keep_every: int | None, passed_over: Collection[str] = ()) -> tuple[str, ...]:
        """Delete what retention doesn't keep, and what killed sessions left; call after a commit only. Returns the deleted names.

        Kept: the newest `keep_last` that aren't rejected, each whose step is a multiple of `keep_every`, the newest proven.
        Never kept: `passed_over`, which a resume walked back from. They are newer than the step that it went on from, and
        would push the good ones out of the newest `keep_last`.
        """
        names = [name for name in self.names() if name not in passed_over]
        statuses = {name: read_status(self.root / name) for name in names}
        keep = set([name for name in names if statuses[name] != "rejected"][-keep_last:])
        keep |= set([name for name in names if statuses[name] == "proven"][-1:])
        keep |= {name for name in names if keep_every and int(name.removeprefix("step-")) % keep_every == 0}
        doomed = [name for name in self.names() if name not in keep]
        for name in doomed:  # renamed first: a kill in the middle of a deletion must not leave half a checkpoint under its name
            (self.root / name).rename(self.root / f"{name}.deleted-{uuid.uuid4().hex[:8]}")
        for path in [path for path in self.root.iterdir() if _REMAINS_NAME.fullmatch(path.name)]:
            shutil.rmtree(path, ignore_errors=True)
        return tuple(doomed)


def verify(path: Path, logged_digest: str | None = None) -> dict[str, Any]:
    """Check a checkpoint's manifest and files; returns the manifest.

    Raises:
        CheckpointError: what is missing or differs, with both values.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        own = manifest["digest"]
        if manifest["format"] != FORMAT:
            raise CheckpointError(f"{path.name}: format {manifest['format']}, this version reads {FORMAT}.")
        if (found := _own_digest(manifest)) != own:
            raise CheckpointError(f"{path.name}/{MANIFEST}: digest {found[:12]}, it says {own[:12]} itself.")
        if logged_digest is not None and own != logged_digest:
            raise CheckpointError(f"{path.name}/{MANIFEST}: digest {own[:12]}, the log says {logged_digest[:12]}.")
        for name, expected in manifest["files"].items():
            size, crc = _size_and_crc(path / name)
            if (size, crc) != (expected["size"], expected["crc32"]):
                raise CheckpointError(
                    f"{path.name}/{name}: {size} bytes with crc32 {crc:08x}, the manifest says {expected['size']} with {expected['crc32']:08x}."
                )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path.name} is not a whole checkpoint: {type(error).__name__} {error}.") from None
    return manifest


def read_status(path: Path) -> Status:
    """State of a committed checkpoint; committed where nothing else was ever noted."""
    try:
        return json.loads((path / STATUS).read_text(encoding="utf-8"))["status"]
    except FileNotFoundError:
        return "committed"
    except (OSError, ValueError, KeyError, TypeError):
        return "rejected"  # a damaged note is no reason for trust


def tensors_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """sha256 over names, dtypes, shapes and bytes, in the order of names; independent of the file format."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _write_files(directory: Path, contents: Contents) -> dict[str, Any]:
    save_file({k: v.detach().cpu().contiguous() for k, v in contents.weights.items()}, directory / WEIGHTS)
    save_file({k: v.detach().cpu().contiguous() for k, v in contents.moments.items()}, directory / MOMENTS)
    _write_json(directory / STATE, contents.state)
    _write_json(directory / STATUS, {"status": "committed"})
    files = {}
    for name in (WEIGHTS, MOMENTS, STATE):
        (directory / name).chmod(0o644)  # safetensors writes 0600, which another user's proof or export couldn't read
        size, crc = _size_and_crc(directory / name)
        files[name] = {"size": size, "crc32": crc}
        _sync(directory / name)
    digests = {"weights": tensors_digest(contents.weights), "moments": tensors_digest(contents.moments)}
    manifest = {"format": FORMAT, "step": contents.step, "created": time.time(), "files": files, "digests": digests}
    manifest["digest"] = _own_digest(manifest)
    _write_json(directory / MANIFEST, manifest)
    for name in (MANIFEST, STATUS):
        _sync(directory / name)
    return manifest


def _committed(path: Path, manifest: Mapping[str, Any]) -> Committed:
    num_bytes = sum(entry["size"] for entry in manifest["files"].values())
    return Committed(path, manifest["step"], manifest["digest"], manifest["digests"]["weights"], num_bytes)


def _own_digest(manifest: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in manifest.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _size_and_crc(path: Path) -> tuple[int, int]:
    size = crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return size, crc


def _write_json(path: Path, tree: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(tree, indent=1, sort_keys=True, allow_nan=False), encoding="utf-8")


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
