"""Writes a rank's share of a checkpoint into the directory that is to become it, and gathers what all ranks have written.

One process writes model.safetensors, optimizer.safetensors and state.json. Ranks that hold a shard each write it as it is,
`model-00001-of-00002.safetensors`, with the place of every piece in the file: nothing is gathered over ranks, and the
checkpoint loads in a world of any size. The ranks report through the directory, which they must share to load it anyway.
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflash_core.checkpoint.contents import Contents, Share
from dflash_core.checkpoint.digests import Line, digest_of, json_digest
from dflash_core.checkpoint.manifest import size_and_crc, write_json
from dflash_core.checkpoint.tensor_file import GivenUp, read_tensors, write_tensors
from dflash_core.errors import CheckpointError

WEIGHTS, MOMENTS, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
_POLL_S = 0.02


@dataclass(frozen=True)
class Report:
    """What ranks have written: size and crc32 of each file, and the digest lines of weights and moments."""

    files: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    weights: Sequence[Line] = ()
    moments: Sequence[Line] = ()
    generators: str = ""

    def __add__(self, other: "Report") -> "Report":
        return Report(
            {**self.files, **other.files},
            [*self.weights, *other.weights],
            [*self.moments, *other.moments],
            self.generators or other.generators,
        )

    def digests(self) -> dict[str, str]:
        """For the manifest."""
        return {"weights": digest_of(self.weights), "moments": digest_of(self.moments), "generators": self.generators}


def write_share(directory: Path, share: Share, given_up: Callable[[], bool]) -> Report:
    """Write and sync this rank's files.

    Raises:
        OSError: the file system refused.
        GivenUp: as `given_up` said.
    """
    written = {}
    for file, pieces in ((WEIGHTS, share.weights), (MOMENTS, share.moments)):
        name = _file_name(file, share)
        written[name] = write_tensors(directory / name, pieces, given_up)
    files = {name: {"size": file.size, "crc32": file.crc32} for name, file in written.items()}
    weights, moments = (file.lines for file in written.values())
    if share.index:
        return Report(files, weights, moments)
    write_json(directory / STATE, share.state)
    size, crc = size_and_crc(directory / STATE)
    return Report(files | {STATE: {"size": size, "crc32": crc}}, weights, moments, json_digest(share.state.get("generators")))


def hand_in(directory: Path, share: Share, report: Report) -> None:
    """Leave the report where `gather` looks for it; it appears whole."""
    path = directory / _report_name(share.index)
    write_json(path.with_suffix(".tmp"), vars(report))
    os.replace(path.with_suffix(".tmp"), path)


def gather(directory: Path, share: Share, report: Report, given_up: Callable[[], bool], timeout_s: float) -> Report:
    """The reports of all ranks in one; theirs are taken out of the directory.

    Raises:
        CheckpointError: a rank has not reported in time.
        GivenUp: as `given_up` said.
    """
    deadline = time.monotonic() + timeout_s
    for index in range(1, share.count):
        path = directory / _report_name(index)
        while not path.exists():
            if given_up():
                raise GivenUp(directory.name)
            if time.monotonic() > deadline:
                raise CheckpointError(
                    f"{directory.name}: drafter rank {index} of {share.count} has not written its shard within {timeout_s:g} s. "
                    "Look at its log; do all ranks share the run's directory? Then resume."
                )
            time.sleep(_POLL_S)
        report += Report(**json.loads(path.read_text(encoding="utf-8")))
        path.unlink()
    return report


def read_contents(directory: Path, manifest: Mapping[str, Any]) -> Contents:
    """Read the files of a verified checkpoint, whatever number of ranks wrote them.

    Raises:
        OSError, ValueError, SafetensorError, CheckpointError: one of them is not what it should be.
    """
    parts = []
    for file in (WEIGHTS, MOMENTS):
        stem = Path(file).stem
        parts.append(read_tensors([directory / name for name in manifest["files"] if name == file or name.startswith(f"{stem}-")]))
    (weights, weight_cuts), (moments, moment_cuts) = parts
    state = json.loads((directory / STATE).read_text(encoding="utf-8"))
    return Contents(manifest["step"], weights, moments, state, weight_cuts | moment_cuts)


def _file_name(file: str, share: Share) -> str:
    if share.count == 1:
        return file
    stem, suffix = os.path.splitext(file)
    return f"{stem}-{share.index + 1:05d}-of-{share.count:05d}{suffix}"


def _report_name(index: int) -> str:
    return f"report-{index + 1:05d}.json"
