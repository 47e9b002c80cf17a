"""Which checkpoints stay, and that a deletion leaves no half of one."""

from pathlib import Path

import pytest

from dflash_core.checkpoint import retention
from dflash_core.checkpoint.manifest import read_verdict
from dflash_core.checkpoint.retention import Retention, clear_quarantine, prune
from dflash_core.checkpoint.share_files import WEIGHTS
from dflash_core.checkpoint.store import CheckpointStore

from .stored import contents, flip_bit


def test_retention_keeps_last_every_and_proven(store: CheckpointStore) -> None:
    for step in range(1, 11):
        store.save(contents(step))
    store.mark("step-00000003", "proven", {})
    store.mark("step-00000009", "rejected", {"first": "loss"})
    (store.root / "step-00000011.tmp-0123abcd").mkdir()
    prune(store, Retention(2, 4), best="step-00000005")
    assert store.names() == tuple(f"step-{step:08d}" for step in (3, 4, 5, 8, 10))
    assert len(list(store.root.iterdir())) == 6, "temporary directories of killed sessions go too"
    (evidence,) = store.quarantine.iterdir()
    assert evidence.name.startswith("step-00000009-") and read_verdict(evidence) == {"first": "loss"}
    assert clear_quarantine(store) == 1 and not list(store.quarantine.iterdir())


def test_damaged_newer_checkpoints_do_not_push_the_good_ones_out(store: CheckpointStore) -> None:
    """A resume walked back from steps 3 and 4; the step after it is the only good one beside the one it went on from."""
    for step in (1, 3, 4):
        store.save(contents(step))
    for step in (3, 4):
        flip_bit(store.root / f"step-0000000{step}" / WEIGHTS)
    passed_over = store.load_newest().passed_over
    assert passed_over == ("step-00000004", "step-00000003")
    store.save(contents(2))
    prune(store, Retention(2, 4), passed_over)
    assert len(list(store.quarantine.iterdir())) == 2 and store.names() == ("step-00000001", "step-00000002") and store.load_newest().committed.step == 2


def test_only_its_own_remains_are_deleted(store: CheckpointStore) -> None:
    copy = store.root / "step-00000001.before-the-fix"
    copy.mkdir(parents=True)
    store.save(contents(1))
    prune(store, Retention(2, None))
    assert copy.is_dir()


def test_a_kill_during_deletion_leaves_no_half_checkpoint_under_its_name(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(1, 4):
        store.save(contents(step))

    def killed(path: Path, **_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(retention.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        prune(store, Retention(2, None))
    assert store.names() == ("step-00000002", "step-00000003")
