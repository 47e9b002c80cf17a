"""Where a checkpoint comes from, for its manifest: run and session, configuration, code, data, and who made it."""

import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from dflash_core.checkpoint.digests import json_digest
from dflash_core.config import Config

_IDENTITY = ("target", "tokenizer", "chat_template", "dataset")
_PACKAGE = Path(__file__).resolve().parents[2]


def make_origin(config: Config, identity: Mapping[str, Any], run_id: str, session_id: str, world: Mapping[str, Any]) -> dict[str, Any]:
    """The same for every checkpoint of a session; the parent's digest is added at each save."""
    return {
        "run_id": run_id,
        "session_id": session_id,
        "config": json_digest(config.model_dump(mode="json")),
        "identity": {key: identity[key] for key in _IDENTITY if key in identity},
        "code": code_revision(),
        "world": dict(world),
    }


def code_revision() -> str:
    """Commit of the checkout that this code runs from, with "+" where it has changes; else the installed version."""
    try:
        top = _git("rev-parse", "--show-toplevel")
        if Path(top).resolve() == _PACKAGE:  # and not some other repository around an environment
            return _git("rev-parse", "HEAD") + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        pass
    try:
        return metadata.version("dflash-pipeline")
    except metadata.PackageNotFoundError:
        return "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(_PACKAGE), *arguments], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
