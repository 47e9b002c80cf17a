"""Stage bucket writes what the plan was made from; training refuses any other."""

import json

import pytest

from dflash_core.data.dataset import Dataset
from dflash_core.data.plan_manifest import open_plan, read_plan_manifest, write_plan
from dflash_core.data.prepare import prepare
from dflash_core.errors import DataError, IdentityError

BUCKET = {"multiple": 8, "tokens_per_step": 256, "tokens_per_microbatch": 128}


@pytest.fixture
def prepared(tmp_path, make_config, write_rows):
    rows = [{"prompt": f"Hello {n}?", "response": "I am fine. " * (1 + n % 5)} for n in range(40)]
    config = make_config(write_rows(rows), bucket=BUCKET)
    prepare(config, tmp_path / "prepared")
    return config


def change(config, section: str, **values):
    return config.model_copy(update={section: getattr(config, section).model_copy(update=values)})


def test_statistics_and_the_same_plan(prepared, tmp_path):
    manifest = write_plan(prepared, tmp_path / "prepared", tmp_path / "plan")
    dataset = Dataset.open(tmp_path / "prepared", "train")
    plan = open_plan(prepared, dataset, tmp_path / "plan")
    assert read_plan_manifest(tmp_path / "plan") == manifest
    assert manifest.num_samples == plan.num_samples == 40 and manifest.steps_per_epoch == plan.steps_per_epoch
    assert manifest.tokens == dataset.lengths.sum() and sum(manifest.histogram.values()) == 40
    padded = sum(int(length) * count for length, count in manifest.histogram.items())
    assert manifest.padded_tokens == padded
    assert manifest.padding_waste == pytest.approx(1 - manifest.tokens / padded, abs=1e-6)
    seen = [m for n in range(plan.steps_per_epoch) for m in plan.step_number(n).micro_batches]
    assert manifest.micro_batches_per_step == pytest.approx(len(seen) / plan.steps_per_epoch, abs=1e-3)


def test_another_seed_bucket_or_dataset_is_refused(prepared, tmp_path, make_config, write_rows):
    write_plan(prepared, tmp_path / "prepared", tmp_path / "plan")
    dataset = Dataset.open(tmp_path / "prepared", "train")
    with pytest.raises(IdentityError, match='seed 0; this run wants 5. Re-run stage "bucket"'):
        open_plan(change(prepared, "training", seed=5), dataset, tmp_path / "plan")
    with pytest.raises(IdentityError, match="'multiple': 8.*'multiple': 16"):
        open_plan(change(prepared, "bucket", multiple=16), dataset, tmp_path / "plan")
    other = make_config(write_rows([{"prompt": "Hello?", "response": "I am fine."}], "other.jsonl"), bucket=BUCKET)
    prepare(other, tmp_path / "other")
    with pytest.raises(IdentityError, match="made for dataset"):
        open_plan(prepared, Dataset.open(tmp_path / "other", "train"), tmp_path / "plan")


@pytest.mark.parametrize(
    ("name", "message"), [("tokenizer.json", "made for tokenizer"), ("model.safetensors", "made for target")]
)
def test_another_target_is_refused(name, message, prepared, tmp_path, target_dir):
    copy = tmp_path / "target"
    copy.mkdir()
    for path in target_dir.iterdir():
        (copy / path.name).write_bytes(path.read_bytes() + (b"\n" if path.name == name else b""))
    moved = change(prepared, "target", path=str(copy))
    with pytest.raises(IdentityError, match=message):
        write_plan(moved, tmp_path / "prepared", tmp_path / "plan")
    assert not (tmp_path / "plan").exists()
    write_plan(prepared, tmp_path / "prepared", tmp_path / "plan")
    with pytest.raises(IdentityError, match=message):
        open_plan(moved, Dataset.open(tmp_path / "prepared", "train"), tmp_path / "plan")


def test_a_missing_or_foreign_manifest_is_refused(prepared, tmp_path):
    dataset = Dataset.open(tmp_path / "prepared", "train")
    with pytest.raises(DataError, match="Run bucket first"):
        open_plan(prepared, dataset, tmp_path / "plan")
    write_plan(prepared, tmp_path / "prepared", tmp_path / "plan")
    path = tmp_path / "plan" / "manifest.json"
    tree = json.loads(path.read_text())
    path.write_text(json.dumps(tree | {"format_version": 9}))
    with pytest.raises(DataError, match="has format dflash-plan 9"):
        open_plan(prepared, dataset, tmp_path / "plan")
    path.write_text("[1]")
    with pytest.raises(DataError, match="no plan manifest"):
        open_plan(prepared, dataset, tmp_path / "plan")
