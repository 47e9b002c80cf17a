"""Our safetensors writer against the library's reader, and pieces of many files against the whole."""

import zlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dflash_core.checkpoint import tensor_file
from dflash_core.checkpoint.contents import Piece, cut, join
from dflash_core.checkpoint.digests import digest_of, tensors_digest
from dflash_core.checkpoint.tensor_file import GivenUp, read_tensors, write_tensors
from dflash_core.errors import CheckpointError

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64)


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    made = {f"t.{str(dtype)[6:]}": (torch.randn(3, 5, generator=generator) * 9).to(dtype) for dtype in DTYPES}
    return made | {"scalar": torch.tensor(7.0), "empty": torch.zeros(0, 4), "strided": torch.randn(4, 6, generator=generator).T}


def whole(named: dict[str, torch.Tensor]) -> dict[str, Piece]:
    return {name: Piece.whole(tensor) for name, tensor in named.items()}


@pytest.mark.parametrize("chunk", [7, 1 << 20])
def test_the_library_reads_what_we_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(tensor_file, "_CHUNK_BYTES", chunk)
    path = tmp_path / "a.safetensors"
    written = write_tensors(path, whole(tensors()))
    for read in (load_file(path), read_tensors([path])[0]):
        assert read.keys() == tensors().keys()
        assert all(torch.equal(read[name], tensor) and read[name].dtype == tensor.dtype for name, tensor in tensors().items())
    raw = path.read_bytes()
    assert (written.size, written.crc32) == (len(raw), zlib.crc32(raw)), "of the bytes in memory, and those on disk are the same"
    assert digest_of(written.lines) == tensors_digest(tensors())


def test_shards_are_joined_and_have_the_digest_of_their_pieces(tmp_path: Path) -> None:
    whole_tensor, other = torch.arange(21.0).reshape(7, 3), torch.tensor(2.0)
    first, second, third = cut(whole_tensor, (0, 3, 6))
    lines = []
    for number, pieces in enumerate([{"w": second}, {"w": first, "s": Piece.whole(other)}, {"w": third}]):
        lines += write_tensors(tmp_path / f"{number}", pieces).lines
    read, cuts = read_tensors(sorted(tmp_path.iterdir()))
    assert torch.equal(read["w"], whole_tensor) and torch.equal(read["s"], other) and cuts == {"w": (0, 3, 6)}
    assert digest_of(lines) == tensors_digest(read, cuts) != tensors_digest(read)


@pytest.mark.parametrize("rows", [[(0, 3), (4, 7)], [(0, 3), (3, 6)], [(0, 3), (2, 7)], [(1, 7)]], ids=["gap", "end", "overlap", "start"])
def test_rows_that_are_missing_or_there_twice_are_refused(rows: list[tuple[int, int]]) -> None:
    tensor = torch.zeros(7, 2)
    with pytest.raises(CheckpointError, match="w: .* expected"):
        join("w", [Piece(tensor[first:end], first, (7, 2)) for first, end in rows])


def test_a_digest_sees_names_dtypes_shapes_and_bits() -> None:
    plain = {"a": torch.zeros(2, 3), "b": torch.ones(2, 3)}
    others = [
        {"a": plain["b"], "b": plain["a"]},
        {"a": plain["a"], "c": plain["b"]},
        plain | {"a": torch.zeros(3, 2)},
        plain | {"a": torch.zeros(2, 3, dtype=torch.int32)},
        plain | {"a": -torch.zeros(2, 3)},
    ]
    assert len({tensors_digest(each) for each in [plain, *others]}) == 6


def test_a_write_that_is_given_up_ends_at_the_next_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_file, "_CHUNK_BYTES", 8)
    asked = iter([False, False, True])
    with pytest.raises(GivenUp):
        write_tensors(tmp_path / "a", whole(tensors()), lambda: next(asked))
    assert next(asked, None) is None
