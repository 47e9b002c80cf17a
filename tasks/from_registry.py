"""Inputs that a configuration names by MODEL@ALIAS become files: the drafter that training starts from, the gate's reference.

The files are named by their content, so that a stage looks changed only where what it reads has changed, and not because a
night has passed or the alias has moved to a version of the same data. What was found last stands beside them, for a night in
which MLflow is down.
"""

import hashlib
import logging
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from dflash_core.config import Config, load_config
from dflash_core.config_data import DataGateConfig
from dflash_core.errors import ConfigError

DIRECTORY = ".registry"  # beside the workspaces; a workspace's name can't begin with a dot
NAMED = re.compile(r"[^@/:]+@[\w-]+")
PROFILE = "data_gate/profile.json"  # artifact of a training's run (run_outputs.py)


def is_named(value: str | None) -> bool:
    """Whether an input is MODEL@ALIAS, and no path."""
    return value is not None and NAMED.fullmatch(value) is not None


def with_files(config: Config, directory: Path, earlier: Path | None = None, uri: str | None = None) -> Config:
    """The configuration with paths in place of such names; null where no version has the alias yet.

    Args:
        directory: the workspaces'.
        earlier: params.yaml of an earlier attempt of the same run, if there was one: this goes on with what that found.

    Raises:
        ConfigError: the registry can't be asked and nothing is known from before, or the version lacks the file.
    """
    if not is_named(config.data_gate.reference) and not is_named(config.drafter.init_from):
        return config
    if earlier is not None and earlier.is_file():
        known = load_config(earlier)
        gate, drafter = known.data_gate, config.drafter.model_copy(update={"init_from": known.drafter.init_from})
        return config.model_copy(update={"data_gate": gate, "drafter": drafter})
    place = directory / DIRECTORY
    place.mkdir(parents=True, exist_ok=True)
    gate, init_from = config.data_gate, config.drafter.init_from
    if is_named(gate.reference):
        gate = _referring(gate, _last_known(place, f"{gate.reference}.json", lambda: _profile(place, gate.reference, uri)))
    if is_named(init_from):
        init_from = _last_known(place, f"{init_from}.drafter", lambda: _drafter(place, config.drafter.init_from, uri))
    return config.model_copy(update={"data_gate": gate, "drafter": config.drafter.model_copy(update={"init_from": init_from})})


def _referring(gate: DataGateConfig, reference: str | None) -> DataGateConfig:
    """Without a reference its limits are idle, and idle settings are refused."""
    idle = {} if reference else {name: DataGateConfig.model_fields[name].default for name in ("max_drift", "max_lost")}
    return gate.model_copy(update={"reference": reference, **idle})


def _last_known(place: Path, name: str, ask: Callable[[], Path | None]) -> str | None:
    """What the registry says now, or where it can't be asked what it said last."""
    from tasks import mlflow_store  # MLflow takes 1.1 s to import

    link, logger = place / name, logging.getLogger(__name__)
    try:
        found = ask()
    except Exception as error:
        if not mlflow_store.is_of_mlflow(error):
            raise
        if not link.exists():
            raise ConfigError(f"the registry can't be asked for {link.stem} ({type(error).__name__}). Start MLflow, or name a path.") from None
        logger.warning("the registry can't be asked for %s (%s): taking what it said last", link.stem, type(error).__name__)
        return str(link.resolve())
    if found is None:
        logger.warning("no version is %s yet: going on without", link.stem)
        return None
    temporary = link.with_name(f".{name}.{os.getpid()}")
    temporary.symlink_to(found)
    os.replace(temporary, link)
    return str(found)


def _profile(place: Path, reference: str, uri: str | None) -> Path | None:
    """Profile of the data that a version was made from."""
    from tasks import mlflow_store

    registry, version = _version(reference, uri)
    if version is None:
        return None
    if not version.run_id or PROFILE not in {artifact.path for artifact in registry.client.list_artifacts(version.run_id, "data_gate")}:
        raise ConfigError(f"{version.name} has no {PROFILE} in its run, expected that of its data gate. Name a profile.json in data_gate.reference.")
    with tempfile.TemporaryDirectory() as temporary:
        data = (mlflow_store.download(registry.uri, f"runs:/{version.run_id}/{PROFILE}", Path(temporary))).read_bytes()
    path = place / f"{hashlib.sha256(data).hexdigest()[:16]}.json"
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_bytes(data)
    os.replace(partial, path)
    return path


def _drafter(place: Path, reference: str, uri: str | None) -> Path | None:
    """The files of a version."""
    from tasks.pull import pull
    from tasks.registration import DRAFTER_TAG

    registry, version = _version(reference, uri)
    if version is None:
        return None
    path = place / version.tags[DRAFTER_TAG][:16]
    return path if path.is_dir() else pull(registry.uri, version, path)


def _version(reference: str, uri: str | None) -> tuple:
    from tasks import mlflow_store
    from tasks.registry import Registry

    model, _, alias = reference.partition("@")
    registry = Registry(uri or mlflow_store.default_uri(), model)
    return registry, registry.alias(alias)
