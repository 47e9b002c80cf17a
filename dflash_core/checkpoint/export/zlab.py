"""Export in z-lab's layout, which SGLang, vLLM and z-lab's own code load."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dflash_core.checkpoint.export.publish import Exported, dtype_name, publish
from dflash_core.checkpoint.exported import checked_weights, zlab_shapes
from dflash_core.drafter.spec import DrafterSpec


def export_zlab(
    state: Mapping[str, torch.Tensor],
    spec: DrafterSpec,
    target_path: str,
    out_dir: Path,
    lineage: Mapping[str, Any],
    dtype: torch.dtype | None = torch.float32,
) -> None:
    """Write config.json, model.safetensors, lineage.json and a model card in z-lab's layout.

    Args:
        state: the drafter's weights by z-lab's names.
        spec: its shape.
        target_path: the target as the card and the lineage name it.
        out_dir: replaced whole if it exists.
        lineage: where the weights come from (target identity, run, step, data); JSON values.
        dtype: of the written weights; float32 keeps the masters, bfloat16 halves the file, None leaves each tensor as it is.

    Raises:
        CheckpointError: key set, shapes or finiteness of `state` are wrong, or what was read back differs.
        DataError: the file system refused (disk full, no permission); an earlier export stays as it was.
    """
    weights = checked_weights(state, zlab_shapes(spec), dtype)
    config = spec.to_zlab_config() | {"dtype": dtype_name(weights)}
    publish(out_dir, Exported("z-lab", config, weights, spec, target_path, lineage))
