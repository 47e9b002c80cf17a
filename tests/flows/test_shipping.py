"""Delivery of a log to MLflow: all of it, once, in parts, however the log was cut or the server made anew."""

import json
from pathlib import Path
from typing import Any

import pytest

from tasks import mlflow_store, shipping
from tasks.shipping import ship

from .toy_log import START, client, history, line, step_line, stop_line


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path


def test_delivery_goes_on_where_it_was_and_torn_lines_wait(run_dir: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = run_dir / shipping.LOG
    log.write_text(line(START) + step_line(1) + step_line(2)[:30])
    run_id = ship(uri, run_dir)
    assert history(uri, run_id, "loss") == [(1, 10.0)]
    sent: list[Any] = []
    log_metrics = mlflow_store.log_metrics
    monkeypatch.setattr(mlflow_store, "log_metrics", lambda c, r, metrics: (sent.extend(metrics), log_metrics(c, r, metrics)))
    log.write_text(line(START) + step_line(1) + step_line(2))
    assert ship(uri, run_dir) == run_id and {m.step for m in sent} == {2}
    assert history(uri, run_id, "loss") == [(1, 10.0), (2, 5.0)]


@pytest.mark.parametrize("num_steps", [3, 5], ids=["shorter", "longer"])
def test_a_log_that_was_cut_and_goes_on_is_delivered(run_dir: Path, uri: str, num_steps: int) -> None:
    log = run_dir / shipping.LOG
    log.write_text(line(START) + "".join(map(step_line, range(1, 5))))
    ship(uri, run_dir)
    resume = line({"kind": "resume", "run_id": "r", "session_id": "t", "step": 1, "wall_time": 1500.0})
    log.write_text(line(START) + step_line(1) + resume + "".join(step_line(step, 0.5, 1600.0) for step in range(2, num_steps + 1)))
    run_id = ship(uri, run_dir)
    again = [(step, loss) for step, loss in history(uri, run_id, "loss") if loss == 0.5]
    assert again == [(step, 0.5) for step in range(2, num_steps + 1)] and history(uri, run_id, "loss")[0] == (1, 10.0)


def load_line(load: float, wall_time: float) -> str:
    return line({"kind": "system", "wall_time": wall_time, "metrics": {"cpu_utilization_percentage": load}})


def test_a_log_that_was_cut_and_has_another_line_end_at_the_offset_is_delivered(run_dir: Path, uri: str) -> None:
    log, load = run_dir / shipping.LOG, run_dir / shipping.SYSTEM_LOG
    log.write_text(line(START) + "".join(map(step_line, range(1, 5))))
    load.write_text(load_line(50.0, 1001.0))
    ship(uri, run_dir)
    size, resume = log.stat().st_size, line({"kind": "resume", "run_id": "r", "session_id": "t", "step": 1, "wall_time": 1500.0})
    again = (line(START) + step_line(1) + resume + step_line(2, 0.5, 1600.0)).rstrip("\n").ljust(size - 1) + "\n"
    log.write_text(again + step_line(3, 0.5, 1600.0))
    load.write_text(load_line(60.0, 1002.0))
    run_id = ship(uri, run_dir)
    assert len(again) == size and [(step, loss) for step, loss in history(uri, run_id, "loss") if loss == 0.5] == [(2, 0.5), (3, 0.5)]
    assert history(uri, run_id, "system/cpu_utilization_percentage") == [(0, 50.0), (0, 60.0)]


def test_a_cursor_of_an_earlier_version_goes_on(run_dir: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log, cursor, sent = run_dir / shipping.LOG, run_dir / shipping.CURSOR, []
    log.write_text(line(START) + step_line(1))
    ship(uri, run_dir)
    tree = json.loads(cursor.read_text())
    cursor.write_text(json.dumps({uri: {key: value for key, value in tree[uri].items() if "tail" not in key}}))
    log.write_text(log.read_text() + step_line(2))
    monkeypatch.setattr(mlflow_store, "log_metrics", lambda c, r, metrics: sent.extend(metrics))
    ship(uri, run_dir)
    assert {metric.step for metric in sent} == {2} and json.loads(cursor.read_text())[uri]["tail"]


@pytest.mark.parametrize("damage", [[], ["x"], {"log_run": "r"}, {"offset": "9"}, {"sent": {"drafter": 1}}, {"more": 1}, None], ids=str)
def test_a_damaged_cursor_begins_anew(run_dir: Path, uri: str, damage: Any) -> None:
    (run_dir / shipping.LOG).write_text(line(START) + step_line(1))
    first, cursor = ship(uri, run_dir), run_dir / shipping.CURSOR
    whole = json.loads(cursor.read_text())
    wrong = whole[uri] | damage if isinstance(damage, dict) and "log_run" not in damage else damage
    cursor.write_text(json.dumps([] if damage is None else {uri: wrong}))
    assert shipping.known_run(uri, run_dir) is None
    assert ship(uri, run_dir) == first and history(uri, first, "loss") == [(1, 10.0)] and json.loads(cursor.read_text()) == whole


def test_a_record_that_is_not_whole_is_passed_over(run_dir: Path, uri: str) -> None:
    damaged = [{"kind": "step", "loss": 1.0}, {"kind": "eval", "step": 1}, {"kind": "stop", "step": 1}, {"kind": "finding"}, {**START, "wall_time": "x"}]
    (run_dir / shipping.LOG).write_text(line(START) + step_line(1) + "".join(map(line, damaged)) + step_line(2))
    assert history(uri, ship(uri, run_dir), "loss") == [(1, 10.0), (2, 5.0)]


def test_a_line_longer_than_a_part_does_not_end_the_delivery(run_dir: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "PART_BYTES", 1000)
    long = line({"kind": "event", "text": "x" * 5000})
    (run_dir / shipping.LOG).write_text(line(START) + step_line(1) + long + step_line(2) + long.strip())
    run_id = ship(uri, run_dir)
    with (run_dir / shipping.LOG).open("a") as log:
        log.write("\n" + step_line(2, wall_time=1600.0) + step_line(3, 1.0))  # which asks for all the steps before
    assert ship(uri, run_dir) == run_id and history(uri, run_id, "loss") == [(1, 10.0), (2, 5.0), (3, 1.0)]


def test_a_long_log_goes_in_parts_each_noted(run_dir: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "PART_BYTES", 1000)
    log, real = run_dir / shipping.LOG, mlflow_store.log_metrics
    log.write_text(line(START) + "".join(map(step_line, range(1, 20))))

    def breaks(client: Any, run_id: str, metrics: list[Any]) -> None:
        if any(metric.step == 10 for metric in metrics):
            raise ConnectionError("gone")
        real(client, run_id, metrics)

    monkeypatch.setattr(mlflow_store, "log_metrics", breaks)
    with pytest.raises(ConnectionError):
        ship(uri, run_dir)
    cursor = json.loads((run_dir / shipping.CURSOR).read_text())[uri]
    assert 0 < cursor["last_step"] < 10 and 0 < cursor["offset"] < log.stat().st_size
    monkeypatch.setattr(mlflow_store, "log_metrics", real)
    assert [step for step, _ in history(uri, ship(uri, run_dir), "loss")] == list(range(1, 20))


@pytest.mark.parametrize("late", [False, True], ids=["delivered as it went", "delivered at the end"])
def test_a_step_done_again_counts_once_unless_its_numbers_differ(run_dir: Path, uri: str, late: bool) -> None:
    log, resume = run_dir / shipping.LOG, line({"kind": "resume", "run_id": "r", "session_id": "t", "step": 1, "wall_time": 1500.0})
    parts = [line(START) + step_line(1) + step_line(2), step_line(3) + resume, step_line(2, wall_time=1600.0), step_line(3, 9.0, 1601.0) + step_line(4, 2.5, 1602.0)]
    log.write_text("")
    for part in parts:
        with log.open("a") as file:
            file.write(part)
        run_id = None if late else ship(uri, run_dir)
    run_id = ship(uri, run_dir) if late else run_id
    assert history(uri, run_id, "loss") == [(1, 10.0), (2, 5.0), (3, 10 / 3), (3, 9.0), (4, 2.5)]


def test_a_resumed_training_is_the_same_run_and_another_one_is_not(run_dir: Path, uri: str) -> None:
    log = run_dir / shipping.LOG
    log.write_text(line(START) + step_line(1) + stop_line(1, "signal"))
    first = ship(uri, run_dir)
    assert client(uri).get_run(first).info.status == "KILLED"
    with log.open("a") as file:
        file.write(line({"kind": "resume", "run_id": "r", "session_id": "t", "step": 1, "wall_time": 1500.0}) + step_line(2))
    assert ship(uri, run_dir) == first and client(uri).get_run(first).info.status == "RUNNING"
    log.write_text(line({**START, "run_id": "q"}) + step_line(1))
    second = ship(uri, run_dir)
    assert second != first and history(uri, second, "loss") == [(1, 10.0)]


def test_a_server_that_was_made_anew_gets_all_of_it(run_dir: Path, uri: str, empty_database: Path, tmp_path: Path) -> None:
    (run_dir / shipping.LOG).write_text(line(START) + step_line(1))
    first = ship(uri, run_dir)
    other = tmp_path / "new.db"
    other.write_bytes(empty_database.read_bytes())
    cursor = (run_dir / shipping.CURSOR).read_text()
    (run_dir / shipping.CURSOR).write_text(cursor.replace(uri, f"sqlite:///{other}"))
    second = ship(f"sqlite:///{other}", run_dir)
    assert second != first and history(f"sqlite:///{other}", second, "loss") == [(1, 10.0)]


def test_the_machines_load_is_delivered(run_dir: Path, uri: str) -> None:
    (run_dir / shipping.LOG).write_text(line(START))
    (run_dir / shipping.SYSTEM_LOG).write_text(load_line(50.0, 1001.0))
    assert history(uri, ship(uri, run_dir), "system/cpu_utilization_percentage") == [(0, 50.0)]
