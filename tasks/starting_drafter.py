"""A training that starts from a registered drafter: MODEL@champion in place of a directory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks import mlflow_store
from tasks.pull import REFERENCE, check_files, find, pull
from tasks.workspace import WORKSPACES, configuration_of

KEY = "drafter.init_from"


def with_registered_drafter(
    profile: str, overrides: Mapping[str, Any], uri: str | None = None, directory: Path = WORKSPACES / ".drafters"
) -> dict[str, Any]:
    """The overrides, with the directory of a version's files where `drafter.init_from` is MODEL@alias.

    A version's directory is named after its number, so that DVC finds train up to date until the alias names another version.

    Raises:
        ConfigError: the registry has no such version.
        DataError: its files aren't those that were registered.
    """
    named = configuration_of(profile, overrides)[1].drafter.init_from
    reference = Path(named).name if named else ""
    if "@" not in reference or not REFERENCE.fullmatch(reference) or Path(named).exists():
        return dict(overrides)
    uri = uri or mlflow_store.default_uri()
    version = find(uri, reference)
    place = directory / f"{version.model}-{version.number}"
    if place.is_dir():
        check_files(version, place)
    else:
        pull(uri, version, place)
    return {**overrides, KEY: str(place)}
