"""The log: round trip, one writer, torn lines, superseded records."""

import json
import math
import multiprocessing
from pathlib import Path

import pytest

from dflash_core.errors import ConfigError, DataError
from dflash_core.training import records as records_module
from dflash_core.training.log_reader import read_log
from dflash_core.training.records import (
    RECORD_TYPES,
    CheckpointRecord,
    EvalRecord,
    FindingRecord,
    LogWriter,
    ProbeRecord,
    ResumeRecord,
    StartRecord,
    StepRecord,
    StopRecord,
    to_line,
)


def step_fields(**changes: object) -> dict[str, object]:
    fields = {
        "epoch": 0, "loss": 2.5, "loss_sum": 5.0, "denominator": 2.0, "per_position_accuracy": (0.5, None), "per_position_count": (2, 0), "streak": 1.5, "num_blocks": 2,
        "grad_norm": 0.7, "lr": 0.1 + 0.2, "noise_std": 0.0, "tokens": 10, "padded_tokens": 12, "buckets": (6, 6), "first_sample": 0, "last_sample": 1,
        "hs_queue_depth": 0, "prefetch_queue_depth": 0, "tok_per_s": 100.0, "data_wait_s": 0.1, "target_s": 0.2, "drafter_s": 0.3, "checkpoint_s": 0.0,
    }  # fmt: skip
    return fields | changes


def step(log: LogWriter, number: int) -> StepRecord:
    return StepRecord(**log.stamp(number), **step_fields())


def start(log: LogWriter) -> StartRecord:
    return StartRecord(**log.stamp(0), total_steps=9, samples_per_epoch=4, config={"run": "r"}, identity={}, versions={})


def resume(log: LogWriter, number: int) -> ResumeRecord:
    return ResumeRecord(
        **log.stamp(number),
        total_steps=9,
        next_sample=4,
        checkpoint="step-00000002",
        digest="d",
        skipped=("why",),
        config={},
        versions={},
    )


def test_every_kind_reads_back_equal(tmp_path: Path) -> None:
    with LogWriter(tmp_path / "run" / "train_log.jsonl") as log:
        saved = CheckpointRecord(
            **log.stamp(2), name="n", digest="d", weights_digest="w", next_sample=4, num_bytes=5, seconds=0.1
        )
        probe = ProbeRecord(**log.stamp(3), **step_fields())
        measured = EvalRecord(**log.stamp(2), metrics={"tau": 1.5, "rounds": 3}, seconds=0.1)
        found = FindingRecord(**log.stamp(2), what="loss_spike", at_step=1, severity="fault", text="it jumps", stops=False)
        stopped = StopRecord(**log.stamp(2), reason="finished", message="")
        records = (start(log), resume(log, 2), step(log, 1), saved, measured, probe, found, stopped)
        for record in records:
            log.append(record)
    assert {r.kind for r in records} == set(RECORD_TYPES)
    assert read_log(tmp_path / "run" / "train_log.jsonl") == records


def test_lines_are_plain_json_with_full_precision(tmp_path: Path) -> None:
    with LogWriter(tmp_path / "log") as log:
        line = to_line(step(log, 1))
        tree = json.loads(line)
        assert line.endswith(b"\n") and next(iter(tree)) == "kind" and tree["lr"] == 0.30000000000000004
        assert {"run_id", "session_id", "step", "wall_time", "hs_queue_depth", "prefetch_queue_depth"} <= set(tree)
        odd = EvalRecord(**log.stamp(1), metrics={"tau": math.nan, "low": math.inf}, seconds=0.0)
        assert json.loads(to_line(odd))["metrics"] == {"tau": None, "low": None}


def test_records_after_the_resumed_step_are_superseded(tmp_path: Path) -> None:
    with LogWriter(tmp_path / "log") as dead:
        for record in (start(dead), step(dead, 1), step(dead, 2), step(dead, 3), step(dead, 4)):
            dead.append(record)
    with LogWriter(tmp_path / "log") as alive:
        alive.adopt(dead.run_id)
        for record in (resume(alive, 2), step(alive, 3)):
            alive.append(record)
    assert dead.session_id != alive.session_id
    found = [(r.kind, r.step, r.session_id == alive.session_id) for r in read_log(tmp_path / "log")]
    assert found == [("start", 0, False), ("step", 1, False), ("step", 2, False), ("resume", 2, True), ("step", 3, True)]
    with LogWriter(tmp_path / "log") as third:  # walks back further, before the second session's resume
        third.append(resume(third, 1))
    assert [(r.kind, r.step) for r in read_log(tmp_path / "log")] == [("start", 0), ("step", 1), ("resume", 1)]


def test_a_torn_last_line_is_closed_and_dropped(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with LogWriter(path) as log:
        log.append(start(log))
        log.append(step(log, 1))
        torn = to_line(step(log, 2))[:40]
    with path.open("ab") as file:
        file.write(torn)
    assert [r.step for r in read_log(path)] == [0, 1], "a reader copes before the repair too"
    with LogWriter(path) as log:
        log.append(resume(log, 1))
        log.append(step(log, 2))
    assert [(r.kind, r.step) for r in read_log(path)] == [("start", 0), ("step", 1), ("resume", 1), ("step", 2)]
    assert torn + b"\n" in path.read_bytes(), "append-only: what was written stays"


def test_a_broken_line_that_no_kill_explains_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with LogWriter(path) as log:
        path.write_bytes(to_line(start(log)) + b'{"kind": "st\n' + to_line(step(log, 1)))
    with pytest.raises(DataError, match="line 2 is not JSON"):
        read_log(path)


@pytest.mark.parametrize("line", ['{"kind": "steps"}', "3", '{"kind": "stop", "step": 1, "surprise": 2}'])
def test_an_unknown_kind_or_field_is_an_error(tmp_path: Path, line: str) -> None:
    (tmp_path / "log").write_text(line + "\n")
    with pytest.raises(DataError, match="line 1"):
        read_log(tmp_path / "log")


@pytest.mark.parametrize("written", [7, OSError(28, "No space left on device")])
def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int | OSError) -> None:
    def write(_fd: int, _line: bytes) -> int:
        if isinstance(written, OSError):
            raise written
        return written

    with LogWriter(tmp_path / "log") as log:
        monkeypatch.setattr(records_module.os, "write", write)
        with pytest.raises(DataError, match="disk full|No space left.*resume"):
            log.append(start(log))


def test_a_log_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where a directory should be")
    with pytest.raises(ConfigError, match="runs/demo/train_log.jsonl can't be opened"):
        LogWriter(tmp_path / "runs" / "demo" / "train_log.jsonl")


def _open_in_another_process(path: Path, answer: "multiprocessing.Queue[str]") -> None:
    try:
        LogWriter(path).close()
        answer.put("opened")
    except ConfigError as error:
        answer.put(str(error))


def test_a_second_writer_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")

    def attempt() -> str:
        answer = context.Queue()
        child = context.Process(target=_open_in_another_process, args=(tmp_path / "log", answer))
        child.start()
        child.join(10)
        return answer.get(timeout=10)

    with LogWriter(tmp_path / "log"):
        assert "one run has one writer" in attempt()
    assert attempt() == "opened"
