"""The proof: right checkpoints are proven, wrong ones rejected with the class of their fault, the rest stays undecided."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from memory_proofs import AT, CONDITIONS, STEPS, make_setting
from recorded_sessions import begin_run, go_on, put_fault
from resume_faults import FAULTS, Bench, ResumeFault, Session

from dflash_core.checkpoint.manifest import read_status, read_verdict
from dflash_core.checkpoint.resume import RunDirectory
from dflash_core.proof.conduct import prove_and_mark
from dflash_core.proof.prove import prove
from dflash_core.proof.recorded import RecordedRun
from dflash_core.proof.replay import Setting
from dflash_core.training.records import LogWriter, ResumeRecord

NAME = f"step-{AT:08d}"
# One of each class; benchmarks/fault_battery.py has all, on a real target.
TRIED = (
    *("rng_not_restored", "data_replays_last_8_steps", "data_skips_8_steps", "adam_step_counter_reset", "lr_schedule_off_by_8_steps"),
    *("adam_second_moment_lost", "one_layer_not_loaded", "accumulated_half_gradient_lost", "noise_left_off", "samples_in_another_order"),
    *("log_double_counts_first_loss", "checkpoint_of_another_run"),
)


def test_a_right_checkpoint_is_proven_bit_for_bit_and_says_so(setting: Setting, run: RecordedRun) -> None:
    verdict = prove_and_mark(setting, run, NAME)
    assert (verdict.outcome, verdict.sound, verdict.fault) == ("proven", True, None)
    assert verdict.exactness == "bit for bit" and verdict.steps_replayed == 3
    store = run.directory.store
    note = json.loads((store.root / NAME / "status.json").read_text())
    assert note["status"] == "proven" == read_status(store.root / NAME) and note["verdict"]["sound"]
    assert note["manifest"] == store.load(NAME)[0].digest


@pytest.mark.parametrize("name", TRIED)
def test_a_fault_is_rejected_with_its_class(setting: Setting, recorded: Path, bench: Bench, tmp_path: Path, name: str) -> None:
    fault = next(f for f in FAULTS if f.name == name)
    put_fault(recorded, tmp_path, bench, fault, 4)
    verdict = prove_and_mark(setting, RecordedRun(tmp_path), NAME)
    assert (verdict.outcome, verdict.fault) == ("rejected", fault.expected), verdict.text()
    store = RunDirectory(tmp_path).store
    assert read_status(store.root / NAME) == "rejected" and read_verdict(store.root / NAME)["fault"] == fault.expected
    again = prove_and_mark(setting, RecordedRun(tmp_path), NAME)
    assert again.outcome == "rejected" and "before" in again.reason and again.fault == fault.expected


def test_a_session_that_resumes_rightly_proves_the_checkpoint(setting: Setting, recorded: Path, bench: Bench, tmp_path: Path) -> None:
    put_fault(recorded, tmp_path, bench, ResumeFault("none", "", "session"), 3)
    verdict = prove(setting, RecordedRun(tmp_path), NAME)
    assert verdict.sound and verdict.judgements[0].resumed and "which resumed at step 14" in verdict.reason


def test_a_wrong_session_beside_the_right_history_leaves_the_file_proven(setting: Setting, run: RecordedRun, bench: Bench) -> None:
    """The uninterrupted steps prove the file; that what came later is wrong must not be lost, and is not the file's fault."""
    fault = next(f for f in FAULTS if f.name == "optimizer_lost")
    go_on(bench, fault.session, run.directory.path, 4)
    verdict = prove_and_mark(setting, RecordedRun(run.directory.path), NAME)
    assert (verdict.outcome, verdict.sound, verdict.fault) == ("proven", False, "moments")
    assert "session that went on from it is not what it says" in verdict.reason
    assert read_status(run.directory.store.root / NAME) == "proven"


def test_a_checkpoint_that_a_resume_went_back_behind_is_not_judged_by_the_new_history(setting: Setting, run: RecordedRun, bench: Bench) -> None:
    go_on(bench, next(f for f in FAULTS if f.name == "optimizer_lost").session, run.directory.path, 6)
    verdict = prove(setting, RecordedRun(run.directory.path), f"step-{AT + 2:08d}")
    assert verdict.sound and [j.resumed for j in verdict.judgements] == [False]


def test_settings_changed_by_force_count_from_their_session_on(run: RecordedRun) -> None:
    with LogWriter(run.directory.log_path) as log:
        log.adopt(run.start.run_id)
        config = run.start.config | {"training": run.start.config["training"] | {"learning_rate": 1e-3}}
        log.append(
            ResumeRecord(
                **log.stamp(AT), total_steps=48, next_sample=0, checkpoint=NAME, digest=None, skipped=(), config=config, versions={},
                forced={"training.learning_rate": [5e-3, 1e-3]},
            )
        )  # fmt: skip
        session = log.session_id
    changed = RecordedRun(run.directory.path)
    assert changed.identity(run.start.session_id)["training.learning_rate"] == 5e-3
    assert changed.identity(session)["training.learning_rate"] == changed.config.training.learning_rate == 1e-3


def test_too_few_later_steps_leave_it_committed(setting: Setting, run: RecordedRun) -> None:
    name = f"step-{STEPS:08d}"
    verdict = prove_and_mark(setting, run, name)
    assert verdict.outcome == "unproven" and not verdict.sound and "needs 3 later steps and the log has 0" in verdict.reason
    assert read_status(run.directory.store.root / name) == "committed"
    assert prove_and_mark(setting, run, f"step-{STEPS - 2:08d}", 2).outcome == "proven"


def test_damaged_files_are_rejected_without_a_replay(setting: Setting, run: RecordedRun) -> None:
    path = run.directory.store.root / NAME / "model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 1
    path.write_bytes(raw)
    verdict = prove(setting, run, NAME)
    assert (verdict.outcome, verdict.fault, verdict.steps_replayed) == ("rejected", "file", 0) and "crc32" in verdict.reason


def test_inputs_that_changed_leave_it_undecided_and_are_named(setting: Setting, run: RecordedRun) -> None:
    changed = replace(setting, identity={**setting.identity, "dataset": "another"})
    verdict = prove_and_mark(changed, run, NAME)
    assert (verdict.outcome, verdict.fault) == ("unproven", "identity")
    assert "dataset is another in what is on disk, expected memory" in verdict.reason


def test_another_machine_asks_for_a_measured_band_and_still_finds_faults(
    setting: Setting, recorded: Path, run: RecordedRun, bench: Bench, tmp_path: Path
) -> None:
    elsewhere = replace(setting, conditions=CONDITIONS | {"threads": 7})
    verdict = prove(elsewhere, run, NAME)
    assert verdict.sound and "threads was 1, is 7" in verdict.exactness and verdict.steps_replayed == 6
    faulty = tmp_path / "faulty"
    for name in ("adam_second_moment_lost", "one_layer_not_loaded"):
        fault = next(f for f in FAULTS if f.name == name)
        put_fault(recorded, faulty / name, bench, fault, 4)
        verdict = prove(elsewhere, RecordedRun(faulty / name), NAME)
        assert (verdict.outcome, verdict.fault) == ("rejected", fault.expected), verdict.text()


def test_what_is_smaller_than_the_band_shows_in_the_file(setting: Setting, recorded: Path, bench: Bench, tmp_path: Path) -> None:
    put_fault(recorded, tmp_path, bench, next(f for f in FAULTS if f.name == "moments_rounded_to_bf16"), 4)
    elsewhere = replace(setting, conditions=CONDITIONS | {"threads": 7})
    verdict = prove(elsewhere, RecordedRun(tmp_path), NAME, 1)  # one step doesn't show moments at all
    assert (verdict.outcome, verdict.fault) == ("rejected", "moments") and "every moment is a bfloat16 number" in verdict.reason


def test_steps_of_several_ranks_are_replayed_by_one(setting: Setting, run: RecordedRun) -> None:
    """The order of additions is another one, so the band is measured; what was summed is the same."""
    log = run.directory.log_path
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    lines[0]["world"]["drafter_ranks"] = [0, 1]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    verdict = prove(setting, RecordedRun(run.directory.path), NAME)
    assert verdict.sound and "2 ranks trained together, and one replays" in verdict.exactness


def test_a_run_of_fresh_settings_is_proven_at_every_checkpoint(tmp_path: Path) -> None:
    """Without noise, with weight decay and another schedule."""
    other = make_setting(weight_decay=0.1, schedule="wsd", feature_noise={"std": 0.0})
    begin_run(other, tmp_path / "run", 6, 3)
    run = RecordedRun(tmp_path / "run")
    assert [prove(other, run, name).sound for name in run.directory.store.names()] == [True, False]


def test_sessions_default_to_the_right_way() -> None:
    assert Session() == Session() and len({f.name for f in FAULTS}) == len(FAULTS) == 40
