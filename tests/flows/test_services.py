"""The services of a machine: started once, stopped whole, and told apart from what isn't ours."""

import http.server
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dflash_core.errors import ConfigError
from tasks.services import daemon as daemon_module
from tasks.services.__main__ import down, main
from tasks.services.daemon import Daemon
from tasks.services.machine import Machine

SLEEP = (sys.executable, "-c", "import time; time.sleep(60)")
FAMILY = (sys.executable, "-c", "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); time.sleep(60)")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    made = Daemon(name="sleeper", command=SLEEP, directory=tmp_path / "services")
    yield made
    made.stop()


@pytest.fixture
def url() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/health"
    server.shutdown()
    server.server_close()


def test_a_second_start_starts_nothing(daemon: Daemon) -> None:
    assert daemon.start()
    first = daemon.process()
    assert not daemon.start() and daemon.process() == first
    assert daemon.stop() and daemon.process() is None and not daemon.stop()
    assert not daemon.pid_file.exists()


def test_an_id_that_another_process_has_now_is_not_ours(daemon: Daemon) -> None:
    daemon.directory.mkdir()
    daemon.pid_file.write_text(json.dumps({"pid": os.getpid(), "created": 0.0}))
    assert daemon.process() is None and not daemon.stop(), "it would have ended the tests"
    daemon.pid_file.write_text("torn")
    assert daemon.process() is None


def test_what_it_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_module, "STOP_SECONDS", 1.0)
    family = Daemon(name="family", command=FAMILY, directory=tmp_path)
    family.start()
    while not (children := family.process().children()):
        pass
    family.stop()
    assert not any(psutil.pid_exists(child.pid) and child.status() != psutil.STATUS_ZOMBIE for child in children)


def test_a_worker_ends_after_its_runs_have_told_how_they_ended(tmp_path: Path) -> None:
    """As Prefect's does: it kills its run when it ends, and starts another where one has ended."""
    (tmp_path / "run.py").write_text(
        "import os, pathlib, signal, sys, time\n"
        "place, worker = pathlib.Path(sys.argv[1]), os.getppid()\n"
        "def end(*_):\n"
        "    time.sleep(0.5)\n"
        "    (place / 'told').write_text('in time' if os.getppid() == worker else 'alone')\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "(place / f'begun-{os.getpid()}').touch()\n"
        "time.sleep(60)\n"
    )
    (tmp_path / "worker.py").write_text(
        "import signal, subprocess, sys\n"
        "def end(*_):\n"
        "    run.kill()\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "while True:\n"
        "    run = subprocess.Popen([sys.executable, sys.argv[1] + '/run.py', sys.argv[1]])\n"
        "    run.wait()\n"
    )
    command = (sys.executable, str(tmp_path / "worker.py"), str(tmp_path))
    worker = Daemon(name="worker", command=command, directory=tmp_path, children_first=True)
    worker.start()
    while not list(tmp_path.glob("begun-*")):
        time.sleep(0.01)
    assert worker.stop() and worker.process() is None
    assert (tmp_path / "told").read_text() == "in time" and len(list(tmp_path.glob("begun-*"))) == 1


def test_a_foreign_program_in_its_place_is_named(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match="isn't ours"):
        Daemon(name="ours", command=SLEEP, directory=tmp_path, ready_url=url).start()
    assert not list(tmp_path.iterdir())


def test_one_that_ends_at_once_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    failing = Daemon(name="bad", command=(sys.executable, "-c", "raise SystemExit('no such table')"), directory=tmp_path, ready_url="http://127.0.0.1:9/")
    failing.start()
    with pytest.raises(ConfigError, match="no such table"):
        failing.wait_until_ready()


def test_everything_listens_on_loopback_and_is_quiet(tmp_path: Path) -> None:
    machine = Machine(directory=tmp_path, database="postgres")
    prefect, mlflow = machine.servers()
    assert prefect.environment["PREFECT_SERVER_API_HOST"] == "127.0.0.1"
    assert mlflow.command[mlflow.command.index("--host") + 1] == "127.0.0.1"
    assert all("127.0.0.1" in url for url in (machine.prefect_api, machine.mlflow_uri))
    assert "@127.0.0.1:5433/prefect" in prefect.environment["PREFECT_SERVER_DATABASE_CONNECTION_URL"]
    assert all(os.environ[name] == value for name, value in {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "true"}.items())


def test_artifacts_may_lie_in_another_store(tmp_path: Path) -> None:
    (_, here), (_, there) = Machine(directory=tmp_path).servers(), Machine(directory=tmp_path, artifacts="s3://bucket/mlflow").servers()
    assert here.command[-1] == str(tmp_path / "mlflow-artifacts") and there.command[-2:] == ("--artifacts-destination", "s3://bucket/mlflow")


@pytest.mark.parametrize("address", ["alarm", "ftp://127.0.0.1/alarm", "http://", "127.0.0.1:9000"])
def test_an_address_that_takes_no_alarm_starts_nothing(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["up", "--directory", str(tmp_path / "services"), "--webhook", address])
    assert ended.value.code == 2 and "no alarm could be sent" in capsys.readouterr().err
    assert not (tmp_path / "services").exists()


def test_whatever_was_started_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Daemon(name="postgres", command=SLEEP, directory=tmp_path)
    monkeypatch.setattr(Machine, "database_servers", lambda machine: [database] if machine.database == "postgres" else [])
    database.start()
    down(Machine(directory=tmp_path))  # without DB=postgres
    assert database.process() is None


def test_a_worker_of_the_gpu_pool_runs_one_at_a_time(tmp_path: Path) -> None:
    gpu, light = Machine(directory=tmp_path).workers()
    assert gpu.command[-2:] == ("--limit", "1") and gpu.stop_signal == signal.SIGTERM and light.children_first
