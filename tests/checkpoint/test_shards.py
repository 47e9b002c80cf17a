"""Checkpoints that several ranks write together: one manifest over all files, committed once all have reported."""

import json
from pathlib import Path

import pytest
import torch

from dflash_core.checkpoint.contents import Contents, Piece, Share, cut
from dflash_core.checkpoint.digests import tensors_digest
from dflash_core.checkpoint.manifest import MANIFEST, read_manifest
from dflash_core.checkpoint.store import CheckpointStore, Writing
from dflash_core.errors import CheckpointError

WRITING = Writing({}, "0123abcd", timeout_s=0.05)


def contents(step: int) -> Contents:
    generator = torch.Generator().manual_seed(step)
    weights = {"fc.weight": torch.randn(5, 4, generator=generator), "norm.weight": torch.randn(2, generator=generator)}
    moments = {f"{name}.exp_avg": tensor * 0.1 for name, tensor in weights.items()} | {"fc.weight.step": torch.tensor(float(step))}
    return Contents(step, weights, moments, {"step": step, "generators": {"torch": "x"}})


def shares(whole: Contents, count: int) -> list[Share]:
    """Cut by rows as FSDP2 does: the last ranks may have fewer rows, or none; numbers are the first rank's."""

    def pieces(part: dict[str, torch.Tensor], index: int) -> dict[str, Piece]:
        own = {}
        for name, tensor in part.items():
            if not tensor.dim():
                own |= {name: Piece.whole(tensor)} if index == 0 else {}
                continue
            rows = -(-len(tensor) // count)
            starts = tuple(range(0, len(tensor), rows))
            own |= {name: list(cut(tensor, starts))[index]} if index < len(starts) else {}
        return own

    return [
        Share(whole.step, pieces(whole.weights, index), pieces(whole.moments, index), {} if index else whole.state, index, count)
        for index in range(count)
    ]


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints")


@pytest.mark.parametrize("count", [2, 3])
def test_the_writer_commits_what_all_ranks_have_written(store: CheckpointStore, count: int) -> None:
    first, *others = shares(contents(1), count)
    assert [store.write(share, WRITING) for share in others] == [None] * (count - 1) and store.names() == ()
    committed = store.write(first, WRITING)
    loaded = store.load_newest().contents
    for part in ("weights", "moments"):
        expected, found = getattr(contents(1), part), getattr(loaded, part)
        assert expected.keys() == found.keys() and all(torch.equal(expected[name], found[name]) for name in expected)
    assert committed.weights_digest == tensors_digest(loaded.weights, loaded.cuts)
    files = set(read_manifest(committed.path)["files"])
    assert len(files) == 2 * count + 1 and f"model-00002-of-0000{count}.safetensors" in files
    assert {path.name for path in committed.path.iterdir()} == files | {MANIFEST, "status.json"}, "the reports are in the manifest now"


def test_without_a_ranks_shard_there_is_no_checkpoint(store: CheckpointStore) -> None:
    store.save(contents(1))
    with pytest.raises(CheckpointError, match="drafter rank 1 of 2 has not written its shard within 0.05 s"):
        store.write(shares(contents(2), 2)[0], WRITING)
    assert store.names() == ("step-00000001",) and not list(store.root.glob("*.tmp-*"))


def test_a_lost_shard_or_one_of_another_step_is_found_at_load(store: CheckpointStore) -> None:
    store.save(contents(1))
    paths = []
    for step in (2, 3):
        first, second = shares(contents(step), 2)
        store.write(second, WRITING)
        paths.append(store.write(first, WRITING).path)
    shard = "model-00002-of-00002.safetensors"
    (paths[0] / shard).replace(paths[1] / shard)
    loaded = store.load_newest()
    assert loaded.committed.step == 1 and "crc32" in loaded.skipped[0] and "No such file" in loaded.skipped[1]


def test_a_manifest_that_leaves_a_shard_out_is_found(store: CheckpointStore) -> None:
    first, second = shares(contents(1), 2)
    store.write(second, WRITING)
    path = store.write(first, WRITING).path
    manifest = json.loads((path / MANIFEST).read_text())
    del manifest["files"]["model-00002-of-00002.safetensors"]
    (path / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="digest .* it says"):
        store.load_newest()
