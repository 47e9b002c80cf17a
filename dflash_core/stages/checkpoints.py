"""The checkpoints of a run as text for a person: list, description, verification, pruning, difference."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from dflash_core.checkpoint.contents import Contents
from dflash_core.checkpoint.manifest import full_name, read_manifest, read_status, read_verdict, verify
from dflash_core.checkpoint.resume import RunDirectory, logged_digests, logged_taus
from dflash_core.checkpoint.retention import Retention, best_name, clear_quarantine, prune
from dflash_core.checkpoint.share_files import STATE, read_contents
from dflash_core.checkpoint.store import CheckpointStore
from dflash_core.errors import CheckpointError, DataError
from dflash_core.training.log_reader import read_log
from dflash_core.training.records import LogWriter, ResumeRecord, StartRecord

_MOVED_MOST = 10  # tensors that a difference names


def listing(run: Path) -> str:
    """A table, oldest first."""
    store = _store(run)
    lines = [f"{'checkpoint':<16}{'state':<11}{'MB':>9}  {'saved, UTC':<18}{'digest':<14}{'parent':<14}session"]
    lines += [_line(store.root / name) for name in store.names()]
    put_aside = sorted(path.name for path in store.quarantine.iterdir()) if store.quarantine.is_dir() else []
    return "\n".join([*lines, *(f"put aside: {store.quarantine / name}" for name in put_aside)])


def description(run: Path, name: str) -> str:
    """Manifest, state and verdict as JSON; a damaged checkpoint is a CheckpointError."""
    path = _store(run).root / full_name(name)
    manifest = read_manifest(path)
    state = json.loads((path / STATE).read_text(encoding="utf-8"))
    state.pop("generators", None)  # thousands of characters that say nothing to a person
    return json.dumps(
        {"status": read_status(path), "verdict": read_verdict(path), "manifest": manifest, "state": state}, indent=1, sort_keys=True
    )


def verification(run: Path, names: list[str]) -> tuple[str, bool]:
    """A line each, and whether all of them are sound."""
    log_path = RunDirectory(run).log_path
    store, logged = _store(run), logged_digests(read_log(log_path)) if log_path.exists() else {}
    lines, sound = [], True
    for name in [full_name(name) for name in names] or store.names():
        try:
            committed, _ = store.load(name, logged.get(name))
            lines.append(f"{name} is sound: {committed.num_bytes / 1e6:.1f} MB, {'in' if name in logged else 'not in'} the log")
        except CheckpointError as error:
            lines.append(str(error))
            sound = False
    return "\n".join(lines), sound


def pruning(run: Path, quarantined: bool) -> str:
    """What went. Raises ConfigError while the run is being trained: its own writer prunes."""
    store, log_path = _store(run), RunDirectory(run).log_path
    with LogWriter(log_path):
        logged = read_log(log_path)
        opened = [r for r in logged if isinstance(r, StartRecord | ResumeRecord)]
        if not opened:
            raise DataError(f"{log_path} has no start record, expected one: it says what to keep. Restore the log.")
        settings = opened[-1].config["checkpoint"]
        gone = prune(store, Retention(settings["keep_last"], settings["keep_every"]), best=best_name(store, logged_taus(logged)))
        cleared = clear_quarantine(store) if quarantined else 0
    return f"gone: {', '.join(gone) or 'none'}; kept: {', '.join(store.names()) or 'none'}; deleted from quarantine: {cleared}"


def difference(run: Path, first: str, second: str) -> str:
    """Fields that differ, and the tensors that moved most; rejected checkpoints may be compared, damaged ones not."""
    paths = [_store(run).root / full_name(name) for name in (first, second)]
    manifests = [verify(path) for path in paths]
    a, b = (read_contents(path, manifest) for path, manifest in zip(paths, manifests, strict=True))
    fields = _differing(_told(paths[0], manifests[0], a), _told(paths[1], manifests[1], b))
    tensors = [*_moved("weights", a.weights, b.weights), *_moved("moments", a.moments, b.moments)]
    return "\n".join([f"{paths[0].name} -> {paths[1].name}", *fields, *tensors])


def _told(path: Path, manifest: Mapping[str, Any], contents: Contents) -> dict[str, Any]:
    rest = {key: value for key, value in contents.state.items() if key != "generators"}
    return {"state": rest, "origin": manifest["origin"], "digests": manifest["digests"], "status": read_status(path)}


def _differing(a: Any, b: Any, place: str = "") -> list[str]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return [line for key in sorted({*a, *b}) for line in _differing(a.get(key), b.get(key), f"{place}.{key}" if place else key)]
    return [] if a == b else [f"  {place}: {a} -> {b}"]


def _moved(what: str, a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> list[str]:
    """Relative L2 distance, the largest first."""
    only = [f"  {what}: {name} is in one of them only" for name in sorted({*a} ^ {*b})]
    both = [name for name in a if name in b and a[name].shape == b[name].shape]
    reshaped = [f"  {what}: {name} is {tuple(a[name].shape)} -> {tuple(b[name].shape)}" for name in a if name in b and name not in both]
    far = {name: float((b[name] - a[name]).double().norm() / a[name].double().norm().clamp_min(1e-30)) for name in both}
    changed = sorted((name for name in both if far[name] > 0), key=lambda name: -far[name])
    lines = [f"  {what}: {name} moved by {far[name]:.3g} of its length" for name in changed[:_MOVED_MOST]]
    return [*only, *reshaped, f"  {what}: {len(changed)} of {len(both)} tensors differ", *lines]


def _line(path: Path) -> str:
    try:
        manifest = read_manifest(path)
    except CheckpointError as error:
        return f"{path.name:<16}{'damaged':<11}{error}"
    megabytes = sum(entry["size"] for entry in manifest["files"].values()) / 1e6
    saved = datetime.fromtimestamp(manifest["created"], UTC)
    origin = manifest["origin"]
    parent = (origin.get("parent") or "-")[:12]
    return (
        f"{path.name:<16}{read_status(path):<11}{megabytes:>9.1f}  {saved:%Y-%m-%d %H:%M}  {manifest['digest'][:12]:<14}{parent:<14}"
        f"{origin.get('session_id', '-')}"
    )


def _store(run: Path) -> CheckpointStore:
    store = RunDirectory(run).store
    if not store.root.is_dir():
        raise CheckpointError(f"{store.root} does not exist, expected the checkpoints of a run. Name its directory: runs/NAME.")
    return store
