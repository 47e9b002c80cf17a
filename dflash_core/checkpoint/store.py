"""Checkpoint directories that appear whole: written under a temporary name, renamed when all is on disk; loaded only if they verify.

A checkpoint holds model.safetensors (float32 weights), optimizer.safetensors (AdamW moments, by parameter name), or a file
of each for every rank that holds a shard, state.json (progress, generators, identity), manifest.json and status.json.
None of DCP, torch.save and safetensors notices a flipped bit when loading; crc32 runs at 2.2-2.5 GB/s, nearly free beside
fsync. A checkpoint that is found to be bad is moved to quarantine/, never deleted or written over.
"""

import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from dflash_core.checkpoint.contents import Contents, Share
from dflash_core.checkpoint.digests import json_digest, tensors_digest
from dflash_core.checkpoint.manifest import (
    FORMAT,
    MANIFEST,
    STATUS,
    STEP_NAME,
    Status,
    note_of,
    read_manifest,
    read_status,
    replace_json,
    sealed,
    step_name,
    sync,
    verify,
    write_json,
)
from dflash_core.checkpoint.share_files import Report, gather, hand_in, read_contents, write_share
from dflash_core.checkpoint.tensor_file import GivenUp
from dflash_core.errors import CheckpointError


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


@dataclass(frozen=True)
class Writing:
    """How one save is written, which is the same in all ranks."""

    origin: Mapping[str, Any]  # goes into the manifest: run, session, parent, ...
    token: str  # of the temporary directory: eight hexadecimal digits, of this session only
    given_up: Callable[[], bool] = lambda: False  # asked before each chunk, and free to take its time: the writer's rests
    timeout_s: float = 600.0  # for the shards of other ranks


class CheckpointStore:
    """The checkpoints of one run. One process commits; the run's log lock sees to that, and so does `_refuse_strangers`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: set[str] | None = None  # checkpoints that were there before this object's first save, and its own

    @property
    def quarantine(self) -> Path:
        """Where bad checkpoints go."""
        return self.root / "quarantine"

    def save(self, contents: Contents, origin: Mapping[str, Any] | None = None) -> Committed:
        """Write, sync and commit one whole checkpoint; after return it survives a power cut. Errors as `write`."""
        return self.write(Share.whole(contents), Writing(origin or {}, uuid.uuid4().hex[:8]))

    def write(self, share: Share, writing: Writing) -> Committed | None:
        """Write one rank's share; the first rank waits for the others' and commits. None in the others.

        Raises:
            CheckpointError: the file system refused (disk full, no permission, directory gone), another process writes
                here, or a rank didn't come to its end. Nothing has appeared, and earlier checkpoints are as before.
        """
        final = self.root / step_name(share.step)
        temporary = self.root / f"{final.name}.tmp-{writing.token}"
        try:
            self._make(temporary, share)
            report = write_share(temporary, share, writing.given_up)
            if share.index:
                hand_in(temporary, share, report)
                return None
            report = gather(temporary, share, report, writing.given_up, writing.timeout_s)
            manifest = _write_manifest(temporary, share.step, writing.origin, report)
            self._commit(temporary, final)
        except (OSError, GivenUp, CheckpointError) as error:
            if not share.index:
                shutil.rmtree(temporary, ignore_errors=True)
            if isinstance(error, CheckpointError):
                raise
            reason = getattr(error, "strerror", None) or f"the write was given up ({error})"
            raise CheckpointError(
                f"checkpoint {final} can't be written: {reason}. Earlier ones are untouched. Free space or correct the directory, then resume."
            ) from None
        return _committed(final, manifest)

    def names(self) -> tuple[str, ...]:
        """Committed directories, oldest first, good or not."""
        if not self.root.is_dir():
            return ()
        steps = {int(m[1]): p.name for p in self.root.iterdir() if (m := STEP_NAME.fullmatch(p.name))}
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
        read_manifest(path)  # first, since a note about a broken one says little
        if (status := read_status(path)) == "rejected":
            raise CheckpointError(f"{name} has status {status}.")
        manifest = verify(path, logged_digest)
        try:
            contents = read_contents(path, manifest)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise CheckpointError(f"{name} can't be read: {error}.") from None
        found = {
            "weights": tensors_digest(contents.weights, contents.cuts),
            "moments": tensors_digest(contents.moments, contents.cuts),
            "generators": json_digest(contents.state.get("generators")),
        }
        for what, expected in manifest["digests"].items():
            if found[what] != expected:
                raise CheckpointError(f"{name}: digest of the {what} is {found[what][:12]}, its manifest says {expected[:12]}.")
        return _committed(path, manifest), contents

    def mark(self, name: str, status: Status, verdict: Mapping[str, Any]) -> None:
        """Note what a proof found: status.json changes at once or not at all.

        Raises:
            CheckpointError: there is no such checkpoint, or the file system refused.
        """
        digest = read_manifest(self.root / name)["digest"]
        try:
            replace_json(self.root / name / STATUS, note_of(status, digest, verdict))
        except OSError as error:
            raise CheckpointError(f"{name} can't be marked {status}: {error.strerror}. Correct it, and prove it again.") from None

    def put_aside(self, name: str) -> Path:
        """Move a checkpoint out of the way, for a person to look at; returns where it lies."""
        self.quarantine.mkdir(exist_ok=True)
        place = self.quarantine / f"{name}-{uuid.uuid4().hex[:8]}"
        (self.root / name).rename(place)
        return place

    def _make(self, temporary: Path, share: Share) -> None:
        if self._known is None:
            # Without parents, and only once: a run directory that somebody removes must not come back with one checkpoint and no log.
            self.root.mkdir(exist_ok=True)
            self._known = set(self.names())
        temporary.mkdir(exist_ok=share.count > 1)

    def _commit(self, temporary: Path, final: Path) -> None:
        self._refuse_strangers()
        if final.exists():  # a bad one that a resume walked back from
            self.put_aside(final.name)
        temporary.rename(final)
        sync(self.root)
        self._known.add(final.name)

    def _refuse_strangers(self) -> None:
        strangers = sorted(set(self.names()) - self._known)
        if strangers:
            raise CheckpointError(
                f"{self.root} holds {strangers[0]}, which this run hasn't written: another process saves there. "
                "Stop one of them; if both must run, give one another run name."
            )


def _write_manifest(directory: Path, step: int, origin: Mapping[str, Any], report: Report) -> dict[str, Any]:
    manifest = sealed(
        {
            "format": FORMAT,
            "step": step,
            "created": time.time(),
            "origin": dict(origin),
            "files": dict(report.files),
            "digests": report.digests(),
        }
    )
    write_json(directory / MANIFEST, manifest)
    write_json(directory / STATUS, note_of("committed", manifest["digest"], {}))
    sync(directory)
    return manifest


def _committed(path: Path, manifest: Mapping[str, Any]) -> Committed:
    num_bytes = sum(entry["size"] for entry in manifest["files"].values())
    return Committed(path, manifest["step"], manifest["digest"], manifest["digests"]["weights"], num_bytes)
