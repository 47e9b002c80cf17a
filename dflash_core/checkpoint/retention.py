"""Which checkpoints stay: the rest is deleted once its successor is on disk, and bad ones are put aside, not deleted."""

import re
import shutil
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash_core.checkpoint.manifest import Status, read_status, step_name
from dflash_core.checkpoint.store import CheckpointStore

# Nothing else is ours to delete.
_REMAINS_NAME = re.compile(r"step-\d{8,}\.(tmp|deleted)-[0-9a-f]{8}")


@dataclass(frozen=True)
class Retention:
    """The newest `keep_last` that aren't rejected, each whose step is a multiple of `keep_every`, and the newest proven one."""

    keep_last: int
    keep_every: int | None

    def kept(self, statuses: Mapping[str, Status]) -> set[str]:
        """Of names with their states, oldest first."""
        names = list(statuses)
        good = [name for name in names if statuses[name] != "rejected"]
        proven = [name for name in names if statuses[name] == "proven"]
        regular = [name for name in good if self.keep_every and int(name.removeprefix("step-")) % self.keep_every == 0]
        return {*good[-self.keep_last :], *proven[-1:], *regular}


def prune(store: CheckpointStore, retention: Retention, passed_over: Collection[str] = (), best: str | None = None) -> tuple[str, ...]:
    """Delete what isn't kept, and what killed sessions left; call it after a commit only. Returns the names that are gone.

    `best` stays. Rejected ones and `passed_over`, which a resume walked back from, are put aside as evidence: they are newer
    than the step that it went on from, and would push the good ones out of the newest.
    """
    statuses = {name: read_status(store.root / name) for name in store.names()}
    bad = [name for name in statuses if name in passed_over or statuses[name] == "rejected"]
    keep = retention.kept({name: status for name, status in statuses.items() if name not in bad}) | {best}
    doomed = [name for name in statuses if name not in keep and name not in bad]
    for name in bad:
        store.put_aside(name)
    for name in doomed:  # renamed first: a kill in the middle of a deletion must not leave half a checkpoint under its name
        (store.root / name).rename(store.root / f"{name}.deleted-{uuid.uuid4().hex[:8]}")
    _delete([path for path in store.root.iterdir() if _REMAINS_NAME.fullmatch(path.name)])
    return (*bad, *doomed)


def best_name(store: CheckpointStore, taus: Mapping[int, float]) -> str | None:
    """Of the checkpoints that there are, the one with the largest acceptance length."""
    by_name = {step_name(step): tau for step, tau in taus.items()}
    return max((name for name in store.names() if name in by_name), key=by_name.__getitem__, default=None)


def clear_quarantine(store: CheckpointStore) -> int:
    """Delete what was put aside; returns how many."""
    held = list(store.quarantine.iterdir()) if store.quarantine.is_dir() else []
    _delete(held)
    return len(held)


def _delete(paths: Collection[Path]) -> None:
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
