"""The shape of a drafter, and its translation to and from z-lab's config.json."""

import math
from dataclasses import dataclass
from typing import Any

from dflash_core.config import DrafterConfig
from dflash_core.errors import ConfigError
from dflash_core.target.layers import build_target_layer_ids

# RoPE variants whose frequencies don't depend on the length of the sequence. The others ("dynamic",
# "longrope") are not carried over: the drafter then uses plain RoPE with the target's theta.
STATIC_ROPE_TYPES = ("linear", "llama3", "yarn")
# Of z-lab's config.json; in each, 1 is the least that makes sense.
WHOLE_NUMBERS = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers", "num_target_layers"),
    *("vocab_size", "max_position_embeddings"),
)


@dataclass(frozen=True, kw_only=True)
class DrafterSpec:
    """Everything that fixes the drafter's tensors and its mask; weights are not part of it.

    Layer ids are z-lab's: 0-based decoder layers of the target whose *output* is captured, which is
    `hidden_states[id + 1]` in transformers. `block_size` counts the anchor.
    """

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_layers: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    vocab_size: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    layer_types: tuple[str, ...] = ()
    sliding_window: int | None = None
    max_position_embeddings: int = 40960
    embedding_scale: float = 1.0
    logit_softcap: float | None = None

    def __post_init__(self) -> None:
        if not self.layer_types:
            object.__setattr__(self, "layer_types", ("full_attention",) * self.num_layers)
        if len(self.layer_types) != self.num_layers:
            raise ConfigError(f"layer_types has {len(self.layer_types)} entries, expected {self.num_layers}; give one a layer.")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"{self.num_heads} heads are no multiple of {self.num_kv_heads} key/value heads; correct the config."
            )
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise ConfigError(
                f"mask_token_id {self.mask_token_id} is no row of the embedding, expected 0 to {self.vocab_size - 1}; choose one."
            )
        if ("sliding_attention" in self.layer_types) != (self.sliding_window is not None):
            raise ConfigError(
                f"sliding_window {self.sliding_window} and layer_types {self.layer_types} disagree; set both or neither."
            )

    @property
    def features_size(self) -> int:
        """Width of the concatenated target features, the input of `fc`."""
        return len(self.target_layer_ids) * self.hidden_size

    def window_of(self, layer: int) -> int | None:
        """Window of one layer in tokens, or None where it sees the whole context."""
        return self.sliding_window if self.layer_types[layer] == "sliding_attention" else None

    def to_zlab_config(self) -> dict[str, Any]:
        """The config.json of z-lab's layout.

        `block_size` and the mask row stand in both places that loaders read (SGLang and vLLM look in
        dflash_config, z-lab's first code at the top level).
        """
        dflash: dict[str, Any] = {
            "block_size": self.block_size,
            "mask_token_id": self.mask_token_id,
            "target_layer_ids": list(self.target_layer_ids),
        }
        if self.embedding_scale != 1.0:
            dflash["input_embedding_scale"] = self.embedding_scale
        if self.logit_softcap is not None:
            dflash["final_logit_softcapping"] = self.logit_softcap
        return {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
            "block_size": self.block_size,
            "dflash_config": dflash,
            "num_target_layers": self.num_target_layers,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "rope_scaling": self.rope_scaling,
            "max_position_embeddings": self.max_position_embeddings,
            "layer_types": list(self.layer_types),
            "sliding_window": self.sliding_window,
            "use_sliding_window": self.sliding_window is not None,
            "max_window_layers": self.num_layers,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "initializer_range": 0.02,
            "tie_word_embeddings": False,
            "vocab_size": self.vocab_size,
        }

    @classmethod
    def from_zlab_config(cls, config: dict[str, Any]) -> "DrafterSpec":
        """Read a z-lab config.json.

        Raises:
            ConfigError: a field is missing or no number, or block_size differs between its two places.
        """
        dflash = config.get("dflash_config") or {}
        _refuse_other_types(config, dflash)
        sizes = {place["block_size"] for place in (config, dflash) if "block_size" in place}
        if len(sizes) != 1:
            raise ConfigError(
                f"config.json gives block_size {sorted(sizes) or 'nowhere'}, expected one value; correct the drafter's config."
            )
        rope = config.get("rope_parameters") or {}
        try:
            return cls(
                hidden_size=config["hidden_size"],
                intermediate_size=config["intermediate_size"],
                num_heads=config["num_attention_heads"],
                num_kv_heads=config["num_key_value_heads"],
                head_dim=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
                num_layers=config["num_hidden_layers"],
                block_size=sizes.pop(),
                mask_token_id=dflash["mask_token_id"],
                target_layer_ids=tuple(dflash["target_layer_ids"]),
                num_target_layers=config["num_target_layers"],
                vocab_size=config["vocab_size"],
                rms_norm_eps=config["rms_norm_eps"],
                rope_theta=float(config["rope_theta"] if "rope_theta" in config else rope["rope_theta"]),
                rope_scaling=config.get("rope_scaling") or _scaling(rope),
                layer_types=tuple(config.get("layer_types") or ()),
                sliding_window=config.get("sliding_window") if config.get("use_sliding_window") else None,
                max_position_embeddings=config["max_position_embeddings"],
                embedding_scale=float(dflash.get("input_embedding_scale", 1.0)),
                logit_softcap=dflash.get("final_logit_softcapping"),
            )
        except KeyError as missing:
            raise ConfigError(
                f"config.json of the drafter has no {missing}, which z-lab's layout needs; export the drafter again."
            ) from None


def _refuse_other_types(config: dict[str, Any], dflash: object) -> None:
    """Raise ConfigError for a value of another type than z-lab's layout has there; the file may be of another program."""
    if not isinstance(dflash, dict):
        raise ConfigError(f"config.json of the drafter has dflash_config {dflash!r:.60}, expected an object; export the drafter again.")
    least = {name: 1 for name in WHOLE_NUMBERS} | {"block_size": 2, "mask_token_id": 0}
    whole = [(name, place[name]) for place in (config, dflash) for name in least if name in place]
    for name, value in whole:
        if type(value) is not int or value < least[name]:
            raise ConfigError(f"config.json of the drafter has {name} {value!r:.60}, expected a whole number from {least[name]}; export the drafter again.")
    ids = dflash.get("target_layer_ids", [])
    if not isinstance(ids, list) or any(type(layer) is not int for layer in ids):
        raise ConfigError(f"config.json of the drafter has target_layer_ids {ids!r:.60}, expected a list of whole numbers; export the drafter again.")
    for name in {"rms_norm_eps", "rope_theta"} & set(config):
        if type(config[name]) not in (int, float):
            raise ConfigError(f"config.json of the drafter has {name} {config[name]!r:.60}, expected a number; export the drafter again.")


def from_target(target_config: Any, drafter: DrafterConfig, mask_token_id: int, embedding_scale: float = 1.0) -> DrafterSpec:
    """The drafter for a target: Qwen3 layers at the target's own width, heads and RoPE.

    Args:
        target_config: transformers' (text) configuration of the target.
        drafter: the run's settings; ids that are not set follow z-lab's rule.
        mask_token_id: the checked mask row.
        embedding_scale: what the target multiplies raw embedding rows by before its first layer (Gemma: sqrt(hidden)).
    """
    heads = target_config.num_attention_heads
    theta, scaling = _target_rope(target_config)
    num_layers = target_config.num_hidden_layers
    return DrafterSpec(
        hidden_size=target_config.hidden_size,
        intermediate_size=target_config.intermediate_size,
        num_heads=heads,
        num_kv_heads=getattr(target_config, "num_key_value_heads", None) or heads,
        head_dim=getattr(target_config, "head_dim", None) or target_config.hidden_size // heads,
        num_layers=drafter.num_layers,
        block_size=drafter.block_size,
        mask_token_id=mask_token_id,
        target_layer_ids=tuple(drafter.target_layer_ids or build_target_layer_ids(num_layers, drafter.num_features)),
        num_target_layers=num_layers,
        vocab_size=target_config.vocab_size,
        rms_norm_eps=float(getattr(target_config, "rms_norm_eps", None) or 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        layer_types=drafter.layer_types or (),
        sliding_window=drafter.sliding_window,
        max_position_embeddings=target_config.max_position_embeddings,
        embedding_scale=embedding_scale,
        logit_softcap=getattr(target_config, "final_logit_softcapping", None),
    )


def _target_rope(target_config: Any) -> tuple[float, dict[str, Any] | None]:
    """Theta and static scaling of the target; Gemma 3 has one set per layer type, of which the full layers' is taken."""
    rope = dict(getattr(target_config, "rope_parameters", None) or {})
    rope = dict(rope.get("full_attention", rope))
    # A target that rotates only part of a head has scaling factors of that part's length; the drafter
    # rotates whole heads (as Qwen3 does), so such factors can't be taken over.
    partial = rope.get("partial_rotary_factor", getattr(target_config, "partial_rotary_factor", 1.0))
    return float(rope.get("rope_theta", 10000.0)), _scaling(rope) if math.isclose(partial or 1.0, 1.0) else None


def _scaling(rope: dict[str, Any]) -> dict[str, Any] | None:
    if rope.get("rope_type") not in STATIC_ROPE_TYPES:
        return None
    return {key: value for key, value in rope.items() if key not in ("rope_theta", "partial_rotary_factor")}
