"""Export in the format of speculators 0.9, with the target's embedding and head beside the drafter."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from dflash_core.checkpoint.export.publish import Exported, dtype_name, publish
from dflash_core.checkpoint.exported import CONFIG, checked_weights, read_json, zlab_shapes
from dflash_core.drafter.spec import DrafterSpec
from dflash_core.errors import CheckpointError, DataError, IdentityError

# Keys of z-lab's config.json that don't belong to the drafter's layers (speculators nests only those that do).
_OUTER_KEYS = frozenset({"architectures", "auto_map", "block_size", "dflash_config", "num_target_layers", "dtype"})


def export_speculators(
    state: Mapping[str, torch.Tensor],
    spec: DrafterSpec,
    target_path: str,
    out_dir: Path,
    lineage: Mapping[str, Any],
    dtype: torch.dtype | None = torch.float32,
) -> None:
    """Write the drafter in the format of speculators 0.9, with the target's embedding and head beside it.

    Arguments and errors as `export_zlab`; `target_path` must be a directory on this machine, whose embedding and head
    are copied bit for bit. Raises IdentityError too, where those don't fit the drafter.
    """
    weights = checked_weights(state, zlab_shapes(spec), dtype)
    embedding_VD, head_VD = read_target_embeddings(Path(target_path))
    if tuple(embedding_VD.shape) != (spec.vocab_size, spec.hidden_size):
        raise IdentityError(
            f"the embedding of {target_path} is {tuple(embedding_VD.shape)}, the drafter was made for "
            f"{(spec.vocab_size, spec.hidden_size)}. Export with the drafter's own target."
        )
    config = speculators_config(spec, Path(target_path)) | {"dtype": dtype_name(weights)}
    weights |= {"embed_tokens.weight": embedding_VD, "lm_head.weight": head_VD}
    publish(out_dir, Exported("speculators", config, weights, spec, target_path, lineage))


def speculators_config(spec: DrafterSpec, target_dir: Path) -> dict[str, Any]:
    """config.json of speculators' format: layer ids are z-lab's + 1 there, and block_size - 1 tokens are drafted."""
    architectures = read_json(target_dir / CONFIG, "the target").get("architectures") or []
    layers = {key: value for key, value in spec.to_zlab_config().items() if key not in _OUTER_KEYS}
    config = {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "speculators_version": "0.9.0",
        "transformer_layer_config": layers,
        "block_size": spec.block_size,
        "draft_vocab_size": spec.vocab_size,
        "aux_hidden_state_layer_ids": [layer_id + 1 for layer_id in spec.target_layer_ids],
        "mask_token_id": spec.mask_token_id,
        "sample_from_anchor": False,
        "speculators_config": {
            "algorithm": "dflash",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": spec.block_size - 1}],
            "verifier": {"name_or_path": str(target_dir), "architectures": architectures},
        },
        "tie_word_embeddings": False,
    }
    # vLLM takes an explicit false as "causal everywhere", full layers included (since its PR #47745), so the key
    # stands only where every layer slides and is causal within the block.
    if set(spec.layer_types) == {"sliding_attention"}:
        config["sliding_window_non_causal"] = False
    return config


def read_target_embeddings(target_dir: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Embedding and head [V, D] from the target's safetensors, without building the model; one tensor where they are tied.

    Raises:
        CheckpointError: there is no safetensors file, or no embedding in it.
        DataError: a file can't be read.
    """
    found: dict[str, torch.Tensor] = {}
    for path in sorted(target_dir.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118 (not a dict: an open file can't be iterated)
                    for name in ("embed_tokens.weight", "lm_head.weight"):
                        if key == name or key.endswith("." + name):
                            found[name] = file.get_tensor(key)
        except (OSError, SafetensorError) as error:
            raise DataError(f"{path} can't be read as safetensors: {error}. Make or download the target again.") from None
    if "embed_tokens.weight" not in found:
        raise CheckpointError(
            f"{target_dir} holds no tensor embed_tokens.weight in safetensors; convert the target, or name its directory."
        )
    return found["embed_tokens.weight"], found.get("lm_head.weight", found["embed_tokens.weight"]).clone()
