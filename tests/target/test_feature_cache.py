"""The feature cache: what it gives is what the target computes, however often its build was killed; and it knows whose it is."""

import json
import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from dflash_core.config import Config, TargetConfig, parse_config
from dflash_core.data.dataset import Dataset
from dflash_core.data.prepare import prepare
from dflash_core.errors import DataError, IdentityError
from dflash_core.target import feature_cache
from dflash_core.target.feature_cache import FeatureCache, build_feature_cache, plan_feature_batches
from dflash_core.target.model import Target

LAYER_IDS = (1, 3)


def make_config(target: Path, conversations: Path, **drafter: object) -> Config:
    tree = {
        "target": {"path": str(target), "dtype": "float32"},
        "data": {"conversations": [str(conversations)], "heldout_fraction": 0.0},
        "bucket": {"multiple": 16},
        "drafter": {"num_features": 2} | drafter,
    }
    return parse_config(tree, "test")


@pytest.fixture(scope="module")
def workdir(tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with a prepared dataset of 24 rows; tests copy it."""
    directory = tmp_path_factory.mktemp("work")
    rows = [
        {"id": f"c{n}", "split": "train", "prompt": f"Question {n}?", "response": "an answer " * (1 + n * 7 % 13)} for n in range(24)
    ]
    conversations = directory / "conversations.jsonl"
    conversations.write_text("\n".join(map(json.dumps, rows)) + "\n")
    prepare(make_config(tiny_dir, conversations), directory / "build" / "prepared")
    return directory


@pytest.fixture
def build(workdir: Path, tmp_path: Path) -> Path:
    shutil.copytree(workdir / "build", tmp_path / "build")
    return tmp_path / "build"


@pytest.fixture
def config(tiny_dir: Path, workdir: Path) -> Config:
    return make_config(tiny_dir, workdir / "conversations.jsonl")


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_cache, "BATCH_TOKENS", 128)
    monkeypatch.setattr(feature_cache, "SHARD_BYTES", 128 * 2 * 64 * 2)


@pytest.mark.usefixtures("small_shards")
def test_rows_equal_the_target(config: Config, build: Path) -> None:
    build_feature_cache(config, build / "features")
    cache, dataset = FeatureCache.open(build / "features"), Dataset.open(build / "prepared", "train")
    target = Target.load(config.target)
    assert len(cache.manifest.shards) > 3
    assert sorted(row for shard in cache.manifest.shards for row in shard.rows) == list(range(24))
    for row in range(len(dataset)):
        ids = torch.from_numpy(dataset.sample(row).input_ids.astype(np.int64))
        expected_TF = target.features(ids[None], LAYER_IDS)[0].to(torch.bfloat16)
        features_BTF = cache.get([row], 96)
        assert features_BTF.shape == (1, 96, 128) and features_BTF.dtype == torch.bfloat16
        torch.testing.assert_close(features_BTF[0, : len(ids)], expected_TF, atol=2e-2, rtol=1e-2)  # one bf16 step
        assert not features_BTF[0, len(ids) :].any()


def test_rows_come_in_the_order_asked_for(config: Config, build: Path) -> None:
    build_feature_cache(config, build / "features")
    cache = FeatureCache.open(build / "features")
    together_BTF = cache.get([7, 0, 23], 96)
    assert all(torch.equal(together_BTF[slot], cache.get([row], 96)[0]) for slot, row in enumerate([7, 0, 23]))


@pytest.mark.usefixtures("small_shards")
def test_a_killed_build_continues_and_ends_the_same(config: Config, build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_feature_cache(config, build / "features")
    expected = {path.name: path.read_bytes() for path in (build / "features").iterdir()}
    shutil.rmtree(build / "features")
    real, written = feature_cache._write_shard, []

    def fail_at_third(path: Path, *args) -> None:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(path.name)
        real(path, *args)

    monkeypatch.setattr(feature_cache, "_write_shard", fail_at_third)
    with pytest.raises(KeyboardInterrupt):
        build_feature_cache(config, build / "features")
    assert not (build / "features").exists()
    monkeypatch.setattr(feature_cache, "_write_shard", lambda path, *args: written.append(path.name) or real(path, *args))
    build_feature_cache(config, build / "features")
    assert sorted(written) == sorted(set(written)), "no shard is computed twice"
    assert {path.name: path.read_bytes() for path in (build / "features").iterdir()} == expected
    assert not list(build.glob(".features*"))
    build_feature_cache(config, build / "features")
    assert len(written) == len(expected) - 1, "a complete directory is kept"


def test_other_layers_make_it_anew(config: Config, build: Path, tiny_dir: Path, workdir: Path) -> None:
    build_feature_cache(config, build / "features")
    build_feature_cache(make_config(tiny_dir, workdir / "conversations.jsonl", target_layer_ids=[0, 2, 4]), build / "features")
    assert FeatureCache.open(build / "features").manifest.identity.layer_ids == (0, 2, 4)


def test_what_it_was_made_for_is_verified(config: Config, build: Path) -> None:
    build_feature_cache(config, build / "features")
    identity = FeatureCache.open(build / "features").manifest.identity
    FeatureCache.open(build / "features", target=identity.target, layer_ids=[1, 3], dtype="float32", dataset=identity.dataset)
    for wanted, words in (
        ({"layer_ids": (1, 2, 3)}, r"layers \(1, 3\) .*wants layer ids \(1, 2, 3\). Re-run stage features"),
        ({"target": "0" * 64}, "wants target 000000000000"),
        ({"dtype": "bfloat16"}, "dtype float32 .*wants dtype bfloat16"),
        ({"dataset": "f" * 64}, "wants dataset ffffffffffff"),
        ({"bucket_multiple": 32}, "bucket multiple 16; .*wants bucket multiple 32"),
    ):
        with pytest.raises(IdentityError, match=words):
            FeatureCache.open(build / "features", **wanted)


def test_damage_is_refused(config: Config, build: Path) -> None:
    with pytest.raises(DataError, match="manifest.json is missing"):
        FeatureCache.open(build / "features")
    build_feature_cache(config, build / "features")
    shard = build / "features" / "shard-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"shard-00000.safetensors has \d+ bytes, expected"):
        FeatureCache.open(build / "features")
    for text in ("{", '{"format": "other"}', '{"format": "dflash-features", "format_version": 1}', "[]"):
        (build / "features" / "manifest.json").write_text(text)
        with pytest.raises(DataError, match="Re-run stage features"):
            FeatureCache.open(build / "features")


def test_a_full_disk_is_seen_before_the_target_is_loaded(config: Config, build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(feature_cache.shutil, "disk_usage", lambda _path: usage(10, 9, 1))
    monkeypatch.setattr(feature_cache.Target, "load", lambda _config: pytest.fail("loaded"))
    with pytest.raises(DataError, match="features need .* GB in .*, 0.00 GB are free"):
        build_feature_cache(config, build / "features")


def test_a_disk_that_fills_up_is_one_sentence(config: Config, build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device")

    monkeypatch.setattr(feature_cache.safetensors.torch, "save_file", full)
    with pytest.raises(DataError, match="shard-00000.safetensors can't be written: .*No space left"):
        build_feature_cache(config, build / "features")


def test_batches_are_homogeneous_and_complete() -> None:
    lengths = np.random.default_rng(0).integers(5, 900, size=500)
    batches = plan_feature_batches(lengths, 64)
    assert sorted(row for batch in batches for row in batch.rows) == list(range(500))
    for batch in batches:
        assert all(batch.padded_length - 64 < lengths[row] <= batch.padded_length for row in batch.rows)
        assert len(batch.rows) * batch.padded_length <= feature_cache.BATCH_TOKENS
    assert len({(len(b.rows), b.padded_length) for b in batches}) <= 2 * 15, "at most one short batch a bucket"


def test_a_row_longer_than_a_batch_stands_alone() -> None:
    assert [batch.rows for batch in plan_feature_batches(np.array([9000, 10, 9001]), 32)] == [(1,), (0,), (2,)]


def test_target_config_dtype_is_part_of_the_identity(config: Config, build: Path) -> None:
    build_feature_cache(config, build / "features")
    narrow = config.model_copy(update={"target": TargetConfig(path=config.target.path, dtype="bfloat16")})
    build_feature_cache(narrow, build / "features")
    assert FeatureCache.open(build / "features").manifest.identity.dtype == "bfloat16"
