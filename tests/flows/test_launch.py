"""The launcher: output, exit codes, and that nothing it started outlives it."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from dflash_core.errors import Stopped
from tasks.launch import CommandFailed, Supervised, stage_environment

LOGGER = logging.getLogger("test")
# A child that starts a grandchild in a session of its own, as torchrun does with its ranks, and tells its id.
FAMILY = (
    "import subprocess, sys, time;"
    "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True);"
    "print(p.pid, flush=True); time.sleep(60)"
)


def supervised(tmp_path: Path, code: str, **settings: float) -> Supervised:
    return Supervised("stage", [sys.executable, "-c", code], log_file=tmp_path / "logs/out.log", cwd=tmp_path, logger=LOGGER, **settings)


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_output_is_kept_and_passed_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    supervised(tmp_path, "import sys; print('one'); print('two', file=sys.stderr); sys.stdout.write('no newline')").run()
    assert sorted((tmp_path / "logs/out.log").read_text().split()) == ["newline", "no", "one", "two"]
    assert {r.getMessage() for r in caplog.records} == {"[stage] one", "[stage] two", "[stage] no newline"}


def test_a_second_run_passes_only_its_own_output_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    supervised(tmp_path, "print('first')").run()
    caplog.set_level(logging.INFO)
    supervised(tmp_path, "print('second')").run()
    assert [r.getMessage() for r in caplog.records] == ["[stage] second"]


@pytest.mark.parametrize("code, expected", [("2", 2), ("3", 3), ("1", 1), ("-9", 1)])
def test_an_exit_code_is_carried_on(tmp_path: Path, code: str, expected: int) -> None:
    end = "import os; os.kill(os.getpid(), 9)" if code == "-9" else f"import sys; print('Error: x is 3.'); sys.exit({code})"
    with pytest.raises(CommandFailed) as caught:
        supervised(tmp_path, end).run()
    assert caught.value.exit_code == expected
    assert "expected 0" in str(caught.value) and (code == "-9" or "x is 3." in str(caught.value))


def test_exit_4_is_stopped(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        supervised(tmp_path, "import sys; sys.exit(4)").run()


def test_an_interruption_ends_the_whole_tree(tmp_path: Path) -> None:
    command = supervised(tmp_path, FAMILY, term_seconds=5.0)
    log = tmp_path / "logs/out.log"

    def interrupt() -> None:
        wait_until(lambda: log.exists() and log.read_text().strip() != "")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        command.run()
    grandchild = int(log.read_text())
    wait_until(lambda: gone(grandchild))


def test_a_child_that_ignores_the_signal_is_killed(tmp_path: Path) -> None:
    command = supervised(tmp_path, "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)", term_seconds=0.3)
    log = tmp_path / "logs/out.log"

    def end() -> None:
        wait_until(lambda: log.exists() and "ready" in log.read_text())
        command.end()

    threading.Thread(target=end, daemon=True).start()
    with pytest.raises(CommandFailed):
        command.run()


def test_the_child_ends_when_we_are_killed(tmp_path: Path) -> None:
    launcher = (
        "import logging, sys; from pathlib import Path; from tasks.launch import Supervised;"
        f"Supervised('s', [sys.executable, '-c', 'import os, time; print(os.getpid(), flush=True); time.sleep(60)'],"
        f"log_file=Path({str(tmp_path / 'out.log')!r}), cwd=Path({str(tmp_path)!r}), logger=logging.getLogger()).run()"
    )
    project = Path(__file__).resolve().parents[2]
    process = subprocess.Popen([sys.executable, "-c", launcher], cwd=project)
    log = tmp_path / "out.log"
    wait_until(lambda: log.exists() and log.read_text().strip() != "", 20)
    process.kill()
    process.wait()
    wait_until(lambda: gone(int(log.read_text())))


def test_a_stage_finds_our_interpreter_and_code(tmp_path: Path) -> None:
    project = Path(__file__).resolve().parents[2]
    code = "import sys, dflash_core; print(sys.executable); print(dflash_core.__file__)"
    done = subprocess.run(["python", "-c", code], cwd=tmp_path, env=stage_environment(project), capture_output=True, text=True, check=True)
    executable, core = done.stdout.split()
    assert Path(executable).parent == Path(sys.executable).parent
    assert Path(core).is_relative_to(project)
