"""Starts and stops the services of this machine: `python -m tasks.services up`."""

import argparse
import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args
from urllib.parse import urlsplit

from dflash_core.errors import DflashError
from tasks.services import postgres
from tasks.services.machine import Database, Machine

EXAMPLE = "Example: python -m tasks.services up --db postgres --webhook http://127.0.0.1:9000/alarm"


def up(machine: Machine, webhook: str | None) -> None:
    """Start what doesn't run, and tell Prefect's server of pools, deployments and automations."""
    if machine.database == "postgres":
        postgres.make_cluster(machine.directory)
        for server in machine.database_servers():
            server.start()
        postgres.make_databases(machine.postgres_port, ("prefect", "mlflow"))
    for server in machine.servers():
        server.start()
    for server in machine.servers():
        server.wait_until_ready()
    from tasks.services.registration import register  # imports prefect, which takes a second that `down` needn't spend

    register(machine, webhook)
    for worker in machine.workers():
        worker.start()


def down(machine: Machine) -> None:
    """Stop what runs, users before servers; runs that go on save their state and can be retried."""
    if (machine.directory / "postgres.pid").exists():
        machine = replace(machine, database="postgres")  # whoever started it said so, who stops it needn't
    for daemon in [*machine.workers(), *reversed(machine.servers()), *machine.database_servers()]:
        if daemon.stop():
            print(f"{daemon.name} stopped")


def status(machine: Machine) -> str:
    """A line for each service."""
    lines = [f"{d.name:14} {f'pid {process.pid}' if (process := d.process()) else 'does not run'}" for d in [*machine.servers(), *machine.workers()]]
    settings = "\n".join(f"export {name}={value}" for name, value in machine.client_environment.items())
    return "\n".join([*lines, f"Prefect {machine.prefect_api.removesuffix('/api')}, MLflow {machine.mlflow_uri}; for a shell:", settings])


def _address(text: str) -> str:
    with contextlib.suppress(ValueError):
        parts = urlsplit(text)
        if parts.scheme in ("http", "https") and parts.hostname:
            return text
    raise argparse.ArgumentTypeError(f"{text!r} is no http:// or https:// address, so no alarm could be sent to it")


def main(arguments: list[str]) -> int:
    """Run one of the three; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tasks.services", description=__doc__, epilog=EXAMPLE)
    parser.add_argument("what", choices=("up", "down", "status"))
    parser.add_argument("--db", choices=get_args(Database), default="sqlite", help="of both servers")
    parser.add_argument("--directory", type=Path, default=Machine.directory, help="databases, artifacts, logs")
    parser.add_argument("--prefect-port", type=int, default=Machine.prefect_port)
    parser.add_argument("--mlflow-port", type=int, default=Machine.mlflow_port)
    parser.add_argument("--postgres-port", type=int, default=Machine.postgres_port)
    parser.add_argument("--artifacts", metavar="URI", help="where MLflow keeps files, such as s3://bucket/mlflow; default: in the directory")
    parser.add_argument("--webhook", type=_address, metavar="URL", help="is told of every failed run and every rejection")
    options = parser.parse_args(arguments)
    machine = Machine(
        directory=options.directory.resolve(),
        database=options.db,
        artifacts=options.artifacts,
        prefect_port=options.prefect_port,
        mlflow_port=options.mlflow_port,
        postgres_port=options.postgres_port,
    )
    try:
        if options.what == "up":
            up(machine, options.webhook)
        elif options.what == "down":
            down(machine)
        if options.what != "down":
            print(status(machine))
    except DflashError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
