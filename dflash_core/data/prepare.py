"""Stage `prepare`: conversation files to tokens with a loss mask, in two splits with a manifest.

Two passes over the files. The first checks every row and learns which split each prompt belongs to, so that a bad
line 300,000 is found before minutes of tokenizing; the second renders, masks and writes.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow
import pyarrow.parquet

from dflash_core.config import Config
from dflash_core.config_data import DataConfig
from dflash_core.data.conversations import SPLITS, Conversation, read_conversations
from dflash_core.data.dataset import MANIFEST, SCHEMA, DatasetManifest, SourceInfo, SplitInfo
from dflash_core.data.directory import replaced_directory
from dflash_core.data.identity import file_digest, target_identity, text_digest, tokenizer_identity
from dflash_core.data.template import chat_template, control_token_in, load_tokenizer
from dflash_core.data.tokenize import Tokens, render_and_mask
from dflash_core.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ROWS_PER_GROUP = 1024  # rows held before they are written as one row group; a constant, so bytes are reproducible


def prepare(config: Config, out_dir: Path) -> DatasetManifest:
    """Write `out_dir`/{train,heldout}.parquet and manifest.json; what was there stays until all is complete.

    Dropped and counted by reason: `duplicate` (the same id or text again), `control_token` (text that spells out
    a special token), `prompt_too_long` (nothing supervised before max_length), `answer_too_short`.

    Raises:
        DataError: a file or row that can't be used, the mask token in the data, a row beyond the target's context, or an empty split.
        ConfigError: no usable target or tokenizer.
    """
    paths = [Path(path) for path in config.data.conversations]
    split_of_prompt, rows_by_path = _first_pass(paths)
    tokenizer = load_tokenizer(config.target.path, config.target.trust_remote_code)
    identity = (tokenizer_identity(config.target.path), target_identity(config.target.path))
    with replaced_directory(out_dir) as directory:
        writers = {split: _SplitWriter(directory / f"{split}.parquet") for split in SPLITS}
        dropped = _second_pass(paths, split_of_prompt, config, tokenizer, writers)
        splits = {split: writer.close() for split, writer in writers.items()}
        _refuse_empty(splits, dropped, config.data)
        _refuse_beyond_context(max(writers.values(), key=lambda writer: writer.longest), config)
        manifest = DatasetManifest(
            splits=splits,
            dropped=dict(sorted(dropped.items())),
            sources=tuple(SourceInfo(str(p), p.stat().st_size, file_digest(p), rows_by_path[p]) for p in paths),
            tokenizer=identity[0],
            chat_template=text_digest(chat_template(tokenizer)),
            target=identity[1],
            mask_token_id=config.drafter.mask_token_id,
            config=config.data.model_dump(mode="json"),
        )
        (directory / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return manifest


def heldout_by_hash(prompt: str, fraction: float) -> bool:
    """Whether a prompt without a split of its own is held out: a hash decides, so it never moves between runs."""
    word = int.from_bytes(hashlib.blake2b(prompt.encode("utf-8"), digest_size=8).digest(), "big")
    return word < fraction * 2.0**64


def _first_pass(paths: list[Path]) -> tuple[dict[str, str], dict[Path, int]]:
    """The split that files give to prompts (prompt digest to split), and rows per file. Every row is checked."""
    split_of_prompt: dict[str, str] = {}
    place_of_prompt: dict[str, str] = {}
    rows: dict[Path, int] = {}
    for conversation, path in _conversations(paths):
        rows[path] = rows.get(path, 0) + 1
        if conversation.split is None:
            continue
        prompt = text_digest(conversation.prompt)
        split = split_of_prompt.setdefault(prompt, conversation.split)
        place = place_of_prompt.setdefault(prompt, conversation.where)
        if split != conversation.split:
            raise DataError(
                f"{conversation.where} puts a prompt into {conversation.split} that {place} has in {split}, "
                "expected equal prompts in one split. Move or drop one of them."
            )
    return split_of_prompt, rows


def _conversations(paths: list[Path]) -> Iterator[tuple[Conversation, Path]]:
    seen: dict[str, str] = {}
    for path in paths:
        for conversation in read_conversations(path, seen):
            yield conversation, path


def _second_pass(
    paths: list[Path],
    split_of_prompt: dict[str, str],
    config: Config,
    tokenizer: "PreTrainedTokenizerBase",
    writers: dict[str, "_SplitWriter"],
) -> Counter[str]:
    dropped: Counter[str] = Counter()
    written: set[str] = set()
    for conversation, _ in _conversations(paths):
        if conversation.sample_id in written:
            dropped["duplicate"] += 1
            continue
        written.add(conversation.sample_id)
        if control_token_in(tokenizer, conversation.turns) is not None:
            dropped["control_token"] += 1
            continue
        tokens = _tokens(conversation, config, tokenizer)
        reason = _reason_to_drop(tokens, config.data.min_response_tokens)
        if reason is not None:
            dropped[reason] += 1
            continue
        split = split_of_prompt.get(text_digest(conversation.prompt))
        if split is None:
            split = "heldout" if heldout_by_hash(conversation.prompt, config.data.heldout_fraction) else "train"
        writers[split].add(conversation, tokens)
    return dropped


def _tokens(conversation: Conversation, config: Config, tokenizer: "PreTrainedTokenizerBase") -> Tokens:
    try:
        tokens = render_and_mask(tokenizer, conversation.turns, config.data.max_length, conversation.finished)
    except DataError as error:
        raise DataError(f"{conversation.where}: {error}") from None
    mask_id = config.drafter.mask_token_id
    if mask_id is not None and np.any(tokens.input_ids == mask_id):
        raise DataError(
            f"{conversation.where} holds token {mask_id}, which is drafter.mask_token_id; expected one that no data hold. "
            "Choose another, or leave it null."
        )
    return tokens


def _reason_to_drop(tokens: Tokens, min_response_tokens: int) -> str | None:
    """None for a row that training can use: enough supervised tokens, and two in a row, so an anchor has a label."""
    supervised = int(tokens.loss_mask.sum())
    if supervised == 0 and tokens.truncated:
        return "prompt_too_long"
    has_anchor = bool(np.any(tokens.loss_mask[:-1] & tokens.loss_mask[1:]))
    return None if supervised >= min_response_tokens and has_anchor else "answer_too_short"


def _refuse_empty(splits: dict[str, SplitInfo], dropped: Counter[str], data: DataConfig) -> None:
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(dropped.items())) or "none"
    if splits["train"].rows == 0:
        raise DataError(
            f"0 rows are left for training and {splits['heldout'].rows} held out (dropped: {reasons}), expected at least one "
            "for training. Add conversations, raise data.max_length or lower data.heldout_fraction."
        )
    if splits["heldout"].rows == 0 and data.heldout_fraction > 0:
        raise DataError(
            f"0 of {splits['train'].rows} rows fell into the held-out split at data.heldout_fraction {data.heldout_fraction}, "
            "expected at least one. Raise it, mark rows with split: heldout, or set it to 0."
        )


def _refuse_beyond_context(writer: "_SplitWriter", config: Config) -> None:
    """Past its context a target's features, and all that is learnt from them, are noise."""
    tree = json.loads((Path(config.target.path) / "config.json").read_text(encoding="utf-8"))
    context = tree.get("text_config", tree).get("max_position_embeddings")
    if context is not None and writer.longest > context:
        raise DataError(
            f"{writer.longest_id} has {writer.longest} tokens, expected at most the {context} of the target's context. "
            f"Lower data.max_length, which is {config.data.max_length}."
        )


@dataclass
class _SplitWriter:
    """Appends rows to one Parquet file in row groups of fixed size: the same rows give the same bytes."""

    path: Path
    pending: list[dict[str, object]] = field(default_factory=list)
    rows: int = 0
    truncated_rows: int = 0
    tokens: int = 0
    supervised_tokens: int = 0
    longest: int = 0
    longest_id: str = ""

    def __post_init__(self) -> None:
        self._writer = pyarrow.parquet.ParquetWriter(self.path, SCHEMA, compression="zstd")

    def add(self, conversation: Conversation, tokens: Tokens) -> None:
        if len(tokens.input_ids) > self.longest:
            self.longest, self.longest_id = len(tokens.input_ids), conversation.sample_id
        self.rows += 1
        self.truncated_rows += tokens.truncated
        self.tokens += len(tokens.input_ids)
        self.supervised_tokens += int(tokens.loss_mask.sum())
        self.pending.append(
            {
                "sample_id": conversation.sample_id,
                "category": conversation.category,
                "truncated": tokens.truncated,
                "input_ids": tokens.input_ids,
                "loss_mask": tokens.loss_mask,
            }
        )
        if len(self.pending) == ROWS_PER_GROUP:
            self._write()

    def _write(self) -> None:
        self._writer.write_table(pyarrow.Table.from_pylist(self.pending, schema=SCHEMA))
        self.pending.clear()

    def close(self) -> SplitInfo:
        if self.pending:
            self._write()
        self._writer.close()
        return SplitInfo(
            file=self.path.name,
            bytes=self.path.stat().st_size,
            sha256=file_digest(self.path),
            rows=self.rows,
            truncated_rows=self.truncated_rows,
            tokens=self.tokens,
            supervised_tokens=self.supervised_tokens,
        )
