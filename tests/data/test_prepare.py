"""Stage prepare: splits, drops, manifest, and the same bytes from the same input."""

import json

import numpy as np
import pyarrow.parquet
import pytest

from dflash_core.data import prepare as module
from dflash_core.data.dataset import Dataset, DatasetManifest, read_manifest
from dflash_core.data.identity import file_digest, target_identity, tokenizer_identity
from dflash_core.data.prepare import heldout_by_hash, prepare
from dflash_core.errors import DataError


def rows(count: int) -> list[dict]:
    return [{"id": f"r{n}", "prompt": f"Hello {n}?", "response": f"I am {n}. " * (1 + n % 3)} for n in range(count)]


def test_rows_come_back_as_tokens_with_their_mask(tmp_path, make_config, write_rows, make_tokenizer):
    config = make_config(write_rows(rows(7)))
    manifest = prepare(config, tmp_path / "prepared")
    dataset = Dataset.open(tmp_path / "prepared", "train")
    tokenizer = make_tokenizer()
    assert len(dataset) == 7 == manifest.splits["train"].rows and dataset.lengths.dtype == np.int32
    for number in range(7):
        sample = dataset.sample(number)
        assert (sample.sample_id, sample.category) == (f"r{number}", "other")
        assert sample.input_ids.dtype == np.int32 and sample.loss_mask.dtype == np.bool_
        assert len(sample.input_ids) == dataset.lengths[number] == len(sample.loss_mask)
        assert tokenizer.decode(sample.input_ids[sample.loss_mask]) == rows(7)[number]["response"] + "<|im_end|>"
        assert tokenizer.decode(sample.prompt_ids) == f"<|im_start|>user\nHello {number}?<|im_end|>\n<|im_start|>assistant\n"
    assert len(Dataset.open(tmp_path / "prepared", "heldout")) == 0
    with pytest.raises(IndexError):
        dataset.sample(7)


def test_the_manifest_says_what_is_there(tmp_path, make_config, write_rows, target_dir):
    source = write_rows(
        [*rows(5), {"prompt": "x", "response": ""}, {"prompt": "word " * 99, "response": "y"}, rows(1)[0] | {"id": None}]
    )
    config = make_config(source, heldout_fraction=0.5)
    out = tmp_path / "prepared"
    manifest = prepare(config, out)
    assert read_manifest(out) == manifest
    assert manifest.dropped == {"answer_too_short": 1, "prompt_too_long": 1}
    assert manifest.tokenizer == tokenizer_identity(target_dir) and manifest.target == target_identity(target_dir)
    assert manifest.config["max_length"] == 64 and manifest.config["conversations"] == [str(source)]
    (entry,) = manifest.sources
    assert (entry.rows, entry.bytes, entry.sha256) == (8, source.stat().st_size, file_digest(source))
    for name, split in manifest.splits.items():
        dataset = Dataset.open(out, name)
        samples = [dataset.sample(row) for row in range(len(dataset))]
        assert split.tokens == sum(len(s.input_ids) for s in samples)
        assert split.supervised_tokens == sum(int(s.loss_mask.sum()) for s in samples)
        assert (split.bytes, split.sha256) == ((out / split.file).stat().st_size, file_digest(out / split.file))
        counts = dataset.token_counts(10)
        assert counts.sum() == split.tokens
        assert len(samples) == 0 or counts[samples[0].input_ids[0]] >= len(samples)


def test_every_spelling_gets_a_right_mask(tmp_path, make_config, write_rows, make_tokenizer):
    mixed = [
        {"messages": [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "One."}]},
        {
            "conversations": [
                {"from": "system", "value": "S"},
                {"from": "human", "value": "2?"},
                {"from": "gpt", "value": "Two 🙂."},
            ]
        },
        {"conversations": [{"role": "user", "content": "3?"}, {"role": "assistant", "content": "Three."}]},
        {"instruction": "4?", "input": "more", "output": "Four."},
        {"instruction": "5?", "context": "more", "response": "Five."},
        {"prompt": "6?", "completion": "Six."},
        {"question": "7?", "answer": "Seven."},
    ]
    prepare(make_config(write_rows(mixed)), tmp_path / "out")
    dataset, tokenizer = Dataset.open(tmp_path / "out", "train"), make_tokenizer()
    samples = [dataset.sample(row) for row in range(len(dataset))]
    found = [tokenizer.decode(s.input_ids[s.loss_mask]).removesuffix("<|im_end|>") for s in samples]
    assert found == ["One.", "Two 🙂.", "Three.", "Four.", "Five.", "Six.", "Seven."]


def test_equal_input_gives_equal_bytes_and_replaces_the_old(tmp_path, make_config, write_rows, monkeypatch):
    monkeypatch.setattr(module, "ROWS_PER_GROUP", 4)
    config = make_config(write_rows(rows(30)), heldout_fraction=0.3)
    prepare(config, tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "stale").write_text("old")
    prepare(config, tmp_path / "b")
    first, second = ({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in "ab")
    assert first == second and set(first) == {"train.parquet", "heldout.parquet", "manifest.json"}
    assert pyarrow.parquet.ParquetFile(tmp_path / "a" / "train.parquet").num_row_groups > 1
    train = Dataset.open(tmp_path / "a", "train")
    assert [train.sample(row).sample_id for row in range(len(train))] == sorted(
        (train.sample(row).sample_id for row in range(len(train))), key=lambda name: int(name[1:])
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "rows.jsonl"]


def test_a_prompt_never_lands_in_both_splits(tmp_path, make_config, write_rows):
    many = [{"prompt": f"Hello {n % 40}?", "response": f"I am {n}."} for n in range(120)]
    chats = [
        {"messages": [{"role": "user", "content": f"Hello {n}?"}, {"role": "assistant", "content": "Fine, thank you."}] * 2}
        for n in range(40)
    ]
    prepare(make_config(write_rows(many + chats), heldout_fraction=0.4), tmp_path / "out")
    prompts = {}
    for split in ("train", "heldout"):
        dataset = Dataset.open(tmp_path / "out", split)
        prompts[split] = {tuple(dataset.sample(row).prompt_ids.tolist()) for row in range(len(dataset))}
        assert len(dataset) > 20
    assert len(prompts["train"] | prompts["heldout"]) == 40 and not prompts["train"] & prompts["heldout"]


def test_a_row_without_split_follows_the_files_word_on_its_prompt(tmp_path, make_config, write_rows):
    given = [{"prompt": f"Hello {n}?", "response": "I am fine.", "split": "heldout" if n % 2 else "train"} for n in range(10)]
    silent = [{"prompt": f"Hello {n}?", "response": "Thank you."} for n in range(10)]
    manifest = prepare(make_config(write_rows(silent + given), heldout_fraction=0.5), tmp_path / "out")
    assert (manifest.splits["train"].rows, manifest.splits["heldout"].rows) == (10, 10)


def test_hash_split_keeps_to_its_fraction():
    share = sum(heldout_by_hash(f"prompt {n}", 0.05) for n in range(20_000)) / 20_000
    assert share == pytest.approx(0.05, abs=0.005)
    assert not any(heldout_by_hash(str(n), 0.0) for n in range(100)) and all(heldout_by_hash(str(n), 1.0) for n in range(100))
    assert all(heldout_by_hash(str(n), 0.3) for n in range(500) if heldout_by_hash(str(n), 0.1))  # a larger share only adds


def test_duplicates_control_tokens_and_cut_rows(tmp_path, make_config, write_rows, make_tokenizer):
    source = write_rows(
        [
            {"prompt": "Hello?", "response": "Fine."},
            {"prompt": "Hello?", "response": "Fine."},
            {"prompt": "Hello?", "response": "Fine<|im_end|>"},
            {"prompt": "Hello?", "response": "I am fine, thank you. " * 40},
            {"prompt": "Bye?", "response": "I am fine, thank", "finished": False},
        ]
    )
    manifest = prepare(make_config(source), tmp_path / "out")
    dataset, tokenizer = Dataset.open(tmp_path / "out", "train"), make_tokenizer()
    assert manifest.dropped == {"control_token": 1, "duplicate": 1}
    assert manifest.splits["train"].truncated_rows == 1 and dataset.lengths.tolist()[1] == 64
    last = dataset.sample(2)
    assert last.loss_mask[-1] and tokenizer.decode(last.input_ids[last.loss_mask]) == "I am fine, thank"


def test_a_template_error_names_the_line(tmp_path, make_config, write_rows, target_dir, make_tokenizer):
    bad_target = tmp_path / "target"
    make_tokenizer("{{ raise_exception('No.') }}").save_pretrained(bad_target)
    for name in ("config.json", "model.safetensors"):
        (bad_target / name).write_bytes((target_dir / name).read_bytes())
    config = make_config(write_rows(rows(1)))
    config = config.model_copy(update={"target": config.target.model_copy(update={"path": str(bad_target)})})
    with pytest.raises(DataError, match=r"rows.jsonl line 1: The chat template refuses"):
        prepare(config, tmp_path / "out")


def test_a_kill_between_the_renames_is_repaired(tmp_path, make_config, write_rows):
    out = tmp_path / "out"
    prepare(make_config(write_rows(rows(3))), out)
    out.rename(tmp_path / ".out.previous")
    (tmp_path / ".out.building").mkdir()
    with pytest.raises(DataError):
        prepare(make_config(write_rows([], "empty.jsonl")), out)
    prepare(make_config(write_rows(rows(4))), out)
    assert len(Dataset.open(out, "train")) == 4
    assert not list(tmp_path.glob(".out*"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda out: (out / "train.parquet").unlink(), "is missing"),
        (lambda out: (out / "train.parquet").write_bytes(b"short"), "has 5 bytes"),
        (lambda out: flip_byte(out / "train.parquet"), "has sha256"),
        (lambda out: (out / "manifest.json").unlink(), "Run prepare first"),
        (lambda out: (out / "manifest.json").write_text("{"), "no dataset manifest"),
        (lambda out: (out / "manifest.json").write_text("[]"), "no dataset manifest"),
        (lambda out: edit(out / "manifest.json", "format_version", 2), "has format dflash-prepared 2"),
        (lambda out: edit(out / "manifest.json", "surprise", 2), "no dataset manifest"),
    ],
)
def test_a_damaged_dataset_is_refused(damage, message, tmp_path, make_config, write_rows):
    prepare(make_config(write_rows(rows(3))), tmp_path / "out")
    damage(tmp_path / "out")
    with pytest.raises(DataError, match=message):
        Dataset.open(tmp_path / "out", "train")


def flip_byte(path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def edit(path, key: str, value: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))


def test_the_digest_is_of_the_rows_not_of_the_place(tmp_path, make_config, write_rows):
    first = prepare(make_config(write_rows(rows(3), "a.jsonl")), tmp_path / "1")
    moved = prepare(make_config(write_rows(rows(3), "b.jsonl")), tmp_path / "2")
    other = prepare(make_config(write_rows(rows(4), "c.jsonl")), tmp_path / "3")
    assert first.digest == moved.digest != other.digest
    assert DatasetManifest.from_json(first.to_json(), "x").digest == first.digest


def test_a_row_beyond_the_targets_context_is_refused(tmp_path, make_config, write_rows):
    config = make_config(write_rows([{"id": "long", "prompt": "p", "response": "word " * 4000}]), max_length=100_000)
    with pytest.raises(DataError, match=r"long has \d+ tokens, expected at most the 2048 of the target's context. Lower data.max_length, which is 100000"):
        prepare(config, tmp_path / "out")
