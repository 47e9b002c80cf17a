"""Saves a target's directory atomically, with a manifest by which a later call recognises it."""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from dflash_core.data.directory import replaced_directory
from dflash_core.data.identity import file_digest
from dflash_core.errors import DataError

MANIFEST = "conversion.json"


def save_target(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, out_dir: Path, source: Mapping[str, Any]) -> None:
    """Write model and tokenizer atomically, with a manifest of `source` and of each file's size and sha256; files get mode 0644.

    Raises:
        DataError: the file system refused (disk full, no permission); an earlier target stays as it was.
    """
    _forget_path(model)
    transformers_logging.disable_progress_bar()  # "Writing model shards: 100%" would be all it has to say
    try:
        with replaced_directory(out_dir) as building:
            model.save_pretrained(building)
            _save_tokenizer(tokenizer, building)
            _add_manifest(building, source)
            _make_durable(building)
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk by its own error, which is no OSError
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{out_dir} can't be written: {reason}. Free space or name another directory.") from None


def _save_tokenizer(tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    try:
        tokenizer.save_pretrained(directory)
    except Exception as error:
        if type(error) is not Exception:
            raise
        raise OSError(str(error)) from None  # the tokenizers library reports a full disk by a bare Exception


def _add_manifest(directory: Path, source: Mapping[str, Any]) -> None:
    files = sorted(path for path in directory.iterdir() if path.is_file())
    manifest = {
        "source": dict(source),
        "files": {path.name: {"bytes": path.stat().st_size, "sha256": file_digest(path)} for path in files},
    }
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _make_durable(directory: Path) -> None:
    for path in directory.iterdir():
        path.chmod(0o644)  # safetensors writes 0600, which another user's stage couldn't read
        with path.open("rb") as file:
            os.fsync(file.fileno())


def is_made_from(out_dir: Path, source: Mapping[str, Any]) -> bool:
    """Whether `out_dir` holds what `save_target` wrote for this source, every file as it was."""
    try:
        manifest = json.loads((out_dir / MANIFEST).read_text(encoding="utf-8"))
        files = {name: (entry["bytes"], entry["sha256"]) for name, entry in manifest["files"].items()}
        return manifest["source"] == dict(source) and all(
            (out_dir / name).stat().st_size == size and file_digest(out_dir / name) == digest for name, (size, digest) in files.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _forget_path(model: PreTrainedModel) -> None:
    # Where a model came from would go into config.json, and so into the target's identity.
    for config in (model.config, model.generation_config):
        for name in ("_model_name_or_path", "_from_model_config"):
            with contextlib.suppress(AttributeError):
                delattr(config, name)
        config._name_or_path = ""
