"""An event in a run's log: a batch that does the same again, or a state that the run had lost."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from memory_proofs import AT
from recorded_sessions import go_on
from resume_faults import FAULTS, Bench, Session

from dflash_core.errors import DataError
from dflash_core.proof.recorded import RecordedRun
from dflash_core.proof.replay import Setting
from dflash_core.proof.verify_event import verify_event
from dflash_core.stages import diagnose, proof_setting


def test_what_the_batch_does_is_done_again(setting: Setting, run: RecordedRun) -> None:
    verdict = verify_event(setting, run, AT + 2)
    assert verdict.answer == "bad_batch" and verdict.checkpoint == f"step-{AT:08d}"
    assert verdict.jump[0] == verdict.jump[1] and "comes out the same" in verdict.reason
    json.dumps(verdict.tree(), allow_nan=False)


@pytest.mark.parametrize("name", ["optimizer_lost", "noise_left_off"])
def test_a_session_that_lost_its_state_is_told(setting: Setting, run: RecordedRun, bench: Bench, name: str) -> None:
    fault = next(f for f in FAULTS if f.name == name)
    go_on(bench, fault.session, run.directory.path, 5)
    verdict = verify_event(setting, RecordedRun(run.directory.path), AT + 4)
    assert (verdict.answer, verdict.fault) == ("broken_state", fault.expected), verdict
    assert verdict.first.step in (AT + 1, AT + 2) and verdict.reason.startswith(f"replayed from step-{AT:08d}")
    json.dumps(verdict.tree(), allow_nan=False)


def test_each_session_before_the_event_counts_for_the_band(setting: Setting, run: RecordedRun, bench: Bench) -> None:
    """The checkpoint that the second one, on more threads, went on from is gone: the replay goes through both."""
    elsewhere = replace(bench.setting, conditions={**bench.setting.conditions, "threads": 2})
    go_on(replace(bench, setting=elsewhere), Session(), run.directory.path, 5)
    for name in run.directory.store.names():
        if name >= f"step-{AT:08d}":
            shutil.rmtree(run.directory.store.root / name)
    verdict = verify_event(setting, RecordedRun(run.directory.path), AT + 2)
    assert verdict.answer == "bad_batch" and verdict.checkpoint == f"step-{AT - 2:08d}"
    assert "within a measured band" in verdict.reason and "threads was 2, is 1" in verdict.reason


def test_a_number_changed_far_from_any_resume_is_found_where_it_is(setting: Setting, run: RecordedRun) -> None:
    log = run.directory.log_path
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    spoiled = next(line for line in lines if line["kind"] == "step" and line["step"] == AT + 2)
    spoiled["loss"] = spoiled["loss_sum"] = 99.0
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    verdict = verify_event(setting, RecordedRun(run.directory.path), AT + 2)
    assert (verdict.answer, verdict.fault) == ("broken_state", "logging") and verdict.first.step == AT + 2


def test_what_can_not_be_replayed_is_said(setting: Setting, run: RecordedRun) -> None:
    assert verify_event(setting, run, 1).reason.startswith("no good checkpoint before step 1")
    assert "no unbroken steps" in verify_event(setting, run, 99).reason
    assert "more than 1; save more often" in verify_event(setting, run, AT + 2, most_steps=1).reason


def test_the_diagnoser_replays_what_it_saw(setting: Setting, run: RecordedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof_setting, "open_setting", lambda recorded: setting)
    log = run.directory.log_path
    spoiled = [json.loads(line) for line in log.read_text().splitlines()]
    for line in spoiled:
        if line["kind"] == "step" and line["step"] == AT + 2:
            line |= {"loss": 4 * line["loss"], "loss_sum": 4 * line["loss_sum"]}
    log.write_text("".join(json.dumps(line) + "\n" for line in spoiled))
    text, _ = diagnose.run(run.directory.path, [], tmp_path / "d.json", None, None, verify=True)
    (verified,) = json.loads((tmp_path / "d.json").read_text())["verified"]
    assert (verified["step"], verified["answer"], verified["fault"]) == (AT + 2, "broken_state", "logging")
    assert verified["jump"][0] == pytest.approx(4 * verified["jump"][1]) and f"Replayed: broken state at step {AT + 2}" in text
    with pytest.raises(DataError, match="is no directory, expected that of a run"):
        diagnose.run(log.rename(tmp_path / "moved.jsonl"), [], None, None, None, verify=True)


def test_a_log_named_as_a_runs_stands_for_its_directory(tmp_path: Path) -> None:
    log = tmp_path / "train_log.jsonl"  # another trainer's: the answer is about the log, not about a directory
    log.write_text("".join(json.dumps({"step": i, "loss": 1.0 + i**2 % 7 / 100 + 9 * (i >= 40)}) + "\n" for i in range(1, 61)))
    with pytest.raises(DataError, match="line 1: a record's kind is one of"):
        diagnose.run(log, [], None, None, None, verify=True)
