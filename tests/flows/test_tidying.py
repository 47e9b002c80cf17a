"""What is removed of old workspaces, and what must stay."""

import json
import os
from pathlib import Path

import pytest

from tasks import tidying
from tasks.tidying import remove_old_workspaces
from tasks.workspace import OF_A_RUN, in_use


@pytest.fixture(autouse=True)
def no_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    class Logger:
        def info(self, text: str, *parts: object) -> None:
            pass

    monkeypatch.setattr(tidying, "get_run_logger", Logger)


def workspace(directory: Path, name: str, days: float, of_a_run: bool = True) -> Path:
    root = directory / name
    root.mkdir()
    (root / "flow.lock").touch()
    if of_a_run:
        (root / OF_A_RUN).touch()
    then = (root / "flow.lock").stat().st_mtime - days * 24 * 3600
    os.utime(root / "flow.lock", (then, then))
    return root


def test_only_old_ones_of_runs_that_nothing_starts_from_are_removed(tmp_path: Path) -> None:
    for name, days in {"old": 40, "young": 1, "published": 40, "trained": 40}.items():
        workspace(tmp_path, name, days)
    workspace(tmp_path, "a-persons", 400, of_a_run=False)
    (tmp_path / ".published").mkdir()
    publication = {"workspace": str(tmp_path / "published"), "run_dir": str(tmp_path / "trained/runs/demo"), "lock": ""}
    (tmp_path / ".published/demo.json").write_text(json.dumps(publication))
    assert remove_old_workspaces.fn(30, tmp_path) == ["old"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".published", "a-persons", "published", "trained", "young"]


def test_one_that_a_run_is_in_stays(tmp_path: Path) -> None:
    root = workspace(tmp_path, "busy", 40)
    with in_use(root):
        os.utime(root / "flow.lock", (0, 0))
        assert remove_old_workspaces.fn(30, tmp_path) == []
    assert root.exists()
