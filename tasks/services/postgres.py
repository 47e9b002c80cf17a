"""A PostgreSQL cluster of our own, on loopback, with one database for each server: Debian's package or whatever is on PATH."""

import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from dflash_core.errors import ConfigError
from tasks.services.daemon import Daemon

ROLE = "dflash"
READY_SECONDS = 30.0


def server(directory: Path, port: int) -> Daemon:
    """The server as a daemon, its data in `directory`. Raises ConfigError where PostgreSQL isn't installed."""
    return Daemon(
        name="postgres",
        # Sockets on loopback only: one in the file system would be in a directory that not every user may write.
        command=(_program("postgres"), "-D", str(_data(directory)), "-p", str(port), "-k", "", "-c", "listen_addresses=127.0.0.1"),
        directory=directory,
        user=_user(),
        stop_signal=signal.SIGINT,  # "fast": SIGTERM would wait for clients to leave by themselves
    )


def make_cluster(directory: Path) -> None:
    """Make the server's data where there are none. Raises ConfigError where PostgreSQL refuses."""
    data, user = _data(directory), _user()
    if (data / "PG_VERSION").exists():
        return
    data.mkdir(parents=True, exist_ok=True)
    if user:
        os.chown(data, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
    _run([_program("initdb"), "-D", str(data), "-U", ROLE, "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8"], user)


def make_databases(port: int, names: Iterable[str]) -> None:
    """Wait until the server takes connections, and make the databases that are missing.

    Raises:
        ConfigError: it doesn't come up.
    """
    connect = ["-h", "127.0.0.1", "-p", str(port), "-U", ROLE]
    deadline = time.monotonic() + READY_SECONDS
    while subprocess.run([_program("pg_isready"), *connect, "-d", "postgres", "-q"], check=False).returncode:
        if time.monotonic() > deadline:
            raise ConfigError(f"PostgreSQL takes no connections on port {port} after {READY_SECONDS:g} s. Its log is postgres.log.")
        time.sleep(0.2)
    there = _run([_program("psql"), *connect, "-d", "postgres", "-Atc", "select datname from pg_database"]).split()
    for name in names:
        if name not in there:
            _run([_program("createdb"), *connect, name])


def url(port: int, database: str, driver: str) -> str:
    """SQLAlchemy's address of a database."""
    return f"postgresql+{driver}://{ROLE}@127.0.0.1:{port}/{database}"


def _data(directory: Path) -> Path:
    return directory / "postgres"


def _user() -> str | None:
    """It refuses to run as root."""
    return "postgres" if os.geteuid() == 0 else None


def _program(name: str) -> str:
    """On PATH, or where Debian puts it, the newest version first."""
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[4]), reverse=True)
    found = next(map(str, debian), None) or shutil.which(name)
    if found is None:
        raise ConfigError(f"PostgreSQL's {name} is not on this machine. Install it (Debian: apt-get install postgresql), or use DB=sqlite.")
    return found


def _run(command: list[str], user: str | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, user=user, cwd="/")
    if done.returncode:
        raise ConfigError(f"{Path(command[0]).name} ended with {done.returncode}: {' '.join(done.stderr.split())[-300:]} Correct that, or use DB=sqlite.")
    return done.stdout
