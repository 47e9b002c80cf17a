"""How many numbers target and drafter hold, from the target's config.json: no weight is read, no weight need be there."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from dflash_core.checkpoint.exported import zlab_shapes
from dflash_core.checkpoint.imported import imported_spec
from dflash_core.config import Config
from dflash_core.drafter.spec import DrafterSpec, from_target
from dflash_core.target.directory import read_architecture

# Widths in bytes.
FLOAT32, BFLOAT16 = 4, 2


@dataclass(frozen=True)
class TargetSizes:
    """Parameters of the target. `used` are those that features need: the decoder layers up to the last captured one."""

    embedding: int
    head: int  # 0 where it is the embedding
    used: int
    total: int
    stored_width: int  # bytes of a number in the weight files, as config.json says


@dataclass(frozen=True)
class DrafterSizes:
    """Parameters of the drafter: `total`, and the largest `layer` and `tensor` among them."""

    total: int
    layer: int
    tensor: int


def planned_spec(config: Config) -> DrafterSpec:
    """The drafter's shape. Its mask row is looked for when the run starts and changes no size; row 0 stands for it here.

    Raises:
        ConfigError: see `read_architecture`, or `drafter` disagrees with an import.
        CheckpointError: drafter.init_from holds no drafter.
    """
    return imported_spec(config.drafter) or from_target(_architecture(config).get_text_config(decoder=True), config.drafter, config.drafter.mask_token_id or 0)


def target_sizes(config: Config, spec: DrafterSpec) -> TargetSizes:
    """Count the target's parameters on a model without storage, so that any family's are right. Errors as `planned_spec`."""
    target_config = _architecture(config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(target_config, trust_remote_code=config.target.trust_remote_code)
    layers = model.get_decoder().layers[: max(spec.target_layer_ids) + 1]
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    return TargetSizes(
        embedding=embedding.numel(),
        head=0 if head is embedding else head.numel(),
        used=sum(p.numel() for p in layers.parameters()),
        total=sum(p.numel() for p in model.parameters()),
        stored_width=FLOAT32 if str(target_config.dtype).endswith("float32") else BFLOAT16,
    )


def drafter_sizes(spec: DrafterSpec) -> DrafterSizes:
    """Count the drafter's parameters from the shapes of its layout."""
    sizes = {name: math.prod(shape) for name, shape in zlab_shapes(spec).items()}
    layer = sum(size for name, size in sizes.items() if name.startswith("layers.0."))
    return DrafterSizes(total=sum(sizes.values()), layer=layer, tensor=max(sizes.values()))


def width_of(dtype: str) -> int:
    """Bytes of a number of this dtype of the configuration."""
    return FLOAT32 if dtype == "float32" else BFLOAT16


def _architecture(config: Config) -> PreTrainedConfig:
    return read_architecture(Path(config.target.path), config.target.trust_remote_code)
