"""A Prefect server, result storage and an MLflow database of their own for the tests of flows and tasks."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, PREFECT_LOCAL_STORAGE_PATH, temporary_settings
from prefect.testing.utilities import prefect_test_harness

from .watched_network import WatchedNetwork


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedNetwork]:
    """Watches this process and all that it starts."""
    watched = WatchedNetwork(tmp_path_factory.mktemp("network"))
    watched.watch_this_process()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in watched.environment.items():
            patch.setenv(name, value)
        yield watched


@pytest.fixture(scope="session")
def prefect_server(network: WatchedNetwork, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The harness isolates the database, not result storage; a heartbeat would hold each flow up by a second."""
    results = str(tmp_path_factory.mktemp("prefect-results"))
    with (
        prefect_test_harness(server_startup_timeout=120),
        temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None, PREFECT_LOCAL_STORAGE_PATH: results}),
    ):
        yield


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once and copied: MLflow's some forty migrations take longer than all the tests that need one."""
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def uri(tmp_path: Path, empty_database: Path) -> str:
    """An MLflow database of this test's own; its artifacts lie beside it."""
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The profile's own conversations, with the id p1."""
    row = {"id": "p1", "messages": [{"role": "user", "content": "Say p1."}, {"role": "assistant", "content": "p1"}]}
    (tmp_path / "own.jsonl").write_text(json.dumps(row) + "\n")
    return tmp_path / "own.jsonl"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All in one worker: a second Prefect server and MLflow database would take as long to make as most of these tests to run."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.xdist_group("flows"))
