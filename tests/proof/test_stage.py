"""The stage: which verdicts stop the chain, what is not proven twice, and who is asked for a fresh save."""

import shutil
from pathlib import Path

import pytest
from memory_proofs import AT, STEPS
from recorded_sessions import put_fault
from resume_faults import FAULTS, Bench

from dflash_core.checkpoint.save_request import take_request
from dflash_core.checkpoint.store import CheckpointStore
from dflash_core.errors import CheckpointError, GateError
from dflash_core.proof import conduct
from dflash_core.proof.conduct import is_being_written
from dflash_core.proof.recorded import RecordedRun
from dflash_core.proof.replay import Setting
from dflash_core.report.collect import proof_rows
from dflash_core.stages import checkpoint_prove, proof_setting, prove
from dflash_core.training.records import LogWriter


def verdict(name: str, outcome: str, sound: bool) -> dict[str, object]:
    return {"name": name, "outcome": outcome, "sound": sound, "reason": "Because."}


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch, setting: Setting) -> None:
    """The run in memory has no workspace."""
    for module in (prove, checkpoint_prove):
        monkeypatch.setattr(module, "open_setting", lambda recorded: setting)


def test_what_stops_the_chain() -> None:
    good, last = verdict("a", "proven", True), verdict("z", "unproven", False)
    assert prove._unsound([verdict("a", "unproven", False), verdict("z", "proven", True)], "z") is None, "an earlier one may lack steps"
    assert prove._unsound([good, last], "z") is last
    assert prove._unsound([verdict("a", "rejected", False), verdict("z", "proven", True)], "z")["name"] == "a"
    assert prove._unsound([verdict("a", "proven", False), verdict("z", "proven", True)], "z")["name"] == "a", "a session resumed wrongly"


def test_a_checkpoint_is_proven_once_and_the_page_has_a_row_of_each(run: RecordedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in run.directory.store.names()[:-2]:
        shutil.rmtree(run.directory.store.root / name)
    first = prove.proofs_of_run(run)
    assert [v["outcome"] for v in first] == ["unproven", "unproven"]
    assert [v["outcome"] for v in prove.proofs_of_run(run, 2)] == ["proven", "unproven"]
    asked = []
    monkeypatch.setattr(prove, "prove_and_mark", lambda setting, recorded, name, steps: asked.append(name) or conduct.prove(setting, recorded, name))
    prove.proofs_of_run(run)
    assert asked == [f"step-{STEPS:08d}"]
    rows = proof_rows(run.directory.store)
    assert [(row.name, row.status, row.sound) for row in rows] == [
        (f"step-{STEPS - 2:08d}", "proven", True),
        (f"step-{STEPS:08d}", "committed", False),
    ]
    assert "needs 3 later steps" in rows[1].reason or "needs 2 later steps" in rows[1].reason


def test_by_hand_one_the_newest_or_all(run: RecordedRun) -> None:
    path = run.directory.path
    text, code = checkpoint_prove.run(path, f"step-{AT:08d}", 3, every=False)
    assert code == 0 and text.startswith(f"step-{AT:08d}: PROVEN.") and "3 steps replayed" in text
    text, code = checkpoint_prove.run(path, str(STEPS), 3, every=False)
    assert code == 3 and text.startswith(f"step-{STEPS:08d}: UNPROVEN.")
    text, code = checkpoint_prove.run(path, None, 3, every=False)
    assert code == 0 and text.startswith(f"step-{STEPS - 4:08d}: PROVEN."), "the newest with three later steps"
    with pytest.raises(CheckpointError, match="expected step-00000099. Name one"):
        checkpoint_prove.run(path, "step-00000099", 3, every=False)


def test_a_run_that_goes_on_is_noticed(tmp_path: Path) -> None:
    with LogWriter(tmp_path / "train_log.jsonl"):
        assert is_being_written(tmp_path / "train_log.jsonl")
    assert not is_being_written(tmp_path / "train_log.jsonl")


def test_a_run_that_goes_on_is_asked_for_a_fresh_save(setting: Setting, recorded: Path, bench: Bench, tmp_path: Path) -> None:
    put_fault(recorded, tmp_path, bench, next(f for f in FAULTS if f.name == "data_skips_8_steps"), 4)
    name = f"step-{AT:08d}"
    with LogWriter(tmp_path / "train_log.jsonl"):
        assert conduct.prove_and_mark(setting, RecordedRun(tmp_path), f"step-{AT - 2:08d}").outcome == "proven"
        assert not take_request(tmp_path)
        assert conduct.prove_and_mark(setting, RecordedRun(tmp_path), name).outcome == "rejected"
    assert take_request(tmp_path) and not take_request(tmp_path)


def test_missing_inputs_are_a_failed_proof(run: RecordedRun) -> None:
    with pytest.raises(GateError, match="can be carried out, which counts as a failed one: .*Run prepare first"):
        proof_setting.open_setting(RecordedRun(run.directory.path))


def test_a_status_needs_its_checkpoint(run: RecordedRun) -> None:
    store: CheckpointStore = run.directory.store
    with pytest.raises(CheckpointError, match="step-00000098"):
        store.mark("step-00000098", "proven", {})
