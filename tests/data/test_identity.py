"""Identities follow contents, not places."""

import hashlib
import shutil

import pytest

from dflash_core.data.identity import MIB, file_digest, target_identity, tokenizer_identity
from dflash_core.errors import ConfigError


def test_file_digest(tmp_path):
    (tmp_path / "f").write_bytes(b"abc" * 1000)
    assert file_digest(tmp_path / "f") == hashlib.sha256(b"abc" * 1000).hexdigest()


def test_a_copy_has_the_same_identity(target_dir, tmp_path):
    copy = shutil.copytree(target_dir, tmp_path / "copy")
    (copy / "README.md").write_text("not part of it")
    assert tokenizer_identity(copy) == tokenizer_identity(target_dir)
    assert target_identity(str(copy)) == target_identity(target_dir)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_every_tokenizer_file_counts(name, target_dir, tmp_path):
    copy = shutil.copytree(target_dir, tmp_path / "copy")
    (copy / name).write_bytes((copy / name).read_bytes() + b" ")
    assert tokenizer_identity(copy) != tokenizer_identity(target_dir)
    assert target_identity(copy) == target_identity(target_dir)


def test_both_ends_size_and_config_of_the_weights_count(target_dir, tmp_path):
    copy = shutil.copytree(target_dir, tmp_path / "copy")
    weights = bytearray(3 * MIB)
    identities = set()
    for change in (None, 0, MIB - 1, 2 * MIB, 3 * MIB - 1):
        data = bytearray(weights)
        if change is not None:
            data[change] = 1
        (copy / "model.safetensors").write_bytes(data)
        identities.add(target_identity(copy))
    (copy / "model.safetensors").write_bytes(weights + b"\0")
    identities.add(target_identity(copy))
    (copy / "config.json").write_text("{}")
    identities.add(target_identity(copy))
    assert len(identities) == 7


def test_directories_without_a_model_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="no tokenizer files"):
        tokenizer_identity(tmp_path)
    with pytest.raises(ConfigError, match="no config.json"):
        target_identity(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="no weight files"):
        target_identity(tmp_path)
