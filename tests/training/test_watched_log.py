"""What the watch finds stands in the run's own log, may stop the run, and never ends it by a fault of its own."""

from pathlib import Path

import numpy as np
import pytest

from dflash_core.config import WatchConfig
from dflash_core.diagnosis.live import Watch
from dflash_core.stages.watched_log import WatchedLog
from dflash_core.training.log_reader import read_log
from dflash_core.training.records import FindingRecord, LogWriter, Record, StepRecord, StopRecord

STEP = {
    "epoch": 0, "loss_sum": 5.0, "denominator": 2.0, "per_position_accuracy": (0.5,), "per_position_count": (2,), "streak": 1.5, "num_blocks": 2, "grad_norm": 1.0,
    "lr": 1e-3, "noise_std": 0.0, "tokens": 10, "padded_tokens": 12, "buckets": (6,), "first_sample": 0, "last_sample": 1, "hs_queue_depth": 0,
    "prefetch_queue_depth": 0, "tok_per_s": 100.0, "data_wait_s": 0.1, "target_s": 0.2, "drafter_s": 0.3, "checkpoint_s": 0.0,
}  # fmt: skip
# Before the first look that comes by itself, after which a loop this fast may not look again for seconds.
JUMP = 150


def losses() -> np.ndarray:
    """A falling loss that jumps and stays up."""
    loss = (1 + 5 * np.exp(-np.arange(300) / 40)) * (1 + 0.02 * np.random.default_rng(0).normal(size=300))
    loss[JUMP:] += 4.0
    return loss


def run(path: Path, notes: list[str], config: WatchConfig, last: Record | None = None) -> WatchedLog:
    """A session's records, until the watch wants a stop."""
    with LogWriter(path) as writer:
        log = WatchedLog(writer, config, notes.append)
        for i, loss in enumerate(losses().tolist(), start=1):
            log.append(StepRecord(**log.stamp(i), loss=loss, **STEP))
            if log.stop_wanted():
                break
        if last is not None:
            log.append(last)
    return log


def findings(path: Path) -> list[FindingRecord]:
    return [r for r in read_log(path) if isinstance(r, FindingRecord)]


def test_a_finding_is_a_record_and_a_note(tmp_path: Path) -> None:
    notes: list[str] = []
    log = run(tmp_path / "log", notes, WatchConfig())
    (found,) = findings(tmp_path / "log")
    assert abs(found.at_step - JUMP) <= 3 and found.severity == "fault" and not found.stops and log.stop_wanted() is None
    assert JUMP < found.step <= JUMP + 20 and notes == [f"step {found.step}: {found.text}"]


def test_a_finding_that_is_named_stops_the_run(tmp_path: Path) -> None:
    kind = findings_of_a_run(tmp_path / "first")
    log = run(tmp_path / "log", [], WatchConfig(stop_on=(kind,)))
    assert findings(tmp_path / "log")[-1].stops and f"the finding {kind} at step" in log.stop_wanted()
    assert len(read_log(tmp_path / "log")) < 300


def findings_of_a_run(path: Path) -> str:
    run(path, [], WatchConfig())
    return findings(path)[0].what


def test_a_step_that_raised_is_found_before_the_stop(tmp_path: Path) -> None:
    with LogWriter(tmp_path / "other") as other:
        stop = StopRecord(**other.stamp(300), reason="error", message="NonFiniteError: step 301 has loss nan")
    run(tmp_path / "log", [], WatchConfig(), last=stop)
    *_, found, last = read_log(tmp_path / "log")
    assert (found.what, found.at_step, found.stops, last.kind) == ("nonfinite", 301, True, "stop")


def test_a_fault_of_the_watch_is_not_one_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Watch, record: StepRecord) -> None:
        raise ZeroDivisionError("no")

    monkeypatch.setattr(Watch, "feed", broken)
    notes: list[str] = []
    run(tmp_path / "log", notes, WatchConfig())
    assert len(read_log(tmp_path / "log")) == 300 and len(notes) == 1 and "ZeroDivisionError" in notes[0]
