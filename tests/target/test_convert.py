"""Targets made here: complete, readable by everyone, the same each time, and reused while they verify."""

import json
import resource
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, Qwen3ForCausalLM

from dflash_core.config import TargetConfig
from dflash_core.data.identity import target_identity
from dflash_core.errors import DataError
from dflash_core.target.convert import convert_gguf, make_tiny_target
from dflash_core.target.layers import build_target_layer_ids
from dflash_core.target.model import Target
from dflash_core.target.saved import is_made_from
from dflash_core.target.self_check import self_check

TURNS = [{"role": "user", "content": "Why is the sky blue? \u00e9\u4f60"}, {"role": "assistant", "content": "Because of air.\n"}]


def test_tiny_target_passes_its_self_check(tiny_dir: Path) -> None:
    target = Target.load(TargetConfig(path=str(tiny_dir)))
    ids = torch.tensor(target.tokenizer("Explain how bread is made, and why it rises.")["input_ids"])
    self_check(target, build_target_layer_ids(target.num_layers, 3), ids)


def test_tiny_template_marks_the_answer_and_its_end(tiny_dir: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_dir)
    rendered = tokenizer.apply_chat_template(TURNS, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    ids = [i for i, marked in zip(rendered["input_ids"], rendered["assistant_masks"], strict=True) if marked]
    assert tokenizer.decode(ids) == "Because of air.\n<|im_end|>"
    assert tokenizer.decode(rendered["input_ids"]) == tokenizer.apply_chat_template(TURNS, tokenize=False)
    prompt = tokenizer.apply_chat_template(TURNS[:1], tokenize=False, add_generation_prompt=True)
    assert tokenizer.apply_chat_template(TURNS, tokenize=False).startswith(prompt)


def test_tiny_target_is_the_same_each_time_and_for_each_seed_another(tiny_dir: Path, tmp_path: Path) -> None:
    state = torch.get_rng_state()
    make_tiny_target(tmp_path / "again", seed=0)
    make_tiny_target(tmp_path / "other", seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert target_identity(tmp_path / "again") == target_identity(tiny_dir) != target_identity(tmp_path / "other")


def test_an_undamaged_result_is_kept_and_a_damaged_one_remade(tmp_path: Path) -> None:
    out = tmp_path / "target"
    make_tiny_target(out, seed=0)
    before = (out / "model.safetensors").stat()
    make_tiny_target(out, seed=0)
    assert (out / "model.safetensors").stat().st_ino == before.st_ino
    content = (out / "model.safetensors").read_bytes()
    (out / "model.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    make_tiny_target(out, seed=0)
    assert (out / "model.safetensors").read_bytes() == content


# The tiny target's weights are 517 kB, its tokenizer 21 kB; either may be what a full disk refuses.
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_full_disk_is_one_sentence_and_the_old_target_stays(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "target"
    make_tiny_target(out, seed=0)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    if name == "tokenizer.json":
        monkeypatch.setattr(Qwen3ForCausalLM, "save_pretrained", lambda *_: None)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))  # refuses as a full disk does, by the same libraries' errors
    try:
        with pytest.raises(DataError, match="target can't be written: .*Free space") as caught:
            make_tiny_target(out, seed=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(caught.value)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_files_can_be_read_by_everyone_and_name_no_place(tiny_dir: Path) -> None:
    assert {oct(path.stat().st_mode & 0o777) for path in tiny_dir.iterdir()} == {"0o644"}
    config = json.loads((tiny_dir / "config.json").read_text())
    assert "_model_name_or_path" not in config and "_name_or_path" not in config


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"source": {"seed": 1}, "files": {"none.bin": {"bytes": 1, "sha256": ""}}}'])
def test_a_manifest_that_does_not_verify_is_no_result(text: str, tmp_path: Path) -> None:
    (tmp_path / "conversion.json").write_text(text)
    assert not is_made_from(tmp_path, {"seed": 1})


def test_what_is_no_gguf_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist; expected a GGUF file"):
        convert_gguf(tmp_path / "none.gguf", tmp_path / "out")
    (tmp_path / "text.gguf").write_text("hello")
    with pytest.raises(DataError, match="begins with b'hell', expected b'GGUF'"):
        convert_gguf(tmp_path / "text.gguf", tmp_path / "out")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + b"\x03\0\0\0" + b"\0" * 64)
    with pytest.raises(DataError, match="can't be converted"):
        convert_gguf(tmp_path / "broken.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()
