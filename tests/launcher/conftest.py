"""What the tests of a launch share: scripts as ranks, another node, and short waits."""

import multiprocessing
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dflash_core.launcher import supervision

from .ranks import FORKED, NODE, PREAMBLE


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "SETTLE_S", 0.5)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], list[str]]:
    def write(body: str) -> list[str]:
        path = tmp_path / "script.py"
        path.write_text(PREAMBLE + body)
        return [str(path)]

    return write


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[Callable[..., multiprocessing.Process]]:
    started: list[multiprocessing.Process] = []

    def start(worker: list[str], **options) -> multiprocessing.Process:
        program = tmp_path / "node.py"
        source = NODE.format(worker=worker, options={"nproc": 1} | options, logs=tmp_path / "ranks", said=tmp_path / "said")
        program.write_text("from pathlib import Path, PosixPath\n" + source)
        started.append(FORKED.Process(target=runpy.run_path, args=(str(program),)))
        started[-1].start()
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.join()
