"""Checkpoint directories: whole or absent, verified at load, walked back, kept by retention."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from dflash_core.checkpoint import manifest as manifest_module
from dflash_core.checkpoint import share_files
from dflash_core.checkpoint import store as store_module
from dflash_core.checkpoint.contents import Contents
from dflash_core.checkpoint.digests import tensors_digest
from dflash_core.checkpoint.manifest import MANIFEST, STATUS, read_manifest, read_status, read_verdict, sealed
from dflash_core.checkpoint.retention import Retention, prune
from dflash_core.checkpoint.share_files import MOMENTS, STATE, WEIGHTS
from dflash_core.checkpoint.store import CheckpointStore
from dflash_core.errors import CheckpointError

from .stored import contents, flip_bit


def test_a_saved_checkpoint_loads_equal(store: CheckpointStore) -> None:
    saved = store.save(contents(7))
    loaded = store.load_newest({saved.name: saved.digest})
    assert loaded is not None and loaded.committed == saved and loaded.skipped == ()
    assert dict(loaded.contents.state) == {"step": 7, "next_sample": 21}
    for kind in ("weights", "moments"):
        expected, found = getattr(contents(7), kind), getattr(loaded.contents, kind)
        assert expected.keys() == found.keys() and all(torch.equal(expected[k], found[k]) for k in expected)
    assert saved.weights_digest == tensors_digest(contents(7).weights)


def test_files_can_be_read_by_other_users(store: CheckpointStore) -> None:
    committed = store.save(contents(10))
    assert {oct(path.stat().st_mode & 0o777) for path in committed.path.iterdir()} == {oct(0o644)}


def test_an_empty_store_has_no_checkpoint(store: CheckpointStore) -> None:
    assert store.load_newest() is None


@pytest.mark.parametrize("name", [WEIGHTS, MOMENTS, STATE])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_load_walks_back_from_a_damaged_file_and_says_why(store: CheckpointStore, name: str, damage: str) -> None:
    store.save(contents(1))
    path = store.save(contents(2)).path / name
    match damage:
        case "flip":
            flip_bit(path)
        case "cut":
            path.write_bytes(path.read_bytes()[:-1])
        case "remove":
            path.unlink()
    loaded = store.load_newest()
    assert loaded is not None and loaded.committed.step == 1
    assert "step-00000002" in loaded.skipped[0] and name in loaded.skipped[0]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 2}', '{"format": 1, "digest": ""}'])
def test_load_walks_back_from_a_broken_manifest(store: CheckpointStore, text: str) -> None:
    store.save(contents(1))
    (store.save(contents(2)).path / MANIFEST).write_text(text)
    loaded = store.load_newest()
    assert loaded is not None and loaded.committed.step == 1 and len(loaded.skipped) == 1


def test_an_edited_manifest_is_found_by_its_own_digest(store: CheckpointStore) -> None:
    path = store.save(contents(1)).path / MANIFEST
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"step": 5}))
    with pytest.raises(CheckpointError, match="digest"):
        store.load_newest()


def test_a_swapped_checkpoint_is_found_by_the_digest_in_the_log(store: CheckpointStore, tmp_path: Path) -> None:
    store.save(contents(1))
    logged = store.save(contents(2))
    logged.path.rename(tmp_path / "away")
    store.save(Contents(2, contents(9).weights, contents(9).moments, {}))  # verifies by itself
    loaded = store.load_newest({logged.name: logged.digest})
    assert loaded is not None and loaded.committed.step == 1 and "the log says" in loaded.skipped[0]


def reseal(path: Path, change: Callable[[dict], None]) -> None:
    """Change a manifest and make it agree with itself again."""
    manifest = json.loads((path / MANIFEST).read_text())
    change(manifest)
    manifest = sealed({key: value for key, value in manifest.items() if key != "digest"})
    (path / MANIFEST).write_text(json.dumps(manifest))
    (path / STATUS).write_text(json.dumps({"status": "committed", "manifest": manifest["digest"], "verdict": {}}))


@pytest.mark.parametrize("what", ["weights", "moments", "generators"])
def test_what_was_read_is_checked_against_the_digests_taken_from_memory(store: CheckpointStore, what: str) -> None:
    """Its files and their sizes and crc32 are right, and it is still not the state that was saved."""
    reseal(store.save(contents(1)).path, lambda manifest: manifest["digests"].update({what: "0" * 64}))
    with pytest.raises(CheckpointError, match=f"digest of the {what}"):
        store.load_newest()


def test_a_checkpoint_under_the_name_of_another_step_is_refused(store: CheckpointStore) -> None:
    store.save(contents(1))
    shutil.copytree(store.root / "step-00000001", store.root / "step-00000002")
    loaded = store.load_newest()
    assert loaded.committed.step == 1 and "it is of step-00000001, expected step-00000002" in loaded.skipped[0]
    shutil.copytree(store.root / "step-00000001", store.root / "a copy")
    assert store.load("a copy")[0].step == 1, "a person may name a copy as they like"


def test_when_none_is_good_the_error_names_each(store: CheckpointStore) -> None:
    for step in (1, 2):
        flip_bit(store.save(contents(step)).path / WEIGHTS)
    with pytest.raises(CheckpointError, match="none of 2 checkpoints.*step-00000002.*step-00000001"):
        store.load_newest()


def test_a_rejected_checkpoint_is_passed_over(store: CheckpointStore) -> None:
    store.save(contents(1))
    store.mark(store.save(contents(2)).name, "rejected", {"first": "loss"})
    loaded = store.load_newest()
    assert loaded is not None and loaded.committed.step == 1 and "rejected" in loaded.skipped[0]


def test_a_mark_is_a_note_about_one_manifest(store: CheckpointStore) -> None:
    first, second = (store.save(contents(step)) for step in (1, 2))
    assert json.loads((first.path / STATUS).read_text()) == {"status": "committed", "manifest": first.digest, "verdict": {}}
    store.mark(first.name, "proven", {"steps": 3})
    assert json.loads((first.path / STATUS).read_text()) == {"status": "proven", "manifest": first.digest, "verdict": {"steps": 3}}
    assert (read_status(first.path), read_verdict(first.path)) == ("proven", {"steps": 3})
    assert sorted(path.name for path in first.path.iterdir()) == sorted([WEIGHTS, MOMENTS, STATE, MANIFEST, STATUS])
    shutil.copy(first.path / STATUS, second.path / STATUS)
    assert read_status(second.path) == "rejected", "a note about another checkpoint"
    (second.path / STATUS).unlink()
    assert read_status(second.path) == "rejected", "a save never leaves it out"
    with pytest.raises(CheckpointError, match="not a whole checkpoint"):
        store.mark("step-00000007", "proven", {})


def test_the_manifest_says_where_it_comes_from(store: CheckpointStore) -> None:
    saved = store.save(contents(1), {"run_id": "r", "parent": None})
    manifest = read_manifest(saved.path)
    assert manifest["origin"] == {"run_id": "r", "parent": None} and manifest["step"] == 1
    assert set(manifest["digests"]) == {"weights", "moments", "generators"} and set(manifest["files"]) == {WEIGHTS, MOMENTS, STATE}


FULL = OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("module", "call"),
    [(share_files, "write_tensors"), (share_files, "write_json"), (store_module, "write_json"), (store_module, "sync")],
)
def test_a_failed_save_leaves_no_checkpoint_and_keeps_the_last(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, module: ModuleType, call: str
) -> None:
    store.save(contents(1))

    def full(*_: object) -> None:
        raise FULL

    monkeypatch.setattr(module, call, full)
    with pytest.raises(CheckpointError, match="No space left"):
        store.save(contents(2))
    monkeypatch.undo()
    assert sorted(p.name for p in store.root.iterdir()) == ["step-00000001"]
    assert store.load_newest() is not None


def test_files_and_directories_are_synced_before_and_after_the_rename(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    real_sync, real_rename = os.fsync, Path.rename

    def sync(fd: int) -> None:
        events.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name.split(".tmp")[0])
        real_sync(fd)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "rename", lambda self, to: (events.append("rename"), real_rename(self, to))[1])
    store.save(contents(3))
    assert set(events[:5]) == {WEIGHTS, MOMENTS, STATE, MANIFEST, STATUS}
    assert events[5:] == ["step-00000003", "rename", "checkpoints"]


def test_a_checkpoint_that_was_walked_back_from_is_replaced_not_written_into(store: CheckpointStore) -> None:
    store.save(contents(1))
    damaged = store.save(contents(2)).path
    flip_bit(damaged / WEIGHTS)
    inode = os.stat(damaged).st_ino
    store.save(contents(2))
    assert os.stat(damaged).st_ino != inode
    assert [p for p in store.quarantine.iterdir() if os.stat(p).st_ino == inode], "the bad one is evidence"
    loaded = store.load_newest()
    assert loaded is not None and loaded.committed.step == 2


def test_two_writers_in_one_directory_are_told_apart(store: CheckpointStore) -> None:
    """The log's lock sees to it on one machine; on a file system without locks the second save tells."""
    store.save(contents(1))
    CheckpointStore(store.root).save(contents(2))
    with pytest.raises(CheckpointError, match="holds step-00000002, which this run hasn't written: another process"):
        store.save(contents(3))
    assert store.names() == ("step-00000001", "step-00000002") and store.load_newest().committed.step == 2
    assert not list(store.root.glob("*.tmp-*"))


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), OSError(30, "Read-only file system")])
def test_a_directory_that_cannot_be_written_is_one_sentence(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    store.save(contents(1))

    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(CheckpointError, match=f"can't be written: {error.strerror}. Earlier ones are untouched"):
        store.save(contents(2))
    assert store.load_newest().committed.step == 1


@pytest.mark.parametrize("gone", ["checkpoints", "run"])
def test_a_removed_directory_does_not_come_back_with_one_checkpoint(tmp_path: Path, gone: str) -> None:
    (tmp_path / "run").mkdir()
    store = CheckpointStore(tmp_path / "run" / "checkpoints")
    store.save(contents(1))
    shutil.rmtree(store.root if gone == "checkpoints" else tmp_path / "run")
    with pytest.raises(CheckpointError, match="No such file or directory"):
        store.save(contents(2))
    assert not store.root.exists()


def test_the_order_is_that_of_steps_whatever_the_clock_says(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([2e9, 1e9, 3.0])
    monkeypatch.setattr(store_module.time, "time", lambda: next(now))
    for step in (1, 2, 3):
        store.save(contents(step))
    prune(store, Retention(2, None))
    assert store.names() == ("step-00000002", "step-00000003") and store.load_newest().committed.step == 3


def test_a_mark_that_fails_leaves_the_old_note(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = store.save(contents(1))
    monkeypatch.setattr(manifest_module.os, "replace", lambda *_: (_ for _ in ()).throw(FULL))
    with pytest.raises(CheckpointError, match="can't be marked proven: No space left"):
        store.mark(saved.name, "proven", {})
    assert read_status(saved.path) == "committed"
