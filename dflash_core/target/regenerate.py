"""Stage `regenerate`: the target's own greedy answers to a list of prompts, resumable batch by batch.

Batches are a pure function of the prompt list (sorted by length, then id), and each finished batch is one
file named by a digest of all that went into it. So a run that was killed and started again computes only what is
missing, and the final file has the same bytes as an undisturbed run's, on the same machine and torch.
"""

import gzip
import io
import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from dflash_core.data.conversations import conversation_of
from dflash_core.data.identity import file_digest, target_identity, tokenizer_identity
from dflash_core.data.records import Record
from dflash_core.data.tokenize import render_and_mask
from dflash_core.errors import ConfigError, DataError
from dflash_core.target.batches import PROMPT_MULTIPLE, Batch, GenerationSettings, plan_batches
from dflash_core.target.directory import read_target_config
from dflash_core.target.part_files import generate_parts, read_part, write_atomically
from dflash_core.target.prompts import Prompt, read_prompts


def regenerate(
    prompts_path: Path,
    target_dir: Path,
    out_path: Path,
    batch_size: int = 64,
    max_new_tokens: int = 256,
    dtype: str = "bfloat16",
    limit: int | None = None,
    workers: int = 2,
) -> dict[str, Any]:
    """Write the target's greedy answer to every prompt, as gzip JSONL in the prompt file's order.

    Rows: {id, split, category, messages: [..., {"role": "assistant", ...}], finished}; `finished` is false where
    the answer was cut at `max_new_tokens` tokens. What `prepare` would refuse is left out: a null byte, an answer that the chat
    template rewrites, a row that its closing tokens carry past the target's context. OUT.manifest.json beside it holds settings,
    counts, digests, and why which ids were left out;
    OUT.parts/ holds finished batches until all are there. Where an earlier run's result for the same input verifies, it is kept as it is.

    Args:
        prompts_path: JSONL: {id, category, split?, prompt: str} or {..., messages: [{role, content}, ...]}.
        target_dir: A transformers directory with a chat template.
        out_path: The .jsonl.gz to write.
        batch_size: Rows generated together; part of the result's identity, because bf16 results depend on it.
        max_new_tokens: Most tokens an answer, its stop token included.
        dtype: "bfloat16" or "float32".
        limit: Only the first so many prompts.
        workers: Processes of one thread each, which share the batches; no part of the result. A GPU uses one.

    Returns:
        The manifest.

    Raises:
        ConfigError: the target's directory, see `read_target_config`, or one without a tokenizer; `out_path` is the prompt file.
        DataError: prompts that can't be read or are too long, a target without a chat template, an option out of range.
    """
    if min(batch_size, max_new_tokens, workers) < 1 or dtype not in ("bfloat16", "float32"):
        raise DataError(
            f"batch_size {batch_size}, max_new_tokens {max_new_tokens}, workers {workers}, dtype {dtype} found; expected positive "
            "numbers and bfloat16 or float32. Correct the option."
        )
    config = read_target_config(target_dir).get_text_config(decoder=True)
    prompts = list(read_prompts(prompts_path))[:limit]
    if out_path.exists() and out_path.samefile(prompts_path):
        raise ConfigError(f"{out_path} is the prompt file itself, expected another one to write. Choose another --out.")
    settings = GenerationSettings(
        target_identity=target_identity(target_dir), tokenizer_identity=tokenizer_identity(target_dir), dtype=dtype,
        batch_size=batch_size, prompt_multiple=PROMPT_MULTIPLE, max_new_tokens=max_new_tokens, torch=torch.__version__,
        transformers=transformers.__version__,
    )  # fmt: skip
    origin = {"settings": asdict(settings), "prompts_sha256": file_digest(prompts_path), "rows": len(prompts)}
    finished = _finished_manifest(out_path, origin)
    if finished is not None:
        return finished
    tokenizer = _load_tokenizer(target_dir)
    batches = plan_batches(prompts, tokenizer, batch_size)
    context = getattr(config, "max_position_embeddings", None) or sys.maxsize
    _check_lengths(batches, max_new_tokens, context)
    parts_dir = out_path.with_name(out_path.name + ".parts")
    parts_dir.mkdir(parents=True, exist_ok=True)
    missing = [batch for batch in batches if not (parts_dir / batch.file_name(settings)).exists()]
    if missing:
        print(f"regenerate: {len(batches) - len(missing)} of {len(batches)} batches are there already", file=sys.stderr)
        generate_parts(missing, settings, tokenizer, target_dir, parts_dir, workers)
    answers = [row for batch in batches for row in read_part(parts_dir / batch.file_name(settings))]
    manifest = _write_result(out_path, prompts, answers, origin, tokenizer, context)
    shutil.rmtree(parts_dir, ignore_errors=True)  # a worker orphaned by a kill may be writing there until it notices
    return manifest


def _finished_manifest(out_path: Path, origin: dict[str, Any]) -> dict[str, Any] | None:
    """The manifest of an earlier, undamaged run with the same origin."""
    try:
        manifest = json.loads(_manifest_path(out_path).read_text(encoding="utf-8"))
        same = all(manifest[key] == value for key, value in origin.items()) and manifest["output_sha256"] == file_digest(out_path)
        return manifest if same else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _check_lengths(batches: list[Batch], max_new_tokens: int, context: int) -> None:
    longest = max(batches, key=lambda batch: len(batch.prompt_ids[-1]))  # batches are sorted by length
    needed = len(longest.prompt_ids[-1]) + max_new_tokens
    if needed > context:
        raise DataError(
            f"prompt {longest.prompts[-1].id!r} and {max_new_tokens} new tokens make {needed} tokens, expected at most the target's "
            f"{context}. Shorten the prompt, or lower --max-new-tokens."
        )


def _load_tokenizer(target_dir: Path) -> PreTrainedTokenizerBase:
    try:
        tokenizer = AutoTokenizer.from_pretrained(target_dir)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{target_dir} holds no tokenizer that can be loaded: {reason}. Complete the directory.") from None
    if not tokenizer.is_fast:
        raise DataError(f"the tokenizer in {target_dir} gives no character offsets, expected a fast one. Add its tokenizer.json.")
    if tokenizer.chat_template is None:
        raise DataError(f"the tokenizer in {target_dir} has no chat template; prompts can't be rendered. Use a chat model.")
    return tokenizer


def _write_result(
    out_path: Path, prompts: list[Prompt], answers: list[dict[str, Any]], origin: dict[str, Any], tokenizer: PreTrainedTokenizerBase, context: int
) -> dict[str, Any]:
    by_id = {answer["id"]: answer for answer in answers}
    rows = [_row(prompt, by_id[prompt.id]) for prompt in prompts]
    left_out = {row["id"]: reason for row in rows if (reason := _refused(row, tokenizer, context)) is not None}
    kept = [row for row in rows if row["id"] not in left_out]
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as stream:
        for row in kept:
            stream.write((json.dumps(row, ensure_ascii=False) + "\n").encode())
    write_atomically(out_path, packed.getvalue())
    manifest = origin | {
        "output_sha256": file_digest(out_path), "finished": sum(row["finished"] for row in kept),
        "answer_tokens": sum(by_id[row["id"]]["num_tokens"] for row in kept), "left_out": left_out,
    }  # fmt: skip
    write_atomically(_manifest_path(out_path), (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode())
    return manifest


def _row(prompt: Prompt, answer: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": prompt.id, "split": prompt.split, "category": prompt.category,
        "messages": [*prompt.messages, answer["messages"][-1]], "finished": answer["finished"],
    }  # fmt: skip


def _refused(row: dict[str, Any], tokenizer: PreTrainedTokenizerBase, context: int) -> str | None:
    """Why `prepare` would refuse the row, and with it the file; None where it takes or drops it."""
    try:
        conversation = conversation_of(Record("the row", row))
        tokens = render_and_mask(tokenizer, conversation.turns, context, conversation.finished)
    except DataError as error:
        return str(error)
    return f"the row is longer than the {context} tokens of the target's context" if tokens.truncated else None


def _manifest_path(out_path: Path) -> Path:
    return out_path.with_name(out_path.name + ".manifest.json")
