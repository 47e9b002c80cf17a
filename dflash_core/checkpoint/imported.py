"""Starts training from a drafter that was released: its shape and weights, held against configuration and target.

`drafter.init_from` names a directory in z-lab's layout. What the configuration can't say (widths, heads, rotation) is
the import's; what it says must agree, since stages that never see the import follow it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dflash_core.checkpoint.exported import WEIGHTS, load_weights, read_spec
from dflash_core.config import Config, DrafterConfig
from dflash_core.data.identity import file_digest
from dflash_core.drafter.model import Drafter
from dflash_core.drafter.spec import DrafterSpec
from dflash_core.errors import ConfigError, IdentityError

if TYPE_CHECKING:
    from dflash_core.target.ends import TargetEnds


def imported_spec(drafter: DrafterConfig) -> DrafterSpec | None:
    """Shape of the drafter that `init_from` names; None where nothing is imported.

    Raises:
        CheckpointError: no config.json there.
        ConfigError: it isn't z-lab's, or the configuration says otherwise, with both values.
    """
    if drafter.init_from is None:
        return None
    spec = read_spec(Path(drafter.init_from))
    asked: Mapping[str, Any] = {
        "num_layers": drafter.num_layers,
        "block_size": drafter.block_size,
        "num_features": drafter.num_features if drafter.target_layer_ids is None else len(spec.target_layer_ids),
        "target_layer_ids": drafter.target_layer_ids or spec.target_layer_ids,
        "mask_token_id": spec.mask_token_id if drafter.mask_token_id is None else drafter.mask_token_id,
        "sliding_window": drafter.sliding_window,
        "layer_types": drafter.layer_types or ("full_attention",) * drafter.num_layers,
    }
    for key, value in asked.items():
        own = len(spec.target_layer_ids) if key == "num_features" else getattr(spec, key)
        if value != own:
            shown = list(own) if isinstance(own, tuple) else own
            raise ConfigError(f"drafter.{key} is {value}, the drafter in {drafter.init_from} has {own}. Set drafter.{key}: {shown}, or init_from: null.")
    return spec


def with_imported_layers(config: Config) -> Config:
    """The configuration with the import's layer ids, for stages that need nothing else of it. Errors as `imported_spec`."""
    spec = imported_spec(config.drafter)
    if spec is None:
        return config
    return config.model_copy(update={"drafter": config.drafter.model_copy(update={"target_layer_ids": spec.target_layer_ids})})


def check_fits_target(spec: DrafterSpec, target: "TargetEnds", directory: str) -> None:
    """Raise IdentityError where the drafter in `directory` can't read the target's features, or was fed other embeddings."""
    for what, own, theirs in (
        ("hidden size", spec.hidden_size, target.hidden_size),
        ("number of layers", spec.num_target_layers, target.num_layers),
        ("vocabulary", spec.vocab_size, target.vocab_size),
        ("scale of embeddings", _rounded(spec.embedding_scale), _rounded(target.embedding_scale)),
    ):
        if own != theirs:
            raise IdentityError(
                f"the drafter in {directory} was made for a target with {what} {own}, {target.path} has {theirs}. "
                "Name the drafter's own target, or another drafter in drafter.init_from."
            )


def _rounded(scale: float) -> float:
    """As bfloat16: Gemma multiplies by a square root of that dtype, and a config.json may have more digits."""
    return float(torch.tensor(scale).bfloat16())


@torch.no_grad()
def fill_from_import(drafter: Drafter, directory: Path) -> None:
    """Copy the released weights, as float32 masters. Errors as `load_weights`."""
    drafter.load_state_dict(load_weights(directory, drafter.spec))


def start_identity(drafter: DrafterConfig) -> str:
    """What the run's first weights follow from, for its identity: a mode, or the digest of the imported file."""
    if drafter.init_from is None:
        return drafter.init
    return f"import {file_digest(Path(drafter.init_from) / WEIGHTS)}"
