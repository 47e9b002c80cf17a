"""Reads an exported drafter back, strictly: z-lab's layout, its shapes, its configuration.

Strictly, because SGLang skips unknown tensors silently (dflash_spec.md 1.4): a wrong key would only show as a bad
acceptance length.
"""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from dflash_core.drafter.model import Drafter
from dflash_core.drafter.spec import DrafterSpec
from dflash_core.errors import CheckpointError, ConfigError

CONFIG, WEIGHTS, LINEAGE = "config.json", "model.safetensors", "lineage.json"


def zlab_shapes(spec: DrafterSpec) -> dict[str, tuple[int, ...]]:
    """Key set and shapes of z-lab's layout (dflash_spec.md 1.3): no embedding, no head; 3 + 11 a layer."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    layer = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "self_attn.q_norm.weight": (spec.head_dim,),
        "self_attn.k_norm.weight": (spec.head_dim,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    shapes = {"fc.weight": (hidden, spec.features_size), "hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
    return shapes | {f"layers.{i}.{name}": shape for i in range(spec.num_layers) for name, shape in layer.items()}


def checked_weights(
    state: Mapping[str, torch.Tensor], shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype | None
) -> dict[str, torch.Tensor]:
    """The tensors on the CPU, contiguous, in `dtype`; None leaves each as it is.

    Raises:
        CheckpointError: they aren't exactly those of the layout, or not finite.
    """
    if differing := sorted(set(state) ^ set(shapes)):
        raise CheckpointError(
            f"the drafter has {len(state)} tensors, z-lab's layout {len(shapes)}; first difference {differing[0]}. "
            "Export a plain DFlash drafter."
        )
    for name, shape in shapes.items():
        if tuple(state[name].shape) != shape:
            raise CheckpointError(
                f"{name} is {tuple(state[name].shape)}, the layout wants {shape}. Use the drafter's own configuration."
            )
        if not torch.isfinite(state[name]).all():
            raise CheckpointError(f"{name} holds NaN or infinity, expected finite weights. Go back to an earlier checkpoint.")
    return {name: state[name].detach().to(device="cpu", dtype=dtype).contiguous() for name in shapes}


def read_spec(directory: Path) -> DrafterSpec:
    """Shape of an exported drafter.

    Raises:
        CheckpointError: no config.json, or not JSON.
        ConfigError: it is not z-lab's layout.
    """
    config = read_json(directory / CONFIG, "an exported drafter")
    if "speculators_model_type" in config:
        raise ConfigError(f"{directory} is in speculators' format, expected z-lab's; name the z-lab export.")
    return DrafterSpec.from_zlab_config(config)


def read_lineage(directory: Path) -> dict[str, Any]:
    """Where an export comes from; empty for one that another program wrote."""
    return read_json(directory / LINEAGE, "a lineage") if (directory / LINEAGE).exists() else {}


def load_drafter(directory: Path, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> Drafter:
    """Read an export in z-lab's layout, strictly, for evaluation.

    Raises:
        CheckpointError: missing or broken files, or tensors that aren't exactly those of the layout.
        ConfigError: config.json is not z-lab's.
    """
    spec = read_spec(directory)
    drafter = Drafter(spec)
    drafter.load_state_dict(load_weights(directory, spec))
    return drafter.to(device=device, dtype=dtype).eval()


def load_weights(directory: Path, spec: DrafterSpec, dtype: torch.dtype | None = torch.float32) -> dict[str, torch.Tensor]:
    """The tensors of an export in z-lab's layout, in `dtype`; None leaves each as it is stored.

    Raises:
        CheckpointError: a missing or broken file, or tensors that aren't exactly those of the layout.
    """
    try:
        weights = load_file(directory / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{directory / WEIGHTS} can't be read: {error}. Export the drafter again.") from None
    return checked_weights(weights, zlab_shapes(spec), dtype)


def widest_dtype(weights: Mapping[str, torch.Tensor]) -> torch.dtype:
    """The dtype that holds all of them exactly."""
    return functools.reduce(torch.promote_types, (tensor.dtype for tensor in weights.values()))


def read_json(path: Path, what: str) -> dict[str, Any]:
    """A JSON object.

    Raises:
        CheckpointError: no such file, not JSON, or not an object.
    """
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise CheckpointError(f"{path} can't be read as JSON ({error}), expected that of {what}. Name its directory.") from None
    if not isinstance(tree, dict):
        raise CheckpointError(f"{path} holds {type(tree).__name__}, expected an object. Name the directory of {what}.")
    return tree
