"""Proves checkpoints of a run and notes the outcome beside each."""

import fcntl
import os
from dataclasses import replace
from pathlib import Path

from dflash_core.checkpoint.manifest import read_status, read_verdict
from dflash_core.checkpoint.save_request import ask_for_save
from dflash_core.proof.prove import DEFAULT_STEPS, prove
from dflash_core.proof.recorded import RecordedRun
from dflash_core.proof.replay import Setting
from dflash_core.proof.verdict import Verdict

_NICE = 10


def prove_and_mark(setting: Setting, run: RecordedRun, name: str, num_steps: int = DEFAULT_STEPS) -> Verdict:
    """Prove one checkpoint and write its status.json; a rejected one stays rejected, a proven one proven unless it fails.

    A run that goes on is not rewound by a rejection, which says that the file is wrong: it is asked for a fresh save.

    Raises:
        CheckpointError: the status can't be written.
    """
    store = run.directory.store
    before = read_status(store.root / name)
    if before == "rejected":
        return _rejected_before(store.root / name)
    verdict = prove(setting, run, name, num_steps)
    if not (store.root / name).is_dir():
        return replace(verdict, outcome="unproven", fault=None, reason="It was deleted while it was being proven.")
    if verdict.outcome != "unproven" or before == "committed":
        store.mark(name, "committed" if verdict.outcome == "unproven" else verdict.outcome, verdict.tree())
    if verdict.outcome == "rejected" and is_being_written(run.directory.log_path):
        ask_for_save(run.directory.path)
    return verdict


def is_being_written(log_path: Path) -> bool:
    """A session holds the log's lock: the run is going on."""
    with log_path.open("rb") as log:
        try:
            fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def give_way() -> None:
    """Leave the processors to a run that is going on."""
    os.nice(_NICE)


def _rejected_before(checkpoint: Path) -> Verdict:
    stored = read_verdict(checkpoint)
    return Verdict(
        name=checkpoint.name,
        step=int(checkpoint.name.removeprefix("step-")),
        digest=stored.get("digest"),
        outcome="rejected",
        reason=f"It was rejected before: {stored.get('reason', 'its note can not be read.')}",
        fault=stored.get("fault"),
        evidence=tuple(stored.get("evidence", ())),
    )
