"""The prepared dataset as stages read it: verified against its manifest, one row at a time.

N rows of the split, T tokens of a row.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet

from dflash_core.data.identity import file_digest
from dflash_core.errors import DataError

MANIFEST = "manifest.json"
FORMAT = "dflash-prepared"
FORMAT_VERSION = 1
SCHEMA = pyarrow.schema(
    [
        pyarrow.field("sample_id", pyarrow.string(), nullable=False),
        pyarrow.field("category", pyarrow.string(), nullable=False),
        pyarrow.field("truncated", pyarrow.bool_(), nullable=False),
        pyarrow.field("input_ids", pyarrow.list_(pyarrow.field("item", pyarrow.int32(), nullable=False)), nullable=False),
        pyarrow.field("loss_mask", pyarrow.list_(pyarrow.field("item", pyarrow.bool_(), nullable=False)), nullable=False),
    ]
)


@dataclass(frozen=True)
class SplitInfo:
    """One split's file and its counts. `supervised_tokens` are those the loss sees."""

    file: str
    bytes: int
    sha256: str
    rows: int
    truncated_rows: int
    tokens: int
    supervised_tokens: int


@dataclass(frozen=True)
class SourceInfo:
    """A conversation file that went in. `path` as configured."""

    path: str
    bytes: int
    sha256: str
    rows: int


@dataclass(frozen=True)
class DatasetManifest:
    """What a prepared dataset is and where it comes from."""

    splits: dict[str, SplitInfo]
    dropped: dict[str, int]
    sources: tuple[SourceInfo, ...]
    tokenizer: str
    chat_template: str
    target: str
    mask_token_id: int | None
    config: dict[str, object]
    format: str = FORMAT
    format_version: int = FORMAT_VERSION

    @property
    def digest(self) -> str:
        """Identity of the rows: the split files' digests and the tokenizer that made them, wherever the sources lay."""
        parts = [FORMAT, str(self.format_version), self.tokenizer]
        parts += [f"{name}:{self.splits[name].sha256}" for name in sorted(self.splits)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def to_json(self) -> str:
        """Text of manifest.json: sorted keys, so equal manifests are equal bytes."""
        return json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, source: str) -> "DatasetManifest":
        """Parse manifest.json; `source` names it in errors. Raises DataError for another format or missing keys."""
        try:
            tree = json.loads(text)
            if (tree["format"], tree["format_version"]) != (FORMAT, FORMAT_VERSION):
                raise DataError(
                    f"{source} has format {tree['format']} {tree['format_version']}, expected {FORMAT} {FORMAT_VERSION}. "
                    "Run stage prepare again."
                )
            splits = {name: SplitInfo(**split) for name, split in tree.pop("splits").items()}
            sources = tuple(SourceInfo(**entry) for entry in tree.pop("sources"))
            return cls(splits=splits, sources=sources, **tree)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(
                f"{source} is no dataset manifest ({repr(error)[:120]}), expected prepare's. Run stage prepare again."
            ) from None


@dataclass(frozen=True)
class Sample:
    """One row: input_ids int32 [T], loss_mask bool [T].

    The prompt of a held-out sample is `prompt_ids`, what stands before the first supervised token.
    """

    sample_id: str
    category: str
    input_ids: np.ndarray
    loss_mask: np.ndarray

    @property
    def prompt_ids(self) -> np.ndarray:
        """int32: the tokens before the first supervised one."""
        return self.input_ids[: int(np.argmax(self.loss_mask))]


class Dataset:
    """Random access to one split. Rows live in Arrow memory: 33 bits a token, 1.3 GB for 300 k rows of 1 k tokens."""

    def __init__(self, manifest: DatasetManifest, split: str, table: pyarrow.Table) -> None:
        self.manifest = manifest
        self.split = split
        self._table = table.combine_chunks()
        counts = [np.diff(np.asarray(chunk.offsets)) for chunk in self._table["input_ids"].chunks]
        self.lengths = np.concatenate([*counts, np.zeros(0)]).astype(np.int32)

    @classmethod
    def open(cls, directory: Path, split: str) -> "Dataset":
        """Open "train" or "heldout" of a prepared directory.

        Raises:
            DataError: no such dataset or split, or a file that differs from the manifest in size, digest or rows.
        """
        manifest = read_manifest(directory)
        if split not in manifest.splits:
            raise DataError(f"{directory} has no split {split!r}, expected one of {', '.join(manifest.splits)}. Name one.")
        info = manifest.splits[split]
        path = Path(directory) / info.file
        _verify(path, info)
        dataset = cls(manifest, split, pyarrow.parquet.read_table(path, schema=SCHEMA))
        assert len(dataset) == info.rows, f"{path}: {len(dataset)} rows under the digest of {info.rows}"
        return dataset

    def __len__(self) -> int:
        return self._table.num_rows

    def sample(self, row: int) -> Sample:
        """Row number `row`, 0-based, in file order. Raises IndexError outside the split."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of a split of {len(self)} rows")
        entry = self._table.slice(row, 1)
        return Sample(
            sample_id=entry["sample_id"][0].as_py(),
            category=entry["category"][0].as_py(),
            input_ids=entry["input_ids"][0].values.to_numpy(),
            loss_mask=entry["loss_mask"][0].values.to_numpy(zero_copy_only=False),
        )

    def sample_id(self, row: int) -> str:
        """Id of one row, without reading its tokens."""
        return self._table["sample_id"][row].as_py()

    def slices(self, num_rows: int) -> Iterator[pyarrow.Table]:
        """All rows in their order, so many at a time."""
        for first in range(0, len(self), num_rows):
            yield self._table.slice(first, num_rows)

    def token_counts(self, vocab_size: int) -> np.ndarray:
        """How often each id occurs in this split: int64 [max(vocab_size, largest id + 1)]."""
        counts = np.zeros(vocab_size, dtype=np.int64)
        for chunk in self._table["input_ids"].chunks:
            found = np.bincount(chunk.flatten().to_numpy(), minlength=vocab_size)
            counts = found + np.pad(counts, (0, len(found) - len(counts)))
        return counts


def read_manifest(directory: Path) -> DatasetManifest:
    """manifest.json of a prepared directory. Raises DataError where it is missing or not one of this format."""
    path = Path(directory) / MANIFEST
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise DataError(f"{path} is missing or unreadable, expected the output of stage prepare. Run prepare first.") from None
    return DatasetManifest.from_json(text, str(path))


def _verify(path: Path, info: SplitInfo) -> None:
    size = path.stat().st_size if path.is_file() else None
    if size != info.bytes:
        found = "is missing" if size is None else f"has {size} bytes"
        raise DataError(f"{path} {found}, expected {info.bytes} bytes as its manifest says. Run stage prepare again.")
    digest = file_digest(path)
    if digest != info.sha256:
        raise DataError(f"{path} has sha256 {digest[:12]}, expected {info.sha256[:12]} of its manifest. Run stage prepare again.")
