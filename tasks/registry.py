"""A registered model: its versions with their tags, the aliases that say which one is served, and a note of a move under way."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash_core.errors import ConfigError, DataError
from tasks import mlflow_store

# Goes into the name of a lock file, into MODEL@ALIAS and into a search; MLflow itself takes all but / and :.
MODEL_NAME = r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,199}$"
CANDIDATE, CHAMPION, PREVIOUS = "candidate", "champion", "previous"
MOVE_TAG = "dflash.move"
MOVE_KEYS = {"action", "to", "from", "previous", "at"}


@dataclass(frozen=True)
class Version:
    """One version; `source` is where its files lie, for MLflow, or dvc:///DIGEST."""

    model: str
    number: str
    tags: Mapping[str, str]
    run_id: str
    source: str

    @property
    def name(self) -> str:
        """For a person."""
        return f"version {self.number} of {self.model}"

    def digests(self, tag: str) -> dict[str, str]:
        """What a tag of digests by path says; empty without it. Raises DataError where it is damaged."""
        tree = _parsed(text := self.tags.get(tag, "{}"))
        if tree is None or not all(isinstance(digest, str) for digest in tree.values()):
            raise DataError(f"tag {tag} of {self.name} is {text[:60]!r}, expected digests by path in JSON. Correct it in MLflow, or delete the version.")
        return tree


class Registry:
    """One model of one server. Raises ConfigError where it can't have such a name."""

    def __init__(self, uri: str, model: str) -> None:
        if not re.fullmatch(MODEL_NAME, model):
            raise ConfigError(
                f"model name {model!r} is not made of at most 200 letters, digits, spaces, dots, dashes and underscores, the first a letter "
                "or digit; choose another, by --model."
            )
        self.uri = uri
        self.model = model
        self.client = mlflow_store.client_of(uri)

    def alias(self, name: str) -> Version | None:
        """The version that an alias names; None without one."""
        return self._found(lambda: self.client.get_model_version_by_alias(self.model, name))

    def version(self, number: str) -> Version | None:
        """By its number."""
        return self._found(lambda: self.client.get_model_version(self.model, number))

    def versions(self) -> list[Version]:
        """All, the newest first."""
        found = self.client.search_model_versions(f"name = '{self.model}'", max_results=1000)
        return sorted(map(_version, found), key=lambda v: -int(v.number))

    def with_tag(self, key: str, value: str) -> Version | None:
        """The newest version that has this tag."""
        return next((v for v in self.versions() if v.tags.get(key) == value), None)

    def create(self, source: str, run_id: str, model_id: str | None, tags: Mapping[str, str], description: str) -> Version:
        """A new version, and the model where there is none."""
        self.ensure_model()
        made = self.client.create_model_version(
            self.model, source, run_id=run_id, model_id=model_id, tags=dict(tags), description=description[:5000]
        )
        return _version(made)

    def ensure_model(self) -> None:
        """Make the model; does nothing where it is there."""
        try:
            self.client.create_registered_model(self.model)
        except Exception as error:
            if getattr(error, "error_code", None) != "RESOURCE_ALREADY_EXISTS":
                raise

    def point(self, alias: str, number: str | None) -> None:
        """Have an alias name a version, or no version."""
        if number is not None:
            self.client.set_registered_model_alias(self.model, alias, number)
        elif self.alias(alias) is not None:
            self.client.delete_registered_model_alias(self.model, alias)

    def tag(self, number: str, tags: Mapping[str, str]) -> None:
        """Set tags of a version."""
        for key, value in tags.items():
            self.client.set_model_version_tag(self.model, number, key, value)

    def references(self) -> list[str]:
        """Every MODEL@ALIAS and MODEL/VERSION that there is, versions the newest first."""
        try:
            aliases = self.client.get_registered_model(self.model).aliases
        except Exception as error:
            if mlflow_store.is_missing(error):
                return []
            raise
        return [f"{self.model}@{alias}" for alias in sorted(aliases)] + [f"{self.model}/{version.number}" for version in self.versions()]

    def move_under_way(self) -> dict[str, Any] | None:
        """The move that a process began and hasn't ended. Raises DataError where its note is damaged."""
        try:
            text = self.client.get_registered_model(self.model).tags.get(MOVE_TAG)
        except Exception as error:
            if mlflow_store.is_missing(error):
                return None
            raise
        if not text:
            return None
        move = _parsed(text)
        if move is None or not MOVE_KEYS <= move.keys():
            raise DataError(
                f"tag {MOVE_TAG} of model {self.model} is {text[:60]!r}, expected a move in JSON. Delete the tag in MLflow, and see that the "
                f"aliases {CHAMPION} and {PREVIOUS} name the versions that they should."
            )
        return move

    def note_move(self, move: Mapping[str, Any] | None) -> None:
        """Write down that a move begins, or has ended."""
        if move is not None:
            self.client.set_registered_model_tag(self.model, MOVE_TAG, json.dumps(move))
        else:
            self.client.delete_registered_model_tag(self.model, MOVE_TAG)

    def _found(self, ask: Any) -> Version | None:
        try:
            return _version(ask())
        except Exception as error:
            if mlflow_store.is_missing(error):
                return None
            raise


def all_versions(uri: str) -> list[Version]:
    """Of every model of a server."""
    return [_version(found) for found in mlflow_store.every_version(mlflow_store.client_of(uri))]


def _parsed(text: str) -> dict[str, Any] | None:
    """A JSON object; None where it is none."""
    try:
        tree = json.loads(text)
    except ValueError:
        return None
    return tree if isinstance(tree, dict) else None


def _version(made: Any) -> Version:
    return Version(made.name, str(made.version), dict(made.tags), made.run_id or "", made.source)
