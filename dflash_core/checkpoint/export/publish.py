"""Puts an export in its place: written beside it, read back bit by bit, renamed.

Every layout has the same four files. An export says `unproven` until a proof by replay says otherwise.
"""

import json
import shutil
import stat
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from dflash_core.checkpoint.digests import tensors_digest
from dflash_core.checkpoint.export.card import CARD, UNPROVEN, model_card
from dflash_core.checkpoint.exported import CONFIG, LINEAGE, WEIGHTS, widest_dtype
from dflash_core.checkpoint.manifest import sync
from dflash_core.drafter.spec import DrafterSpec
from dflash_core.errors import CheckpointError, DataError

FILES = frozenset({CONFIG, WEIGHTS, LINEAGE, CARD})
FILE_MODE, DIRECTORY_MODE = 0o644, 0o755  # safetensors writes 0600, which a server of another user couldn't read


@dataclass(frozen=True)
class Exported:
    """What an export holds.

    Attributes:
        layout: its name, for card and lineage.
        config: config.json.
        weights: by the layout's names, on the CPU, contiguous.
        spec: the drafter's shape.
        target_path: the target as card and lineage name it.
        lineage: where the weights come from; JSON values.
        check: a layout's own check of the written directory, beside the common one.
    """

    layout: str
    config: Mapping[str, Any]
    weights: Mapping[str, torch.Tensor]
    spec: DrafterSpec
    target_path: str
    lineage: Mapping[str, Any]
    check: Callable[[Path], None] = lambda directory: None


def publish(out_dir: Path, exported: Exported) -> None:
    """Write, read back and rename; an earlier export stays as it was until the new one is whole.

    Raises:
        CheckpointError: what was read back differs.
        DataError: the file system refused.
    """
    suffix = uuid.uuid4().hex[:8]
    fresh, old = (out_dir.with_name(f".{out_dir.name}.{kind}-{suffix}") for kind in ("tmp", "old"))
    try:
        out_dir.parent.mkdir(parents=True, exist_ok=True)
        fresh.mkdir()
        _write(fresh, exported)
        for path in (*fresh.iterdir(), fresh):
            path.chmod(DIRECTORY_MODE if path.is_dir() else FILE_MODE)
            sync(path)
        _self_check(fresh, exported)
        if out_dir.exists():
            out_dir.rename(old)
        fresh.rename(out_dir)
        sync(out_dir.parent)
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk by its own error, which is no OSError
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{out_dir} can't be written: {reason}. Free space or name another directory.") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def dtype_name(weights: Mapping[str, torch.Tensor]) -> str:
    """Their dtype as config.json names it; of several, the widest."""
    return str(widest_dtype(weights)).removeprefix("torch.")


def _write(directory: Path, exported: Exported) -> None:
    lineage = {"status": UNPROVEN, "layout": exported.layout, "target_path": exported.target_path} | dict(exported.lineage)
    save_file(dict(exported.weights), directory / WEIGHTS, metadata={"format": "pt"})
    for name, tree in ((CONFIG, exported.config), (LINEAGE, lineage)):
        (directory / name).write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")
    (directory / CARD).write_text(model_card(exported.spec, lineage), encoding="utf-8")


def _self_check(directory: Path, exported: Exported) -> None:
    """Read the export back: the four files that others may read, the same configuration, keys, shapes, dtypes and bits."""
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    if modes != dict.fromkeys(FILES, FILE_MODE):
        found = ", ".join(f"{name} {mode:o}" for name, mode in sorted(modes.items()))
        raise CheckpointError(f"{directory} holds {found}; expected {', '.join(sorted(FILES))}, each of mode {FILE_MODE:o}. Export again.")
    found, written = tensors_digest(load_file(directory / WEIGHTS)), tensors_digest(exported.weights)
    config = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    if found != written or config != json.loads(json.dumps(exported.config)):
        what = f"weights {found[:12]}" if found != written else CONFIG
        raise CheckpointError(
            f"{directory} reads back differently from what was written ({what}, expected {written[:12]}). Check the disk, then export again."
        )
    exported.check(directory)
