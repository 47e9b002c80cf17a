"""Whether drafter, target and prompts belong together, from their files alone: no model is loaded to refuse them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dflash_core.checkpoint.exported import read_json, read_lineage, read_spec
from dflash_core.config import Config
from dflash_core.data.identity import target_identity
from dflash_core.drafter.spec import DrafterSpec
from dflash_core.errors import ConfigError, DataError, IdentityError
from dflash_core.evaluation.prompts import MeasuredPrompt
from dflash_core.evaluation.records import Subjects
from dflash_core.target.layers import check_layer_ids


def check_subjects(config: Config, target_dir: Path, drafter_dir: Path, any_target: bool = False) -> Subjects:
    """What is measured; the prompts are added by who chooses them.

    Args:
        any_target: a drafter of another target of the same shape is measured, too.

    Raises:
        CheckpointError, ConfigError, IdentityError: with both values.
    """
    spec, lineage = read_spec(drafter_dir), read_lineage(drafter_dir)
    _check_shape(spec, target_dir, drafter_dir)
    identity = target_identity(target_dir)
    if lineage.get("target_identity", identity) != identity and not any_target:
        raise IdentityError(
            f"{drafter_dir} was made for target {str(lineage['target_identity'])[:12]}, {target_dir} is {identity[:12]}. "
            "Name the drafter's own target, train again, or measure it nevertheless by --any-target."
        )
    settings = config.evaluation
    if settings.block_size is not None and settings.block_size > spec.block_size:
        raise ConfigError(
            f"evaluation.block_size is {settings.block_size}, {drafter_dir} was trained with {spec.block_size}: a block works smaller "
            "than trained, not larger. Lower it."
        )
    return Subjects(
        drafter_path=str(drafter_dir),
        drafter_lineage=lineage,
        target_path=config.target.path,
        target_identity=identity,
        dtype=settings.dtype,
        block_size=settings.block_size or spec.block_size,
        trained_block_size=spec.block_size,
        batch_size=settings.batch_size,
        max_new_tokens=settings.max_new_tokens,
        temperature=settings.temperature,
        rule=settings.rule if settings.temperature else "greedy",
        seed=settings.seed,
        template=settings.template,
        prompt_sets={},
        prompts_digest="",
        left_out={},
        num_threads=torch.get_num_threads(),
        device="cpu",
    )


def _check_shape(spec: DrafterSpec, target_dir: Path, drafter_dir: Path) -> None:
    tree = text_config(target_dir)
    for field, own in (
        ("hidden_size", spec.hidden_size),
        ("num_hidden_layers", spec.num_target_layers),
        ("vocab_size", spec.vocab_size),
    ):
        if field in tree and tree[field] != own:
            raise IdentityError(
                f"{drafter_dir} was made for a target with {field} {own}, {target_dir} has {tree[field]}. "
                "Name the drafter's own target."
            )
    check_layer_ids(spec.target_layer_ids, spec.num_target_layers)


def check_lengths(prompts: Sequence[MeasuredPrompt], max_new_tokens: int, target_dir: Path) -> None:
    """Raise DataError where a prompt and its answer may outgrow the target's context: past it any text is as good as noise."""
    limit = context_limit(target_dir)
    longest = max(prompts, key=lambda prompt: len(prompt.prompt_ids))
    needed = len(longest.prompt_ids) + max_new_tokens
    if limit is not None and needed > limit:
        raise DataError(
            f"prompt {longest.sample_id!r} and {max_new_tokens} new tokens make {needed} tokens, expected at most the target's "
            f"{limit}. Lower evaluation.max_new_tokens, or data.max_length and run stage prepare again."
        )


def context_limit(target_dir: Path) -> int | None:
    """Tokens that the target's positions reach; None where config.json doesn't say."""
    return text_config(target_dir).get("max_position_embeddings")


def text_config(target_dir: Path) -> dict[str, Any]:
    """The language model's part of the target's config.json."""
    tree = read_json(target_dir / "config.json", "the target")
    text = tree.get("text_config")
    return text if isinstance(text, dict) else tree
