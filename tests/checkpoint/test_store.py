"""Checkpoint directories: whole or absent, verified at load, walked back, kept by retention."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from dflash_core.checkpoint import store as store_module
from dflash_core.checkpoint.store import MANIFEST, MOMENTS, STATE, STATUS, WEIGHTS, CheckpointStore, Contents, tensors_digest
from dflash_core.errors import CheckpointError


def contents(step: int) -> Contents:
    generator = torch.Generator().manual_seed(step)
    weights = {"fc.weight": torch.randn(8, 4, generator=generator), "norm.weight": torch.randn(8, generator=generator)}
    moments = {f"{k}.exp_avg": v * 0.1 for k, v in weights.items()} | {"fc.weight.step": torch.tensor(float(step))}
    return Contents(step, weights, moments, {"step": step, "next_sample": step * 3})


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints")


def flip_bit(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 0x10
    path.write_bytes(raw)


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


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": 2, "digest": ""}'])
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


def test_tensors_are_checked_against_the_digest_taken_from_memory(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tensor that changes between memory and file has a right crc32 and a wrong digest."""
    real = store_module.save_file
    monkeypatch.setattr(store_module, "save_file", lambda tensors, path: real({k: v * 1.5 for k, v in tensors.items()}, path))
    store.save(contents(1))
    with pytest.raises(CheckpointError, match="digest of the weights"):
        store.load_newest()


def test_when_none_is_good_the_error_names_each(store: CheckpointStore) -> None:
    for step in (1, 2):
        flip_bit(store.save(contents(step)).path / WEIGHTS)
    with pytest.raises(CheckpointError, match="none of 2 checkpoints.*step-00000002.*step-00000001"):
        store.load_newest()


def test_a_rejected_checkpoint_is_passed_over(store: CheckpointStore) -> None:
    store.save(contents(1))
    (store.save(contents(2)).path / STATUS).write_text('{"status": "rejected"}')
    loaded = store.load_newest()
    assert loaded is not None and loaded.committed.step == 1 and "rejected" in loaded.skipped[0]


FULL = OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        ("save_file", SafetensorError("Error while serializing: I/O error: No space left on device")),
        ("_write_json", FULL),
        ("_sync", FULL),
        ("_size_and_crc", FULL),
    ],
)
def test_a_failed_save_leaves_no_checkpoint_and_keeps_the_last(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, call: str, fault: Exception
) -> None:
    store.save(contents(1))

    def full(*_: object) -> None:
        raise fault

    monkeypatch.setattr(store_module, call, full)
    with pytest.raises(CheckpointError, match="No space left"):
        store.save(contents(2))
    monkeypatch.undo()
    assert sorted(p.name for p in store.root.iterdir()) == ["step-00000001"]
    assert store.load_newest() is not None


def test_files_and_directories_are_synced_before_and_after_the_rename(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    real_sync, real_rename = store_module._sync, Path.rename
    monkeypatch.setattr(store_module, "_sync", lambda path: (events.append(path.name.split(".tmp")[0]), real_sync(path)))
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
    assert [p for p in store.root.glob("*.replaced-*") if os.stat(p).st_ino == inode]
    loaded = store.load_newest()
    assert loaded is not None and loaded.committed.step == 2


def test_retention_keeps_last_every_and_proven(store: CheckpointStore) -> None:
    for step in range(1, 11):
        store.save(contents(step))
    (store.root / "step-00000003" / STATUS).write_text('{"status": "proven"}')
    (store.root / "step-00000009" / STATUS).write_text('{"status": "rejected"}')
    (store.root / "step-00000011.tmp-0123abcd").mkdir()
    store.prune(keep_last=2, keep_every=4)
    assert store.names() == ("step-00000003", "step-00000004", "step-00000008", "step-00000010")
    assert len(list(store.root.iterdir())) == 4, "temporary directories of killed sessions go too"


def test_damaged_newer_checkpoints_do_not_push_the_good_ones_out(store: CheckpointStore) -> None:
    """A resume walked back from steps 3 and 4; the step after it is the only good one beside the one it went on from."""
    for step in (1, 3, 4):
        store.save(contents(step))
    for step in (3, 4):
        flip_bit(store.root / f"step-0000000{step}" / WEIGHTS)
    passed_over = store.load_newest().passed_over
    assert passed_over == ("step-00000004", "step-00000003")
    store.save(contents(2))
    store.prune(keep_last=2, keep_every=4, passed_over=passed_over)
    assert store.names() == ("step-00000001", "step-00000002") and store.load_newest().committed.step == 2


def test_only_its_own_remains_are_deleted(store: CheckpointStore) -> None:
    copy = store.root / "step-00000001.before-the-fix"
    copy.mkdir(parents=True)
    store.save(contents(1))
    store.prune(keep_last=2, keep_every=None)
    assert copy.is_dir()


def test_a_kill_during_deletion_leaves_no_half_checkpoint_under_its_name(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(1, 4):
        store.save(contents(step))

    def killed(path: Path, **_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store_module.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        store.prune(keep_last=2, keep_every=None)
    assert store.names() == ("step-00000002", "step-00000003")
