"""Export of a drafter for other programs, in z-lab's layout and in speculators'.

An export appears whole (written beside, renamed) and is read back before it does. It says `unproven` until a proof by
replay says otherwise.
"""

import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from dflash_core.checkpoint.exported import CONFIG, LINEAGE, WEIGHTS, checked_weights, read_json, zlab_shapes
from dflash_core.drafter.spec import DrafterSpec
from dflash_core.errors import CheckpointError, DataError, IdentityError

CARD = "README.md"
UNPROVEN = "unproven"
# Keys of z-lab's config.json that don't belong to the drafter's layers (speculators nests only those that do).
_OUTER_KEYS = frozenset({"architectures", "auto_map", "block_size", "dflash_config", "num_target_layers", "dtype"})


def export_zlab(
    state: Mapping[str, torch.Tensor],
    spec: DrafterSpec,
    target_path: str,
    out_dir: Path,
    lineage: Mapping[str, Any],
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write config.json, model.safetensors, lineage.json and a model card in z-lab's layout.

    Args:
        state: the drafter's weights by z-lab's names.
        spec: its shape.
        target_path: the target as the card and the lineage name it.
        out_dir: replaced whole if it exists.
        lineage: where the weights come from (target identity, run, step, data); JSON values.
        dtype: of the written weights; float32 keeps the masters, bfloat16 halves the file.

    Raises:
        CheckpointError: key set, shapes or finiteness of `state` are wrong, or what was read back differs.
        DataError: the file system refused (disk full, no permission); an earlier export stays as it was.
    """
    weights = checked_weights(state, zlab_shapes(spec), dtype)
    config = spec.to_zlab_config() | {"dtype": str(dtype).removeprefix("torch.")}
    _publish(out_dir, lambda directory: _write(directory, config, weights, spec, target_path, lineage, "z-lab"))


def export_speculators(
    state: Mapping[str, torch.Tensor],
    spec: DrafterSpec,
    target_path: str,
    out_dir: Path,
    lineage: Mapping[str, Any],
    dtype: torch.dtype = torch.float32,
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
    weights |= {"embed_tokens.weight": embedding_VD, "lm_head.weight": head_VD}
    config = speculators_config(spec, Path(target_path)) | {"dtype": str(dtype).removeprefix("torch.")}
    _publish(out_dir, lambda directory: _write(directory, config, weights, spec, target_path, lineage, "speculators"))


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


def _write(
    directory: Path,
    config: Mapping[str, Any],
    weights: Mapping[str, torch.Tensor],
    spec: DrafterSpec,
    target_path: str,
    lineage: Mapping[str, Any],
    layout: str,
) -> None:
    """Write all files of an export, then read them back."""
    lineage = {"status": UNPROVEN, "layout": layout, "target_path": target_path} | dict(lineage)
    save_file(dict(weights), directory / WEIGHTS, metadata={"format": "pt"})
    for name, tree in ((CONFIG, config), (LINEAGE, lineage)):
        (directory / name).write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")
    (directory / CARD).write_text(model_card(spec, target_path, lineage), encoding="utf-8")
    _self_check(directory, config, weights)


def _self_check(directory: Path, config: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> None:
    """Read the export back: same configuration, same keys, same bits."""
    read = load_file(directory / WEIGHTS)
    same = set(read) == set(weights) and all(torch.equal(read[name], weights[name]) for name in read)
    if not same or json.loads((directory / CONFIG).read_text(encoding="utf-8")) != json.loads(json.dumps(config)):
        raise CheckpointError(f"{directory} reads back differently from what was written. Check the disk, then export again.")


def _publish(out_dir: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a directory beside `out_dir`, then put it in its place; files 0644, so that a server can read them."""
    suffix = uuid.uuid4().hex[:8]
    fresh, old = (out_dir.with_name(f".{out_dir.name}.{kind}-{suffix}") for kind in ("tmp", "old"))
    try:
        out_dir.parent.mkdir(parents=True, exist_ok=True)
        fresh.mkdir(mode=0o755)
        write(fresh)
        for path in (*fresh.iterdir(), fresh):
            path.chmod(0o755 if path.is_dir() else 0o644)
            _sync(path)
        if out_dir.exists():
            out_dir.rename(old)
        fresh.rename(out_dir)
        _sync(out_dir.parent)
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk by its own error, which is no OSError
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{out_dir} can't be written: {reason}. Free space or name another directory.") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def model_card(spec: DrafterSpec, target_path: str, lineage: Mapping[str, Any]) -> str:
    """The export's README.md: what it is, for which target, from where, and that nothing has proven it yet."""
    rows = "\n".join(f"| {key} | `{value}` |" for key, value in lineage.items())
    return f"""---
tags: [dflash, speculative-decoding, {lineage["status"]}]
---
# DFlash drafter for {Path(target_path).name}

**Status: {lineage["status"]}.** No replay has checked this checkpoint yet; don't serve it.

Drafts {spec.block_size - 1} tokens a block for the target below, from the outputs of its layers
{list(spec.target_layer_ids)} (0-based, of {spec.num_target_layers}). {spec.num_layers} layers, mask row {spec.mask_token_id}.
Embedding and LM head are the target's.

| | |
| --- | --- |
{rows}
"""


def _sync(path: Path) -> None:
    """Force a file or directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
