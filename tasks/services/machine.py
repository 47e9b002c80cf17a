"""What runs on one machine: Prefect's server, MLflow's, a worker for each work pool; all on loopback, all in one directory."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tasks.services import postgres
from tasks.services.daemon import Daemon
from tasks.workspace import PROJECT

GPU_POOL, LIGHT_POOL = "gpu", "light"
HOST = "127.0.0.1"
Database = Literal["sqlite", "postgres"]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The addresses and files of the services.

    Fields:
        directory: databases, artifacts, logs and process ids.
        artifacts: where MLflow keeps files, such as s3://bucket/mlflow; None: in `directory`. Keys and endpoint of an S3 store
            are those of the environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, MLFLOW_S3_ENDPOINT_URL.
        postgres_port: only where the database is postgres.
        heartbeat_seconds: how often a flow run says that it lives; Prefect takes 30 at least.
    """

    directory: Path = PROJECT / ".services"
    database: Database = "sqlite"
    artifacts: str | None = None
    prefect_port: int = 4200
    mlflow_port: int = 5000
    postgres_port: int = 5433
    heartbeat_seconds: int = 30

    @property
    def prefect_api(self) -> str:
        """Where flows and workers find Prefect."""
        return f"http://{HOST}:{self.prefect_port}/api"

    @property
    def mlflow_uri(self) -> str:
        """Where flows find MLflow."""
        return f"http://{HOST}:{self.mlflow_port}"

    @property
    def client_environment(self) -> dict[str, str]:
        """For whatever uses the servers: workers, and a shell that wants to."""
        return {
            "PREFECT_HOME": str(self.directory / "prefect"),
            "PREFECT_API_URL": self.prefect_api,
            "MLFLOW_TRACKING_URI": self.mlflow_uri,
        }

    def servers(self) -> list[Daemon]:
        """In the order in which they start."""
        return [self._prefect(), self._mlflow()]

    def workers(self) -> list[Daemon]:
        """One for each work pool."""
        return [self._worker(GPU_POOL, limit=1), self._worker(LIGHT_POOL, limit=4)]

    def database_servers(self) -> list[Daemon]:
        """PostgreSQL, where it is asked for."""
        return [postgres.server(self.directory, self.postgres_port)] if self.database == "postgres" else []

    def _prefect(self) -> Daemon:
        environment = {
            "PREFECT_HOME": str(self.directory / "prefect"),
            # Not --host and --port, which the page wouldn't know of.
            "PREFECT_SERVER_API_HOST": HOST,
            "PREFECT_SERVER_API_PORT": str(self.prefect_port),
            "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
            # In memory, the default, a restart of the server would leave a slot taken for good.
            "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
            "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",  # the default keeps runs, logs and artifacts for ever
            "PREFECT_SERVER_UI_V2_ENABLED": "false",  # the newer page calls amplitude.com from the browser, whatever is set
            # The server fetches lists of integrations from GitHub where it can. Nothing listens there, so it takes the copy that
            # it ships with. Webhooks don't look at this, they have a transport of their own.
            "HTTPS_PROXY": f"http://{HOST}:9",
        }
        if self.database == "postgres":
            environment["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = postgres.url(self.postgres_port, "prefect", "asyncpg")
        return Daemon(
            name="prefect",
            command=(sys.executable, "-m", "prefect", "server", "start"),
            directory=self.directory,
            environment=environment,
            ready_url=f"{self.prefect_api}/health",
        )

    def _mlflow(self) -> Daemon:
        store = f"sqlite:///{self.directory / 'mlflow.db'}"
        if self.database == "postgres":
            store = postgres.url(self.postgres_port, "mlflow", "psycopg2")
        places = ("--backend-store-uri", store, "--artifacts-destination", self.artifacts or str(self.directory / "mlflow-artifacts"))
        return Daemon(
            name="mlflow",
            command=(sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(self.mlflow_port), "--workers", "1", *places),
            directory=self.directory,
            environment={"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},  # else seven more processes, 1.2 GB
            ready_url=f"{self.mlflow_uri}/health",
        )

    def _worker(self, pool: str, limit: int) -> Daemon:
        environment = self.client_environment | {
            "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(self.heartbeat_seconds),
            "PREFECT_WORKER_QUERY_SECONDS": "3",  # the default of 10 s is what a person waits after pressing the button
            "PYTHONPATH": str(PROJECT),
        }
        command = (sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--type", "process", "--name", f"{pool}-node")
        return Daemon(
            name=f"worker-{pool}",
            command=(*command, "--limit", str(limit)),
            directory=self.directory,
            environment=environment,
            children_first=True,  # it would wait for the runs to end, a training's hours; they save and can be retried
        )
