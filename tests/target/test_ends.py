"""Ends read from files are the loaded target's, and nothing else is read."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from dflash_core.config import TargetConfig, parse_config
from dflash_core.drafter.initialise import Probe, initialise
from dflash_core.drafter.model import Drafter
from dflash_core.errors import ConfigError
from dflash_core.evaluation.chain_walk import WalkRow, chain_walk
from dflash_core.stages.train_inputs import make_spec
from dflash_core.target.ends import TargetEnds, load_ends
from dflash_core.target.model import Target

DRAFTER = {"num_layers": 2, "block_size": 4, "num_features": 2}


def configured(path: Path, dtype: str = "float32") -> TargetConfig:
    return TargetConfig(path=str(path), dtype=dtype)


def assert_same(ends: TargetEnds, target: Target, ids_BT: torch.Tensor) -> None:
    """Bit-equal in everything that a drafter's rank uses."""
    assert torch.equal(ends.embed(ids_BT), target.embed(ids_BT))
    assert torch.equal(ends.head_weight_VD, target.head_weight_VD)
    for name in ("hidden_size", "num_layers", "vocab_size", "dtype", "device", "embedding_scale", "logit_softcap", "path"):
        assert getattr(ends, name) == getattr(target, name), name
    assert ends.config.to_dict() == target.config.to_dict()
    assert not ends.head_weight_VD.requires_grad and not ends.embed(ids_BT).requires_grad


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ends_are_the_loaded_targets(
    family: str, make_model: Callable[..., PreTrainedModel], tmp_path: Path, ids_BT: torch.Tensor, dtype: str
) -> None:
    make_model(family).save_pretrained(tmp_path)
    assert_same(load_ends(configured(tmp_path, dtype)), Target.load(configured(tmp_path, dtype)), ids_BT)


def test_layers_and_final_norm_are_the_loaded_targets(
    family: str, make_model: Callable[..., PreTrainedModel], tmp_path: Path
) -> None:
    make_model(family).save_pretrained(tmp_path)
    ends, target = load_ends(configured(tmp_path)), Target.load(configured(tmp_path))
    for mine, theirs in zip(ends.decoder_layers((1, 4)), target.decoder_layers((1, 4)), strict=True):
        mine, theirs = mine.state_dict(), theirs.state_dict()
        assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert (ends.final_norm is None) == (target.final_norm is None)
    assert ends.final_norm is None or torch.equal(ends.final_norm.weight, target.final_norm.weight)


def test_a_tied_head_is_the_embedding(tiny_dir: Path) -> None:
    ends = load_ends(configured(tiny_dir, "bfloat16"))
    assert_same(ends, Target.load(configured(tiny_dir, "bfloat16")), torch.arange(512)[None])
    assert ends.head_weight_VD.data_ptr() == ends._embedding.weight.data_ptr()
    assert ends.tokenizer.decode(ends.tokenizer.encode("boat")) == "boat"


@pytest.mark.parametrize("stored_head", ["equal", "different", "alone"])
def test_a_tied_head_in_the_file_follows_transformers(
    tmp_path: Path, llama_config: LlamaConfig, ids_BT: torch.Tensor, stored_head: str
) -> None:
    config = LlamaConfig(**{**llama_config.to_dict(), "tie_word_embeddings": True})
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    assert "lm_head.weight" not in weights
    embedding = weights["model.embed_tokens.weight"]
    weights["lm_head.weight"] = embedding.clone() if stored_head != "different" else embedding + 1
    if stored_head == "alone":
        del weights["model.embed_tokens.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    ends = load_ends(configured(tmp_path))
    assert_same(ends, Target.load(configured(tmp_path)), ids_BT)
    shared = ends.head_weight_VD.data_ptr() == ends._embedding.weight.data_ptr()
    assert shared == (stored_head != "different")


def test_names_of_a_checkpoint_with_a_vision_tower(vision_dir: Path, ids_BT: torch.Tensor) -> None:
    """Gemma 3's files call the text model `language_model.model`, its class `model.language_model`."""
    assert "language_model.model.embed_tokens.weight" in load_file(vision_dir / "model.safetensors")
    ends, target = load_ends(configured(vision_dir)), Target.load(configured(vision_dir))
    assert_same(ends, target, ids_BT)
    assert ends.embedding_scale == pytest.approx(32**0.5)
    assert torch.equal(next(ends.decoder_layers((2,))).mlp.up_proj.weight, next(target.decoder_layers((2,))).mlp.up_proj.weight)


def test_a_drafters_rank_needs_no_more(tiny_dir: Path) -> None:
    """The drafter's shape, and its rounds in the chain walk, follow from the ends as from the whole target."""
    ends, target = load_ends(configured(tiny_dir)), Target.load(configured(tiny_dir))
    config = parse_config({"target": {"path": str(tiny_dir)}, "data": {"conversations": ["c.jsonl"]}, "drafter": DRAFTER}, "test")
    dataset = SimpleNamespace(token_counts=lambda size: np.ones(size, dtype=np.int64) * (np.arange(size) < 500))
    spec = make_spec(config, ends, dataset)
    assert spec == make_spec(config, target, dataset)
    drafter = Drafter(spec)
    row_T = torch.randint(3, 500, (64,), generator=torch.Generator().manual_seed(1))
    initialise(drafter, target, "target", 0, Probe((row_T,), row_T))
    row = WalkRow(tuple(row_T.tolist()), 5, target.features(row_T[None], spec.target_layer_ids)[0])
    assert chain_walk(ends, drafter, [row], tie_margin=1.0) == chain_walk(target, drafter, [row], tie_margin=1.0)


def test_only_the_files_of_the_ends_are_read(
    tmp_path: Path, make_model: Callable[..., PreTrainedModel], ids_BT: torch.Tensor
) -> None:
    """All other shards of the index can be missing; what is held in memory is the two tensors."""
    model = make_model("llama")
    model.save_pretrained(tmp_path, max_shard_size="8KB")
    target = Target.load(configured(tmp_path))
    shards = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    needed = {shards["model.embed_tokens.weight"], shards["lm_head.weight"]}
    removed = [path for path in tmp_path.glob("*.safetensors") if path.name not in needed]
    assert len(removed) > 5
    for path in removed:
        path.unlink()
    ends = load_ends(configured(tmp_path))
    assert_same(ends, target, ids_BT)
    held = [*ends._stored.skeleton.parameters(), *ends._stored.skeleton.buffers()]
    assert all(tensor.is_meta for tensor in held)
    with pytest.raises(ConfigError, match="can't be read.*missing files"):
        next(ends.decoder_layers((1,)))


def test_random_state_is_left_alone(tiny_dir: Path) -> None:
    before = torch.get_rng_state()
    list(load_ends(configured(tiny_dir)).decoder_layers((0,)))
    assert torch.equal(before, torch.get_rng_state())


def test_a_missing_or_quantised_tensor_is_refused(tmp_path: Path, make_model: Callable[..., PreTrainedModel]) -> None:
    make_model("llama").save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    head = weights.pop("lm_head.weight")
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"lack lm_head.weight; expected all"):
        load_ends(configured(tmp_path))
    for wrong in (head.to(torch.float8_e4m3fn), head[:-1].clone()):
        save_file(weights | {"lm_head.weight": wrong}, path, metadata={"format": "pt"})
        with pytest.raises(ConfigError, match=r"lm_head.weight in .* expected \[96, 32\] in one of BF16, F16, F32, F64"):
            load_ends(configured(tmp_path))


@pytest.mark.parametrize("damage", ["truncated", "index", "bin"])
def test_damaged_files_are_refused(tmp_path: Path, make_model: Callable[..., PreTrainedModel], damage: str) -> None:
    make_model("llama").save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "index":
        path.rename(tmp_path / "model-1.safetensors")
        (tmp_path / "model.safetensors.index.json").write_text("[]")
    else:
        path.rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="can't be read|expected weights as safetensors"):
        load_ends(configured(tmp_path))
