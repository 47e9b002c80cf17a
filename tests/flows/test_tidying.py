"""What is removed of old workspaces, and what must stay."""

import json
import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
from prefect import Flow, Task
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Completed, Crashed, Running

from tasks import from_registry, tidying
from tasks.tidying import end_orphaned_task_runs, remove_old_workspaces
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
    then = time.time() - days * 24 * 3600
    for path in root.iterdir():
        os.utime(path, (then, then))
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


def test_a_run_that_another_workspace_has_taken_over_stays(tmp_path: Path) -> None:
    for name in ("old", "trained"):
        workspace(tmp_path, name, 40)
    (tmp_path / "trained/runs/demo").mkdir(parents=True)
    os.utime(tmp_path / "trained/runs", (0, 0))
    runs = workspace(tmp_path, "a-persons", 1, of_a_run=False) / "runs"
    runs.mkdir()
    (runs / "demo").symlink_to(tmp_path / "trained/runs/demo")
    assert remove_old_workspaces.fn(30, tmp_path) == ["old"], "its log and checkpoints are all that the person has"


def test_workspaces_on_another_disk_keep_what_a_line_starts_from(tmp_path: Path) -> None:
    disk, linked = tmp_path / "disk", tmp_path / "workspaces"
    disk.mkdir()
    linked.symlink_to(disk)
    workspace(linked, "trained", 40)
    (disk / ".published").mkdir()
    publication = {"workspace": str(linked / "gone"), "run_dir": str(disk / "trained/runs/demo"), "lock": ""}
    (disk / ".published/demo.json").write_text(json.dumps(publication))
    assert remove_old_workspaces.fn(30, linked) == []


def test_one_that_a_retry_came_to_while_others_were_removed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def removed(root: Path) -> None:
        (tmp_path / "b/params.yaml").touch()

    workspace(tmp_path, "a", 40)
    workspace(tmp_path, "b", 40)
    monkeypatch.setattr(tidying.shutil, "rmtree", removed)
    assert remove_old_workspaces.fn(30, tmp_path) == ["a"]


def test_what_vanishes_while_it_is_looked_at_is_young(tmp_path: Path) -> None:
    assert not tidying._is_older(tmp_path / "params.tmp", 30)


def test_what_came_from_the_registry_goes_when_no_workspace_names_it(tmp_path: Path) -> None:
    place = tmp_path / from_registry.DIRECTORY
    place.mkdir()
    for name in ("old", "named", "last-known", "young"):
        (place / name).mkdir()
        (place / name / "model.safetensors").touch()
        if name != "young":
            os.utime(place / name, (0, 0))
    for link in ("m@champion.drafter", ".m@champion.drafter.12"):  # the second by one that was killed
        (place / link).symlink_to(place / "last-known")
        os.utime(place / link, (0, 0), follow_symlinks=False)
    root = workspace(tmp_path, "a-persons", 400, of_a_run=False)
    (root / "params.yaml").write_text(f"drafter: {{init_from: {place / 'named'}}}")
    remove_old_workspaces.fn(30, tmp_path)
    assert sorted(path.name for path in place.iterdir()) == ["last-known", "m@champion.drafter", "named", "young"]


def test_what_a_killed_one_has_left_goes_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(root: Path) -> None:
        (root / "flow.lock").unlink()
        raise KeyboardInterrupt

    workspace(tmp_path, "old", 40)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(tidying.shutil, "rmtree", killed)
        remove_old_workspaces.fn(30, tmp_path)
    assert remove_old_workspaces.fn(30, tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == [".published"]


def test_one_that_a_run_is_in_stays(tmp_path: Path) -> None:
    root = workspace(tmp_path, "busy", 40)
    with in_use(root):
        os.utime(root / "flow.lock", (0, 0))
        assert remove_old_workspaces.fn(30, tmp_path) == []
    assert root.exists()


def test_task_runs_that_a_killed_process_left_are_ended_also_where_a_retry_has_completed(
    prefect_server: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with get_client(sync_client=True) as client:

        def left_in(state: State) -> TaskRun:
            run = client.create_flow_run(Flow(lambda: None, name="f"), state=Running())
            task = client.create_task_run(Task(lambda: None, name="t"), flow_run_id=run.id, dynamic_key="0", state=Running())
            client.set_flow_run_state(run.id, state, force=True)
            return task

        def states() -> list[str]:
            end_orphaned_task_runs.fn()
            return [client.read_task_run(task.id).state.name for task in tasks]

        tasks = [left_in(Crashed()), left_in(Completed())]
        assert states() == ["Crashed", "Running"], "what a completed run's task did last may still be on its way"
        monkeypatch.setattr(tidying, "SETTLED", timedelta(0))
        assert states() == ["Crashed", "Crashed"]
