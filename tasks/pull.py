"""Brings a registered drafter's files back, byte for byte, from the registry alone."""

import contextlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dflash_core.errors import ConfigError, DataError
from tasks import dvc_stages, lineage, mlflow_store
from tasks.registration import DVC_SCHEME, DVC_TAG, FILES_TAG
from tasks.registry import Registry, Version
from tasks.workspace import PROJECT

REFERENCE = re.compile(r"(?P<model>[^@/:]+)(@(?P<alias>[\w-]+)|/(?P<number>\d+))")
CACHE = PROJECT / ".dvc/cache"
CHECKPOINT = "build/checkpoint"


def find(uri: str, reference: str) -> Version:
    """The version that MODEL@alias or MODEL/7 names.

    Raises:
        ConfigError: there is none.
    """
    parts = REFERENCE.fullmatch(reference)
    if parts is None:
        raise ConfigError(f"{reference!r} is no MODEL@alias and no MODEL/VERSION. Write for example mine@champion.")
    registry = Registry(uri, parts["model"])
    version = registry.alias(parts["alias"]) if parts["alias"] else registry.version(parts["number"])
    if version is None:
        known = ", ".join(registry.references()) or "no version of that model"
        raise ConfigError(f"the registry at {mlflow_store.without_secret(uri)} has no {reference}, but {known}. Correct the name, or --uri.")
    return version


def pull(uri: str, version: Version, out: Path, cache: Path = CACHE) -> Path:
    """Write the version's files to `out`, which appears whole or not at all.

    Args:
        out: must not exist, or be empty.
        cache: DVC's, for a version by reference.

    Raises:
        ConfigError: `out` holds something.
        DataError: a file is missing or other than when it was registered.
    """
    with _appearing(out) as temporary:
        files = _fetch(uri, version, temporary, cache)
        check_files(version, files)
        _put(files, out)
    return out


def pull_checkpoint(version: Version, out: Path, cache: Path = CACHE) -> Path:
    """Write the checkpoint that a version was exported from to `out`/step-XXXXXXXX; gives that path.

    Args:
        out: must not exist, or be empty; a run's checkpoints/ that is new, say.
        cache: DVC's, for which the project's remote stands in.

    Raises:
        ConfigError: `out` holds something.
        DataError: the version doesn't name a checkpoint, or the cache lacks a part of it, or it is damaged.
    """
    from dflash_core.checkpoint.store import CheckpointStore

    digest = version.digests(DVC_TAG).get(CHECKPOINT)
    if digest is None:
        raise DataError(f"{version.name} has no digest of {CHECKPOINT}; it was registered before checkpoints were versioned. Name another.")
    with _appearing(out) as temporary:
        store = CheckpointStore(from_cache(digest, cache, temporary / "files"))
        (name,) = store.names()
        store.load(name)
        _put(store.root, out)
    return out / name


@contextlib.contextmanager
def _appearing(out: Path) -> Iterator[Path]:
    """A temporary directory beside `out`, where a result is made ready."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is not empty, expected a new directory. Choose another one.")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as temporary:
        yield Path(temporary)


def _put(files: Path, out: Path) -> None:
    if out.exists():
        out.rmdir()
    files.chmod(0o755)
    files.rename(out)


def check_files(version: Version, directory: Path) -> None:
    """Raise DataError where the files in a directory aren't exactly those that were registered."""
    expected, found = version.digests(FILES_TAG), lineage.file_digests(directory)
    differing = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
    if differing:
        name = differing[0]
        raise DataError(
            f"{name} of {version.name} has sha256 {str(found.get(name))[:12]}, registered was {str(expected.get(name))[:12]}. "
            "Its files were changed or lost in the store; register the drafter again."
        )


def _fetch(uri: str, version: Version, into: Path, cache: Path) -> Path:
    if version.source.startswith(DVC_SCHEME):
        return from_cache(version.source.removeprefix(DVC_SCHEME), cache, into / "files")
    place = Registry(uri, version.model).client.get_model_version_download_uri(version.model, version.number)
    return mlflow_store.download(uri, place, into)


def from_cache(digest: str, cache: Path, into: Path) -> Path:
    """`restore`, by way of the project's DVC remote where the cache lacks a part."""
    if not _is_complete(cache, digest):
        dvc_stages.fetch(digest, cache, PROJECT)
    return restore(cache, digest, into)


def restore(cache: Path, digest: str, into: Path) -> Path:
    """Write a directory that DVC has cached, from its digest alone.

    Raises:
        DataError: the cache lacks a part of it, or its list of files is damaged.
    """
    into.mkdir()
    try:
        for path, file_digest in listed(cached(cache, digest)).items():
            target = into / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(cached(cache, file_digest), target)
    except OSError as error:
        raise DataError(
            f"{cache} lacks {error.filename}, a part of {digest}, and no DVC remote of the project has it. "
            "Set the remote that has it, or bring the cache back."
        ) from None
    return into


def _is_complete(cache: Path, digest: str) -> bool:
    listing = cached(cache, digest)
    return listing.is_file() and all(cached(cache, file_digest).is_file() for file_digest in listed(listing).values())


def listed(listing: Path) -> dict[str, str]:
    """Digest of each file, by its path, of a directory that DVC has cached.

    Raises:
        DataError: the list is damaged.
        OSError: there is none.
    """
    try:
        return {str(entry["relpath"]): str(entry["md5"]) for entry in json.loads(listing.read_bytes())}
    except (ValueError, TypeError, LookupError):
        raise DataError(
            f"{listing} is damaged, expected DVC's list of the files of a directory. Put a copy of DVC's remote or of a backup in its place; "
            "where there is none, remove it."
        ) from None


def cached(cache: Path, digest: str) -> Path:
    """Where DVC keeps the content with this digest."""
    return cache / "files/md5" / digest[:2] / digest[2:]
