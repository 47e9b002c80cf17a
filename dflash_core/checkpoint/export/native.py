"""Export in transformers' own layout: AutoModel loads it without remote code, and generate() decodes with it.

transformers has DFlash under the name of the first model that shipped with it, `muse_glimmer_assistant`: z-lab's layers,
with `fc` and `hidden_norm` under `encoder`. What it can't express is refused, since it would show as a bad acceptance
length only.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.utils import logging as transformers_logging

from dflash_core.checkpoint.digests import tensors_digest
from dflash_core.checkpoint.export.publish import Exported, dtype_name, publish
from dflash_core.checkpoint.exported import checked_weights, widest_dtype, zlab_shapes
from dflash_core.drafter.spec import DrafterSpec
from dflash_core.errors import CheckpointError, ConfigError

MODEL_TYPE = "muse_glimmer_assistant"
_RENAMED = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}


def export_transformers(
    state: Mapping[str, torch.Tensor],
    spec: DrafterSpec,
    target_path: str,
    out_dir: Path,
    lineage: Mapping[str, Any],
    dtype: torch.dtype | None = torch.float32,
) -> None:
    """Write the drafter for `generate(assistant_model=..., speculation_type="dflash")` of transformers.

    Arguments and errors as `export_zlab`, but a model of transformers has one dtype: None takes the widest. Raises ConfigError
    too, where transformers would compute something else.
    """
    checked = checked_weights(state, zlab_shapes(spec), dtype or widest_dtype(state))
    weights = {_RENAMED.get(name, name): tensor for name, tensor in checked.items()}
    config = native_config(spec) | {"dtype": dtype_name(weights)}
    publish(out_dir, Exported("transformers", config, weights, spec, target_path, lineage, lambda place: _check_loads(place, weights)))


def native_config(spec: DrafterSpec) -> dict[str, Any]:
    """config.json of transformers' layout.

    Raises:
        ConfigError: sliding layers, for whose mask the layout has no word.
    """
    if "sliding_attention" in spec.layer_types:
        raise ConfigError(
            f"layer_types is {spec.layer_types}: sliding layers were trained causal within the block, and transformers' are "
            "bidirectional; expected full_attention in every layer. Export in z-lab's or speculators' layout."
        )
    rope = dict(spec.rope_scaling or {"rope_type": "default"})
    rope.setdefault("rope_type", rope.pop("type", "default"))
    return {
        "architectures": ["MuseGlimmerAssistantModel"],
        "model_type": MODEL_TYPE,
        "transformers_version": transformers.__version__,
        "block_size": spec.block_size,
        "mask_token_id": spec.mask_token_id,
        "target_layer_ids": list(spec.target_layer_ids),
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_parameters": rope | {"rope_theta": spec.rope_theta},
        "max_position_embeddings": spec.max_position_embeddings,
        "layer_types": list(spec.layer_types),
        "attention_dropout": 0.0,
        # The layout's defaults are another model's tokens.
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


def _check_loads(directory: Path, weights: Mapping[str, torch.Tensor]) -> None:
    """Raise CheckpointError unless AutoModel finds every tensor, no other one, and the same bits."""
    transformers_logging.disable_progress_bar()  # a bar for a load of a second hides the command's own line
    model, info = transformers.AutoModel.from_pretrained(directory, dtype="auto", output_loading_info=True)
    faults = {kind: sorted(map(str, names)) for kind, names in info.items() if names}
    found, written = tensors_digest(model.state_dict()), tensors_digest(weights)
    if faults or found != written:
        raise CheckpointError(
            f"transformers {transformers.__version__} loads {type(model).__name__} with {faults or f'weights {found[:12]}'}, expected weights "
            f"{written[:12]} and nothing else. Use the transformers of requirements.lock."
        )
