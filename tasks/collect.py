"""Deletes from DVC's cache what nothing refers to: no workspace, publication or pointer, and no version in the registry.

`dvc gc` knows one repository only; here many workspaces share a cache, and the registry keeps what no workspace holds
any more. What is young stays, since a flow caches outputs before it writes them into its dvc.lock.
"""

import contextlib
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dflash_core.errors import ConfigError, DataError
from tasks import lineage, mlflow_store
from tasks.publication import DIRECTORY as PUBLISHED
from tasks.pull import CACHE, cached, listed
from tasks.registration import DVC_SCHEME, DVC_TAG
from tasks.registry import Version, all_versions
from tasks.workspace import PROJECT, in_use

DAY_SECONDS = 86_400
DIRECTORY = ".dir"


@dataclass(frozen=True)
class Garbage:
    """What nothing refers to."""

    files: tuple[Path, ...]
    num_bytes: int
    num_kept: int


def collect_project(uri: str, *, delete: bool, days: float) -> str:
    """The project's cache, workspaces and registry; gives the line that a person sees.

    Raises:
        ConfigError: a flow runs in a workspace, or the registry has no version at all: likely it's another one than meant.
        Exception: the registry can't be asked, without which nothing is deleted.
    """
    versions = all_versions(uri)
    asked = mlflow_store.without_secret(uri)
    if delete and not versions:
        raise ConfigError(
            f"the registry at {asked} has no version of any model, so nothing is deleted: all that the versions of another one refer to "
            "would go. Set --uri or MLFLOW_TRACKING_URI to the registry that has them."
        )
    with contextlib.ExitStack() as stack:
        for workspace in sorted((PROJECT / "workspaces").glob("*/params.yaml")):
            stack.enter_context(in_use(workspace.parent))
        found = garbage(CACHE, referred(naming_files(PROJECT), versions), days)
        if delete:
            for file in found.files:
                file.unlink()
    size = f"{found.num_bytes / 1e6:,.1f} MB"
    known = f"one of {len(versions)} versions" if versions else f"a version, of which the registry at {asked} has none"
    kept = f"{found.num_kept:,} are referred to, by a workspace or {known}, or younger than {days:g} days"
    return f"{len(found.files):,} objects, {size}, {'deleted' if delete else 'would go with --delete'}; {kept}"


def naming_files(project: Path) -> list[Path]:
    """Files that name digests: of the workspaces and what they have published, of collected conversations, of the project itself."""
    workspaces = project / "workspaces"
    pointers = [*(project / "collected").rglob("*.dvc"), *(project / "data").rglob("*.dvc")]
    found = [*workspaces.rglob("dvc.lock"), *project.glob("dvc.lock"), *workspaces.glob(f"{PUBLISHED}/*.json"), *pointers]
    return sorted(path for path in found if path.is_file())  # DVC's own directories are named .dvc


def referred(files: Iterable[Path], versions: Iterable[Version]) -> set[str]:
    """Every digest that one of the files or a version of the registry names.

    Raises:
        DataError: a file or a tag can't be read, so that what it refers to isn't known.
    """
    digests: set[str] = set()
    for file in files:
        named = lineage.digests_named(_lock_in(file))
        if file.stat().st_size and not named:
            raise DataError(f"{file} can't be read, so what it refers to isn't known. Correct or remove it.")
        digests |= set(named.values())
    for version in versions:
        digests |= set(version.digests(DVC_TAG).values())
        digests |= {version.source.removeprefix(DVC_SCHEME)} if version.source.startswith(DVC_SCHEME) else set()
    return digests


def garbage(cache: Path, kept: set[str], days: float) -> Garbage:
    """Objects of the cache that are none of `kept`, nor of the directories among them, nor young.

    Raises:
        DataError: the list of such a directory is damaged.
    """
    kept = kept | {file for digest in kept if digest.endswith(DIRECTORY) for file in _files_of(cached(cache, digest))}
    files = [path for path in sorted((cache / "files/md5").glob("*/*")) if path.is_file()]
    old = time.time() - days * DAY_SECONDS
    gone = tuple(path for path in files if path.parent.name + path.name not in kept and path.stat().st_mtime <= old)
    return Garbage(gone, sum(path.stat().st_size for path in gone), len(files) - len(gone))


def _lock_in(file: Path) -> str:
    """What of a file DVC has written; a publication holds the text of a dvc.lock."""
    text = file.read_text(encoding="utf-8", errors="replace")
    try:
        return json.loads(text)["lock"] if file.parent.name == PUBLISHED else text
    except (ValueError, KeyError, TypeError):
        return ""


def _files_of(listing: Path) -> Iterable[str]:
    """Digests of a cached directory's files; none where the cache lacks it, as for outputs that aren't cached."""
    return listed(listing).values() if listing.is_file() else ()
