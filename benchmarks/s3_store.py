"""An S3 store on loopback for campaigns, and what must come back from it: DVC's outputs, and the registry's drafters by both forms.

The store is moto's server, in memory; its keys are the words that the library's own tests use.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from services_site import Site, free_port, run_command, wait_for

from dflash_core.config import load_config
from tasks.lineage import file_digests
from tasks.registration import register
from tasks.registry import Registry
from tasks.workspace import Workspace

BUCKET = "dflash"
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}
READY_S = 120.0
FORMS = {"artifacts": False, "reference": True}
COMMAND = ("-c", "from tasks.cli import entry; entry()")  # the console script dflash-core, of the copy


@dataclass(frozen=True)
class Store:
    """A bucket behind an endpoint."""

    endpoint: str
    client: Any

    @property
    def artifacts(self) -> str:
        """Where MLflow keeps files."""
        return f"s3://{BUCKET}/mlflow"

    def use_as_remote(self, project: Path) -> None:
        """Make it the DVC remote of a project, by the commands that a person would use."""
        run_command(project, "-m", "dvc", "init", "--no-scm", "--quiet", "--force")
        run_command(project, "-m", "dvc", "remote", "add", "--default", "--force", "store", f"s3://{BUCKET}/dvc")
        run_command(project, "-m", "dvc", "remote", "modify", "store", "endpointurl", self.endpoint)

    def keys(self, prefix: str) -> list[str]:
        """Objects whose key begins with it."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]


@contextmanager
def s3_store() -> Iterator[Store]:
    """Start one, with its keys and its endpoint in this process's environment, where servers and stages find them."""
    import boto3

    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    os.environ.update(KEYS | {"MLFLOW_S3_ENDPOINT_URL": endpoint})
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: any(c.laddr.port == port for c in psutil.Process(server.pid).net_connections("tcp")), READY_S, "the S3 store")
        client = boto3.client("s3", endpoint_url=endpoint)
        client.create_bucket(Bucket=BUCKET)
        yield Store(endpoint, client)
    finally:
        server.terminate()
        server.wait()


def brought_back(place: Site, store: Store, root: Path, into: Path) -> dict[str, Any]:
    """What a finished workspace has in the store: its outputs by `dvc pull`, its drafter by `dflash-core pull`, in either form."""
    workspace = Workspace(root=root, config=load_config(root / "params.yaml"))
    outputs = pulled_outputs(store, root, into / "outputs")
    shutil.rmtree(place.project / ".dvc/cache")  # what comes back by reference comes from the store
    exported = file_digests(root / "build/drafter")
    found = {}
    for form, by_reference in FORMS.items():
        register(workspace, Registry(place.machine.mlflow_uri, f"real-{form}"), by_reference=by_reference)
        out = into / form
        run_command(place.project, *COMMAND, "pull", f"real-{form}@candidate", f"--out={out}", f"--uri={place.machine.mlflow_uri}")
        found[f"drafter_by_{form}"] = file_digests(out) == exported
    in_store = {"mlflow_objects": len(store.keys("mlflow/")), "dvc_objects": len(store.keys("dvc/"))}
    weights = any(key.endswith("model.safetensors") for key in store.keys("mlflow/"))
    return in_store | found | {"weights_in_store": weights, "outputs_by_dvc_pull": outputs}


def pulled_outputs(store: Store, root: Path, fresh: Path) -> bool:
    """`dvc pull` in an empty repository that has the workspace's declaration and lock, and no cache."""
    fresh.mkdir(parents=True)
    for name in ("dvc.yaml", "dvc.lock", "params.yaml"):
        shutil.copy(root / name, fresh)
    store.use_as_remote(fresh)
    run_command(fresh, "-m", "dvc", "pull")
    made = {name: digest for name, digest in file_digests(root / "build").items() if not name.startswith("features/")}
    return file_digests(fresh / "build") == made
