"""Where a workspace's drafter comes from: DVC's digests, the checkpoint's origin, and the digests of its files.

Read from the files that the stages and DVC leave; nothing is computed anew but the digests of the export.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import yaml

DATA_OUTPUTS = ("build/prepared", "build/plan")


def dvc_digests(lock: Path) -> dict[str, str]:
    """DVC's digest of every dependency and output in a dvc.lock, or a pointer NAME.dvc, but code; empty where there is none."""
    try:
        return digests_named(lock.read_text(encoding="utf-8"))
    except OSError:
        return {}


def digests_named(text: str) -> dict[str, str]:
    """As `dvc_digests`, of a file's text."""
    try:
        tree = yaml.safe_load(text)
        stages = list(tree["stages"].values()) if "stages" in tree else [tree]  # a pointer is one stage without a command
        entries = [entry for stage in stages for kind in ("deps", "outs") for entry in stage.get(kind, [])]
    except (yaml.YAMLError, AttributeError, KeyError, TypeError):
        return {}
    return {entry["path"]: entry["md5"] for entry in entries if "md5" in entry and not entry["path"].endswith((".py", ".j2"))}


def data_digests(root: Path) -> dict[str, str]:
    """DVC's digests of the conversations and of what was prepared of them."""
    try:
        conversations = yaml.safe_load((root / "params.yaml").read_text(encoding="utf-8"))["data"]["conversations"]
    except (OSError, yaml.YAMLError, KeyError, TypeError):
        conversations = ()
    known = dvc_digests(root / "dvc.lock")
    return {path: known[path] for path in (*conversations, *DATA_OUTPUTS) if path in known}


def is_of_run(root: Path, log_run: str) -> bool:
    """Whether the outputs in a workspace are those of the run with this id, and not of another that it held before."""
    return read_json(root / "build/train.json").get("run_id") == log_run


def file_digests(directory: Path) -> dict[str, str]:
    """sha256 of every file of an export, by its path in it."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): _sha256(path) for path in files}


def code_of(checkpoint: Path) -> str:
    """The revision of the code that saved a checkpoint, by its manifest."""
    return str(read_json(checkpoint / "manifest.json").get("origin", {}).get("code", "unknown"))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is none."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
