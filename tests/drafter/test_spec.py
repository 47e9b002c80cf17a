"""The drafter's shape: z-lab's config.json and keys, and what follows from a target."""

from dataclasses import replace

import pytest
from transformers import LlamaConfig, Qwen3Config

from dflash_core.config import DrafterConfig
from dflash_core.drafter.model import Drafter
from dflash_core.drafter.spec import DrafterSpec, from_target
from dflash_core.errors import ConfigError

from .conftest import SLIDING, SPEC

LAYER_KEYS = [
    *(f"self_attn.{name}_proj.weight" for name in "qkvo"),
    *(f"self_attn.{name}_norm.weight" for name in "qk"),
    *(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
]


def test_keys_are_zlabs() -> None:
    drafter = Drafter(replace(SPEC, num_layers=5, layer_types=()))
    expected = {f"layers.{i}.{key}" for i in range(5) for key in LAYER_KEYS} | {"fc.weight", "hidden_norm.weight", "norm.weight"}
    assert set(drafter.state_dict()) == expected and len(expected) == 58
    assert drafter.fc.weight.shape == (32, 2 * 32)


@pytest.mark.parametrize(
    "spec", [SPEC, SLIDING, replace(SPEC, rope_scaling={"rope_type": "linear", "factor": 2.0}, logit_softcap=30.0)]
)
def test_zlab_config_round_trip(spec: DrafterSpec) -> None:
    config = spec.to_zlab_config()
    assert config["block_size"] == config["dflash_config"]["block_size"] == 4
    assert config["dflash_config"]["target_layer_ids"] == [1, 3]
    assert DrafterSpec.from_zlab_config(config) == spec
    read = Qwen3Config(**{key: value for key, value in config.items() if key not in ("architectures", "auto_map")})
    assert read.rope_parameters["rope_theta"] == spec.rope_theta and read.layer_types == list(spec.layer_types)


def test_config_that_contradicts_itself_is_refused() -> None:
    config = SPEC.to_zlab_config()
    with pytest.raises(ConfigError, match=r"block_size \[4, 8\]"):
        DrafterSpec.from_zlab_config({**config, "block_size": 8})
    with pytest.raises(ConfigError, match="no 'mask_token_id'"):
        DrafterSpec.from_zlab_config({**config, "dflash_config": {"block_size": 4, "target_layer_ids": [1]}})
    with pytest.raises(ConfigError, match="mask_token_id 40 is no row"):
        replace(SPEC, mask_token_id=40)


@pytest.mark.parametrize(
    "name, value",
    [
        ("hidden_size", "x"), ("num_attention_heads", None), ("num_hidden_layers", -1), ("vocab_size", "512"), ("rms_norm_eps", None),
        ("rope_theta", "x"), ("block_size", [4]), ("block_size", 1), ("dflash_config", [1]), ("mask_token_id", "x"), ("target_layer_ids", "01"),
        ("target_layer_ids", 3), ("target_layer_ids", [True]),
    ],
)  # fmt: skip
def test_values_of_another_type_are_refused_with_both(name: str, value: object) -> None:
    config = SPEC.to_zlab_config()
    changed = {**config, name: value} if name in config else {**config, "dflash_config": {**config["dflash_config"], name: value}}
    with pytest.raises(ConfigError, match=f"has {name} .*, expected "):
        DrafterSpec.from_zlab_config(changed)


def test_follows_the_target() -> None:
    rope = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    target = LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=12, num_attention_heads=4, num_key_value_heads=2, vocab_size=100,
        rms_norm_eps=1e-5, rope_parameters={**rope, "original_max_position_embeddings": 8192},
    )  # fmt: skip
    spec = from_target(target, DrafterConfig(num_layers=2, block_size=8, num_features=3), mask_token_id=99)
    assert (spec.hidden_size, spec.head_dim, spec.num_kv_heads, spec.rms_norm_eps) == (64, 16, 2, 1e-5)
    assert spec.target_layer_ids == (1, 5, 9) and spec.num_target_layers == 12
    assert spec.rope_theta == 5e5 and spec.rope_scaling["rope_type"] == "llama3" and "rope_theta" not in spec.rope_scaling
    Drafter(spec)


def test_rope_of_part_of_a_head_is_not_taken_over() -> None:
    target = LlamaConfig(
        num_hidden_layers=8, rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "partial_rotary_factor": 0.5}
    )
    assert from_target(target, DrafterConfig(num_layers=1, num_features=2), mask_token_id=1).rope_scaling is None
