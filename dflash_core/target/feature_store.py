"""Reads cached target features: packed bf16 rows in safetensors shards, memory-mapped, under a manifest that is verified.

Dims: B batch rows, T tokens (padded on the right), F features width (captured layers * hidden), P packed tokens of a shard.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from dflash_core.errors import DataError, IdentityError

MANIFEST = "manifest.json"
FORMAT = "dflash-features"
FORMAT_VERSION = 1
MAPPED_SHARDS = 64  # open at once: each holds a file descriptor, and the usual limit is 1,024


@dataclass(frozen=True)
class FeatureIdentity:
    """What features were made of and how. Two caches with the same identity hold the same numbers."""

    target: str
    layer_ids: tuple[int, ...]
    dtype: str
    dataset: str
    split: str
    bucket_multiple: int  # it decides the batches, and bf16 results depend on those in the last bit


@dataclass(frozen=True)
class ShardInfo:
    """One shard: tensor `features_PF` bf16 holds its rows end to end. `rows` and `lengths` (in tokens) are in that order."""

    file: str
    bytes: int
    rows: tuple[int, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class FeatureManifest:
    """manifest.json of a feature directory."""

    identity: FeatureIdentity
    feature_width: int
    num_rows: int
    num_tokens: int
    torch: str
    shards: tuple[ShardInfo, ...]
    format: str = FORMAT
    format_version: int = FORMAT_VERSION

    def to_json(self) -> str:
        """Sorted keys, so that equal manifests are equal bytes."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True) + "\n"

    @classmethod
    def read(cls, path: Path) -> "FeatureManifest":
        """Parse `path`. Raises DataError where it is missing, damaged or of another format."""
        try:
            tree = json.loads(path.read_text(encoding="utf-8"))
            if (tree.get("format"), tree.get("format_version")) != (FORMAT, FORMAT_VERSION):
                found = f"{tree.get('format')} {tree.get('format_version')}"
                raise DataError(f"{path} has format {found}, expected {FORMAT} {FORMAT_VERSION}. Re-run stage features.")
            identity = tree.pop("identity")
            identity["layer_ids"] = tuple(identity["layer_ids"])
            shards = [ShardInfo(s["file"], s["bytes"], tuple(s["rows"]), tuple(s["lengths"])) for s in tree.pop("shards")]
            return cls(identity=FeatureIdentity(**identity), shards=tuple(shards), **tree)
        except OSError:
            raise DataError(f"{path} is missing or unreadable; expected the output of stage features. Run it first.") from None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(f"{path} is no manifest of features ({error!r:.120}). Re-run stage features.") from None


@dataclass(frozen=True)
class _Place:
    """Where a row lies: tokens [start, start + length) of a shard."""

    shard: int
    start: int
    length: int


class FeatureCache:
    """Random access to the features of every row of a split."""

    def __init__(self, directory: Path, manifest: FeatureManifest) -> None:
        self.manifest = manifest
        self._directory = directory
        self._places: dict[int, _Place] = {}
        for number, shard in enumerate(manifest.shards):
            start = 0
            for row, length in zip(shard.rows, shard.lengths, strict=True):
                self._places[row] = _Place(number, start, length)
                start += length
        self._mapped = lru_cache(maxsize=MAPPED_SHARDS)(self._map)

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        target: str | None = None,
        layer_ids: Sequence[int] | None = None,
        dtype: str | None = None,
        dataset: str | None = None,
        bucket_multiple: int | None = None,
    ) -> "FeatureCache":
        """Open a directory of stage `features`; what is given must agree with its manifest.

        Args:
            directory: build/features.
            target: `target_identity` of the run's target.
            layer_ids: The drafter's target_layer_ids.
            dtype: target.dtype of the run.
            dataset: Digest of the prepared dataset's manifest.
            bucket_multiple: bucket.multiple of the run, without which a resume after a rebuild would not be bit-identical.

        Raises:
            DataError: no manifest, or a shard that is missing or has another size.
            IdentityError: features of another target, dtype, dataset, bucket width or other layers.
        """
        directory = Path(directory)
        manifest = FeatureManifest.read(directory / MANIFEST)
        wanted = {
            "target": target, "layer_ids": None if layer_ids is None else tuple(layer_ids), "dtype": dtype, "dataset": dataset,
            "bucket_multiple": bucket_multiple,
        }  # fmt: skip
        check_identity(manifest.identity, wanted, directory)
        check_sizes(directory, manifest.shards)
        return cls(directory, manifest)

    def get(self, rows: Sequence[int], padded_length: int) -> torch.Tensor:
        """Features of dataset rows, [B, padded_length, F] bf16, zero where padded. Raises KeyError for a row not in the split."""
        # By NumPy: a large torch copy starts a second team of OpenMP threads when a producer's thread reads ahead, and libgomp
        # then stops spinning for the trainer's own team: a step of the demo took 1.4 times as long.
        bits_BTF = np.zeros((len(rows), padded_length, self.manifest.feature_width), dtype=np.int16)
        for slot, row in enumerate(rows):
            place = self._places[row]
            assert place.length <= padded_length, f"row {row} has {place.length} tokens, padded length is {padded_length}"
            shard_slice = self._mapped(place.shard).get_slice("features_PF")
            bits_BTF[slot, : place.length] = shard_slice[place.start : place.start + place.length].view(torch.int16).numpy()
        return torch.from_numpy(bits_BTF).view(torch.bfloat16)

    def _map(self, shard: int) -> Any:
        path = self._directory / self.manifest.shards[shard].file
        try:
            return safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise DataError(f"{path} can't be read ({error}); expected a safetensors shard. Re-run stage features.") from None


def check_identity(found: FeatureIdentity, wanted: Mapping[str, Any], directory: Path) -> None:
    """Raise IdentityError, with both values, where a wanted value (not None) differs from what was found."""
    for name, expected in wanted.items():
        actual = getattr(found, name)
        if expected is not None and actual != expected:
            raise IdentityError(
                f"{directory} was made for {_words(found)}; this run wants {name.replace('_', ' ')} {_short(expected)}. "
                "Re-run stage features, or set the configuration back."
            )


def check_sizes(directory: Path, shards: Sequence[ShardInfo]) -> None:
    """Raise DataError where a shard is missing or has another size than the manifest says."""
    for shard in shards:
        path = directory / shard.file
        size = path.stat().st_size if path.is_file() else None
        if size != shard.bytes:
            found = "is missing" if size is None else f"has {size} bytes"
            raise DataError(f"{path} {found}, expected {shard.bytes} bytes as its manifest says. Re-run stage features.")


def _words(identity: FeatureIdentity) -> str:
    return (
        f"target {_short(identity.target)} layers {identity.layer_ids} dtype {identity.dtype} dataset {_short(identity.dataset)} "
        f"bucket multiple {identity.bucket_multiple}"
    )


def _short(value: object) -> str:
    return str(value)[:12] if isinstance(value, str) else str(value)
