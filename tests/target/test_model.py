"""The truncated forward gives the plain forward's hidden states, for every family."""

from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from transformers import PreTrainedConfig, PreTrainedModel, T5Config

from dflash_core.config import TargetConfig
from dflash_core.errors import ConfigError
from dflash_core.target.model import Target

LAYER_IDS = (0, 1, 3)


@pytest.fixture
def target(family: str, make_model: Callable[..., PreTrainedModel]) -> Target:
    return Target(make_model(family), Path(family))


def plain(target: Target, ids_BT: torch.Tensor):
    return target.model(input_ids=ids_BT, output_hidden_states=True, use_cache=False)


def test_features_equal_plain_hidden_states(target: Target, ids_BT: torch.Tensor) -> None:
    states = plain(target, ids_BT).hidden_states
    for layer_ids in (LAYER_IDS, (2,), (0,), (1, 2)):  # views of several depths, the deeper one first
        features_BTF = target.features(ids_BT, layer_ids)
        assert torch.equal(features_BTF, torch.cat([states[i + 1] for i in layer_ids], dim=-1))
        assert not features_BTF.requires_grad and not features_BTF.is_inference()


def test_features_run_only_the_layers_needed(target: Target, ids_BT: torch.Tensor) -> None:
    ran: list[int] = []
    for number, layer in enumerate(target._decoder.layers):
        layer.register_forward_hook(lambda *_args, number=number: ran.append(number))
    target.features(ids_BT, (0, 2))
    assert ran == [0, 1, 2]
    assert len(target._decoder.layers) == 5, "the view must not shorten the model itself"


def test_right_padding_changes_nothing_before_it(target: Target, ids_BT: torch.Tensor) -> None:
    padded_BT = torch.cat([ids_BT, torch.zeros(2, 15, dtype=torch.int64)], dim=1)
    torch.testing.assert_close(target.features(padded_BT, LAYER_IDS)[:, :17], target.features(ids_BT, LAYER_IDS), atol=1e-5, rtol=1e-5)


def test_embed_is_what_the_first_layer_sees(target: Target, ids_BT: torch.Tensor) -> None:
    assert torch.equal(target.embed(ids_BT), plain(target, ids_BT).hidden_states[0])


def test_logits_follow_from_head_weight_and_softcap(target: Target, ids_BT: torch.Tensor) -> None:
    output = plain(target, ids_BT)
    logits_BTV = output.hidden_states[-1] @ target.head_weight_VD.T
    if target.logit_softcap is not None:
        logits_BTV = target.logit_softcap * torch.tanh(logits_BTV / target.logit_softcap)
    torch.testing.assert_close(logits_BTV, output.logits, atol=1e-5, rtol=1e-5)


def test_cached_chunks_equal_one_forward(target: Target, ids_BT: torch.Tensor) -> None:
    ids_BT = ids_BT[:1]
    cache, logits, features = None, [], []
    for chunk in (ids_BT[:, :6], ids_BT[:, 6:7], ids_BT[:, 7:]):
        logits_BTV, features_BTF, cache = target.forward_cached(chunk, cache, LAYER_IDS)
        logits.append(logits_BTV)
        features.append(features_BTF)
    torch.testing.assert_close(torch.cat(logits, dim=1), plain(target, ids_BT).logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(torch.cat(features, dim=1), target.features(ids_BT, LAYER_IDS), atol=1e-5, rtol=1e-5)


def test_features_ignore_autocast(llama: Target, ids_BT: torch.Tensor) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features_BTF = llama.features(ids_BT, LAYER_IDS)
    assert torch.equal(features_BTF, llama.features(ids_BT, LAYER_IDS))


def test_forward_without_layers_has_empty_features(llama: Target, ids_BT: torch.Tensor) -> None:
    _, features_BTF, _ = llama.forward_cached(ids_BT, None, ())
    assert features_BTF.shape == (2, 17, 0)


def test_load_gives_the_saved_model(tmp_path: Path, make_model: Callable[..., PreTrainedModel], ids_BT: torch.Tensor) -> None:
    model = make_model("qwen3")
    model.save_pretrained(tmp_path)
    target = Target.load(TargetConfig(path=str(tmp_path), dtype="float32"))
    assert (target.hidden_size, target.vocab_size, target.num_layers, target.dtype) == (32, 96, 5, torch.float32)
    assert torch.equal(target.features(ids_BT, (1,)), Target(model, tmp_path).features(ids_BT, (1,)))
    assert not any(parameter.requires_grad for parameter in target.model.parameters())


@pytest.mark.parametrize("layer_ids", [(), (4,), (-1, 2), (2, 1), (1, 1), (1, 9)])
def test_wrong_layer_ids_are_refused(layer_ids: tuple[int, ...], llama: Target, ids_BT: torch.Tensor) -> None:
    with pytest.raises(ConfigError, match="expected ascending ids from 0 to 3 for a target of 5 layers"):
        llama.features(ids_BT, layer_ids)


def test_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a directory"):
        Target.load(TargetConfig(path=str(tmp_path / "nowhere")))
    with pytest.raises(ConfigError, match="holds no config.json"):
        Target.load(TargetConfig(path=str(tmp_path)))


def test_directory_without_weights_is_refused(llama_config: PreTrainedConfig, tmp_path: Path) -> None:
    llama_config.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="holds no weights"):
        Target.load(TargetConfig(path=str(tmp_path)))


def test_encoder_decoder_is_refused_before_weights(tmp_path: Path) -> None:
    T5Config().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="an encoder-decoder model; expected a decoder-only one"):
        Target.load(TargetConfig(path=str(tmp_path)))


def test_unknown_type_and_broken_config_are_refused(tmp_path: Path) -> None:
    for text in ('{"model_type": "nonesuch"}', "{not json"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ConfigError, match="can't be used"):
            Target.load(TargetConfig(path=str(tmp_path)))


def test_damaged_weights_are_refused(llama: Target, tmp_path: Path) -> None:
    llama.model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ConfigError, match="can't be loaded"):
        Target.load(TargetConfig(path=str(tmp_path)))


def test_incomplete_weights_are_refused(llama: Target, tmp_path: Path) -> None:
    llama.model.save_pretrained(tmp_path)
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match="lack 1 tensors of config.json's model, among them model.layers.1.mlp.up_proj.weight"):
        Target.load(TargetConfig(path=str(tmp_path)))


def test_a_forward_beside_a_training_step_leaves_its_cast_weights_alone(
    target: Target, ids_BT: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch keeps them for all threads in one cache, which the end of any outermost autocast empties."""
    cleared = []
    monkeypatch.setattr(torch, "clear_autocast_cache", lambda: cleared.append(1))
    plain_BTF = target.features(ids_BT, LAYER_IDS)
    target.forward_cached(ids_BT, None, ())
    assert not cleared
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(target.features(ids_BT, LAYER_IDS), plain_BTF), "the target's own dtype, also within a step"
