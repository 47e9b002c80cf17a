"""Digests that say whether two artefacts were made for the same file, tokenizer or target."""

import hashlib
from pathlib import Path

from dflash_core.errors import ConfigError

MIB = 1 << 20
TOKENIZER_FILES = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".gguf")


def file_digest(path: Path) -> str:
    """sha256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def text_digest(text: str) -> str:
    """sha256 of a text's UTF-8 bytes, in hex."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def tokenizer_identity(directory: Path | str) -> str:
    """sha256 over names and contents of the tokenizer's files, its chat template included.

    Raises:
        ConfigError: the directory holds none of them.
    """
    directory = Path(directory)
    files = [directory / name for name in TOKENIZER_FILES if (directory / name).is_file()]
    if not files:
        raise ConfigError(f"{directory} holds no tokenizer files, expected tokenizer.json. Correct target.path.")
    total = hashlib.sha256()
    for path in files:
        total.update(f"{path.name}:{file_digest(path)}\n".encode())
    return total.hexdigest()


def target_identity(directory: Path | str) -> str:
    """sha256 over config.json and each weight file's name, size, first and last MiB.

    The ends of a file stand for it: the header of a safetensors file lists every tensor, a re-trained or
    re-quantised file differs in its last tensor, and 16 GB needn't be read at every stage.

    Raises:
        ConfigError: no config.json or no weight file there.
    """
    directory = Path(directory)
    config = directory / "config.json"
    weights = sorted(path for path in directory.glob("*") if path.suffix in WEIGHT_SUFFIXES and path.is_file())
    if not config.is_file() or not weights:
        raise ConfigError(
            f"{directory} holds {'no config.json' if not config.is_file() else 'no weight files'}, expected a model in "
            "transformers' format (config.json, *.safetensors). Correct target.path."
        )
    total = hashlib.sha256(f"config.json:{file_digest(config)}\n".encode())
    for path in weights:
        total.update(f"{path.name}:{path.stat().st_size}:{_ends_digest(path)}\n".encode())
    return total.hexdigest()


def _ends_digest(path: Path) -> str:
    size = path.stat().st_size
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(MIB))
        file.seek(max(0, size - MIB))
        digest.update(file.read(MIB))
    return digest.hexdigest()
