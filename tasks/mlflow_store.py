"""MLflow's client and the objects that it takes; the only importer of mlflow, which takes 1.1 s to import."""

import contextlib
import json
import logging
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

from dflash_core.errors import ConfigError
from tasks.workspace import PROJECT

EXPERIMENT = "dflash"
PARENT_TAG = "mlflow.parentRunId"
CONTEXT_TAG = "mlflow.data.context"
# Limits of one log_batch call, and of a value, past which it is cut silently (mlflow.utils.validation).
MOST_METRICS = 1000
MOST_PARAMS = 100
MOST_TAGS = 100
MOST_PARAM_CHARACTERS = 6000
MOST_TAG_CHARACTERS = 8000
MOST_DIGEST_CHARACTERS = 36
# Packages whose errors say that MLflow refuses or can't be reached: itself, and what it speaks to its server, database and S3 with.
REACHING = ("mlflow", "requests", "urllib3", "sqlalchemy", "boto3", "botocore")

CONNECT_SECONDS = 5.0
DEFAULT_PORTS = {"http": 80, "https": 443}

# While the server is down each of its retries is a warning; what counts is said once (tasks/tracking.py).
logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)


def default_uri() -> str:
    """MLFLOW_TRACKING_URI, or a SQLite file in the project."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{PROJECT / 'mlflow.db'}"


def client_of(uri: str) -> Any:
    """A client of one server for runs and registry alike."""
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def check_listening(uri: str) -> None:
    """Ask whether a server listens at all: MLflow's client retries for 14 s, and a flow that is cancelled is killed after 30.

    Raises:
        ConnectionError: none does.
    """
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or (parts.scheme in getproxies() and not proxy_bypass(parts.hostname or "")):
        return  # a database; or a proxy may be the only way to the server
    try:
        socket.create_connection((parts.hostname, parts.port or DEFAULT_PORTS[parts.scheme]), CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:  # a port that is no port
        raise ConnectionError(f"nothing listens there ({error})") from None


def without_secret(uri: str) -> str:
    """The URI without the user and password that it may hold, to be written down."""
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if parts.netloc else uri


def experiment_id(client: Any, uri: str) -> str:
    """The project's experiment, made where there is none."""
    if experiment := client.get_experiment_by_name(EXPERIMENT):
        return experiment.experiment_id
    # A server decides itself where artifacts go; a database has no such place of its own.
    place = Path(uri.removeprefix("sqlite:///")).resolve().parent / "mlartifacts" if uri.startswith("sqlite:///") else None
    return client.create_experiment(EXPERIMENT, artifact_location=place and place.as_uri())


def find_runs(client: Any, experiment: str, tags: Mapping[str, str]) -> list[Any]:
    """Runs that have all these tags, the newest first; deleted ones are none."""
    wanted = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
    return list(client.search_runs([experiment], wanted, max_results=10))


def is_missing(error: Exception) -> bool:
    """Whether the server says that there is no such thing, which for an alias is an invalid parameter to it."""
    return getattr(error, "error_code", None) in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "NOT_FOUND")


def is_of_mlflow(error: Exception) -> bool:
    """Whether MLflow raised it, or what it reaches its server, database or artifacts by; some of these let a network's error through as it is."""
    package = type(error).__module__.split(".")[0]
    # Prefect's time limits and ours are TimeoutErrors as well, of types of their own.
    return package in REACHING or (package == "builtins" and isinstance(error, ConnectionError | TimeoutError))


@contextlib.contextmanager
def reached(uri: str) -> Iterator[None]:
    """Turn a server that can't be reached, or that refuses, into one sentence.

    Raises:
        ConfigError: the sentence.
    """
    try:
        yield
    except Exception as error:
        if not is_of_mlflow(error):
            raise
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"MLflow at {without_secret(uri)} refuses, or can't be reached: {reason}. Start it, or correct the URI.") from None


def metrics_of(values: Mapping[str, float], step: int, milliseconds: int) -> list[Any]:
    """MLflow's metrics, under names that it takes."""
    from mlflow.entities import Metric

    return [Metric(key=allowed_name(k), value=float(v), timestamp=milliseconds, step=step) for k, v in values.items()]


def log_metrics(client: Any, run_id: str, metrics: Sequence[Any]) -> None:
    """As few calls as its limit allows. A metric that is there already, same name, time, step and value, is taken once."""
    for first in range(0, len(metrics), MOST_METRICS):
        client.log_batch(run_id, metrics=metrics[first : first + MOST_METRICS])


def log_params(client: Any, run_id: str, tree: Mapping[str, Any]) -> None:
    """A nested configuration by dotted key; the same again changes nothing."""
    from mlflow.entities import Param

    params = [Param(allowed_name(key), value[:MOST_PARAM_CHARACTERS]) for key, value in _flat(tree)]
    for first in range(0, len(params), MOST_PARAMS):
        client.log_batch(run_id, params=params[first : first + MOST_PARAMS])


def log_tags(client: Any, run_id: str, tags: Mapping[str, str]) -> None:
    """The last value of a tag counts."""
    from mlflow.entities import RunTag

    made = [RunTag(allowed_name(key), value[:MOST_TAG_CHARACTERS]) for key, value in tags.items()]
    for first in range(0, len(made), MOST_TAGS):
        client.log_batch(run_id, tags=made[first : first + MOST_TAGS])


def log_dataset(client: Any, run_id: str, name: str, digest: str, source: str, context: str) -> None:
    """What a run read, by a digest of ours; the same again changes nothing."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    place = json.dumps({"uri": source})
    dataset = Dataset(name=name, digest=digest[:MOST_DIGEST_CHARACTERS], source_type="local", source=place)
    client.log_inputs(run_id, datasets=[DatasetInput(dataset, [InputTag(CONTEXT_TAG, context)])])


def download(uri: str, artifact_uri: str, into: Path) -> Path:
    """Copy all files of an artifact directory below `into`; gives where they are."""
    from mlflow.artifacts import download_artifacts

    return Path(download_artifacts(artifact_uri=artifact_uri, dst_path=str(into), tracking_uri=uri))


def allowed_name(name: str) -> str:
    """A name that MLflow takes for a metric, parameter or tag; a category may have any."""
    return re.sub(r"[^\w. /:-]", "_", name, flags=re.ASCII)[:250]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)


def every_version(client: Any) -> Iterator[Any]:
    """Every version of every registered model."""
    token = None
    while True:
        page = client.search_model_versions("", max_results=1000, page_token=token)
        yield from page
        token = page.token
        if not token:
            return
