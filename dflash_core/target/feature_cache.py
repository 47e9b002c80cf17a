"""Stage `features`: the target's features of every training row, computed once, resumable shard by shard.

Dims: B batch rows, T tokens (padded on the right), F features width, P packed tokens of a shard.
Batches are a pure function of the dataset and the bucket settings: rows of one bucket, in file order, so that few shapes occur
(each new one costs oneDNN about a second). A shard that is there is never computed again, so a killed build continues and
ends with the same files.
"""

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from dflash_core.config import Config
from dflash_core.data.buckets import bucket_length
from dflash_core.data.dataset import Dataset
from dflash_core.data.identity import target_identity
from dflash_core.errors import DataError
from dflash_core.target.directory import read_target_config
from dflash_core.target.feature_store import MANIFEST, FeatureCache, FeatureIdentity, FeatureManifest, ShardInfo
from dflash_core.target.layers import build_target_layer_ids, check_layer_ids
from dflash_core.target.model import Target
from dflash_core.target.self_check import self_check

__all__ = ["FeatureCache", "build_feature_cache"]

BATCH_TOKENS = 4096  # padded tokens of one forward: SmolLM2 is at full speed from about 2,000
SHARD_BYTES = 256 << 20  # also what a killed build loses at most
PROGRESS_SECONDS = 5.0


@dataclass(frozen=True)
class FeatureBatch:
    """Rows that go through the target together, padded to `padded_length` tokens."""

    rows: tuple[int, ...]
    padded_length: int


def build_feature_cache(config: Config, out_dir: Path, prepared_dir: Path | None = None) -> None:
    """Write features of the training split to `out_dir`, which appears whole; a complete one of the same identity is kept.

    Unfinished shards wait in a directory beside it, named by the identity.

    Args:
        config: The run's configuration.
        out_dir: build/features.
        prepared_dir: Output of stage prepare; by default `prepared` beside `out_dir`.

    Raises:
        ConfigError: the target or its layer ids.
        DataError: no dataset, or too little free disk.
        IdentityError: the target fails the self-check.
    """
    target_path = Path(config.target.path)
    text_config = read_target_config(target_path, config.target.trust_remote_code).get_text_config(decoder=True)
    num_layers = text_config.num_hidden_layers
    layer_ids = check_layer_ids(
        config.drafter.target_layer_ids or build_target_layer_ids(num_layers, config.drafter.num_features), num_layers
    )
    dataset = Dataset.open(prepared_dir or out_dir.parent / "prepared", "train")
    identity = FeatureIdentity(
        target=target_identity(target_path), layer_ids=layer_ids, dtype=config.target.dtype, dataset=dataset.manifest.digest,
        split=dataset.split, bucket_multiple=config.bucket.multiple,
    )  # fmt: skip
    if _is_complete(out_dir, identity):
        return
    width = len(layer_ids) * text_config.hidden_size
    shards = plan_shards(plan_feature_batches(dataset.lengths, config.bucket.multiple), dataset.lengths, width)
    partial_dir = _partial_directory(out_dir, identity)
    missing = [number for number in range(len(shards)) if not (partial_dir / shard_name(number)).exists()]
    missing_rows = [row for number in missing for batch in shards[number] for row in batch.rows]
    _check_disk(partial_dir, int(dataset.lengths[missing_rows].sum()) * width * 2)
    if missing:
        target = Target.load(config.target)
        self_check(target, layer_ids, torch.from_numpy(dataset.sample(int(dataset.lengths.argmax())).input_ids[:64].astype(np.int64)))
        progress = _Progress(int(dataset.lengths[missing_rows].sum()))
        for number in missing:
            _write_shard(partial_dir / shard_name(number), target, dataset, shards[number], layer_ids, progress)
    _publish(partial_dir, out_dir, identity, dataset, shards, width)


def plan_feature_batches(lengths_N: np.ndarray, multiple: int) -> tuple[FeatureBatch, ...]:
    """Batches of rows of one bucket, in file order, buckets ascending: a pure function of lengths and bucket width."""
    by_bucket: dict[int, list[int]] = {}
    for row, length in enumerate(lengths_N.tolist()):
        by_bucket.setdefault(bucket_length(length, multiple), []).append(row)
    batches = []
    for padded, rows in sorted(by_bucket.items()):
        size = max(1, BATCH_TOKENS // padded)
        batches += [FeatureBatch(tuple(rows[start : start + size]), padded) for start in range(0, len(rows), size)]
    return tuple(batches)


def plan_shards(batches: Sequence[FeatureBatch], lengths_N: np.ndarray, width: int) -> tuple[tuple[FeatureBatch, ...], ...]:
    """Consecutive batches grouped into shards of at most SHARD_BYTES (or one batch)."""
    shards: list[list[FeatureBatch]] = []
    room = 0
    for batch in batches:
        size = int(lengths_N[list(batch.rows)].sum()) * width * 2
        if size > room:
            shards.append([])
            room = SHARD_BYTES
        shards[-1].append(batch)
        room -= size
    return tuple(map(tuple, shards))


def shard_name(number: int) -> str:
    """File name of a shard."""
    return f"shard-{number:05d}.safetensors"


def pad_rows(dataset: Dataset, batch: FeatureBatch) -> Tensor:
    """input_ids int64 [B, T], zero where padded: the target is causal, so what stands there changes nothing before it."""
    ids_BT = torch.zeros(len(batch.rows), batch.padded_length, dtype=torch.int64)
    for slot, row in enumerate(batch.rows):
        ids = dataset.sample(row).input_ids
        ids_BT[slot, : len(ids)] = torch.from_numpy(ids.astype(np.int64))
    return ids_BT


def _write_shard(
    path: Path, target: Target, dataset: Dataset, batches: Sequence[FeatureBatch], layer_ids: tuple[int, ...], progress: "_Progress"
) -> None:
    pieces = []
    for batch in batches:
        features_BTF = target.features(pad_rows(dataset, batch).to(target.device), layer_ids).to(torch.bfloat16).cpu()
        lengths = dataset.lengths[list(batch.rows)].tolist()
        pieces += [features_BTF[slot, :length] for slot, length in enumerate(lengths)]
        progress.add(sum(lengths))
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        safetensors.torch.save_file({"features_PF": torch.cat(pieces)}, temporary)
        temporary.chmod(0o644)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk by its own error, which is no OSError
        temporary.unlink(missing_ok=True)
        raise DataError(f"{path} can't be written: {error}. Free space or correct permissions; finished shards are kept.") from None


def _is_complete(out_dir: Path, identity: FeatureIdentity) -> bool:
    try:
        return FeatureCache.open(out_dir).manifest.identity == identity
    except DataError:
        return False


def _partial_directory(out_dir: Path, identity: FeatureIdentity) -> Path:
    """The directory of unfinished shards for this identity; those of other identities are removed."""
    key = hashlib.sha256(json.dumps([asdict(identity), torch.__version__, BATCH_TOKENS, SHARD_BYTES]).encode()).hexdigest()[:16]
    partial_dir = out_dir.with_name(f".{out_dir.name}.partial-{key}")
    for stale in out_dir.parent.glob(f".{out_dir.name}.partial-*"):
        if stale != partial_dir:
            shutil.rmtree(stale)
    partial_dir.mkdir(parents=True, exist_ok=True)
    return partial_dir


def _check_disk(directory: Path, needed: int) -> None:
    free = shutil.disk_usage(directory).free
    if needed * 1.05 > free:
        raise DataError(
            f"features need {needed / 1e9:.2f} GB in {directory.parent}, {free / 1e9:.2f} GB are free. "
            "Free some, or set training.feature_source to online."
        )
    print(f"features: {needed / 1e6:.0f} MB to compute, {free / 1e9:.1f} GB free", file=sys.stderr)


def _publish(
    partial_dir: Path, out_dir: Path, identity: FeatureIdentity, dataset: Dataset, shards: Sequence[Sequence[FeatureBatch]], width: int
) -> None:
    infos = []
    for number, batches in enumerate(shards):
        rows = tuple(row for batch in batches for row in batch.rows)
        size = (partial_dir / shard_name(number)).stat().st_size
        infos.append(ShardInfo(shard_name(number), size, rows, tuple(dataset.lengths[list(rows)].tolist())))
    manifest = FeatureManifest(identity, width, len(dataset), int(dataset.lengths.sum()), torch.__version__, tuple(infos))
    for leftover in partial_dir.glob(".shard-*"):
        leftover.unlink()
    (partial_dir / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    shutil.rmtree(out_dir, ignore_errors=True)
    partial_dir.rename(out_dir)


class _Progress:
    """A line on stderr every few seconds: tokens, rate, time left."""

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0
        self._started = self._shown = time.monotonic()

    def add(self, tokens: int) -> None:
        """Count tokens that are done."""
        self._done += tokens
        now = time.monotonic()
        if now - self._shown >= PROGRESS_SECONDS or self._done == self._total:
            self._shown = now
            rate = self._done / max(now - self._started, 1e-9)
            left = (self._total - self._done) / rate
            print(f"features: {self._done}/{self._total} tokens, {rate:.0f} tok/s, ETA {left:.0f} s", file=sys.stderr, flush=True)
