"""Stage `regenerate`: the target's own greedy answers to a list of prompts, resumable batch by batch.

Batches are a pure function of the prompt list (sorted by length, then id), and each finished batch is one
file named by a digest of all that went into it. So a run that was killed and started again computes only what is
missing, and the final file has the same bytes as an undisturbed run's, on the same machine and torch.
"""

import gzip
import hashlib
import io
import json
import multiprocessing
import multiprocessing.connection
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from dflash_core.data.identity import file_digest, target_identity
from dflash_core.errors import DataError
from dflash_core.target.greedy import greedy_batch

PROMPT_MULTIPLE = 32  # each new prompt width costs oneDNN about a second of kernel generation


@dataclass(frozen=True)
class Prompt:
    """One line of the prompt file."""

    id: str
    split: str | None
    category: str
    messages: tuple[dict[str, str], ...]


@dataclass(frozen=True)
class GenerationSettings:
    """All that decides the answers, besides the prompts themselves."""

    target_identity: str
    dtype: str
    batch_size: int
    prompt_multiple: int
    max_new_tokens: int
    torch: str
    transformers: str


@dataclass(frozen=True)
class Batch:
    """Prompts generated together; `padded_length` tokens each, padding on the left."""

    prompts: tuple[Prompt, ...]
    prompt_ids: tuple[tuple[int, ...], ...]
    padded_length: int

    def file_name(self, settings: GenerationSettings) -> str:
        """Name of the batch's part file: a digest of everything its answers depend on."""
        content = json.dumps([asdict(settings), [p.id for p in self.prompts], self.prompt_ids, self.padded_length])
        return f"{hashlib.sha256(content.encode()).hexdigest()[:32]}.jsonl"


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
    the answer was cut at `max_new_tokens` tokens. OUT.manifest.json beside it holds settings, counts and digests;
    OUT.parts/ holds finished batches until all are there.

    Args:
        prompts_path: JSONL: {id, category, split?, prompt: str} or {..., messages: [{role, content}, ...]}.
        target_dir: A transformers directory with a chat template.
        out_path: The .jsonl.gz to write.
        batch_size: Rows generated together; part of the result's identity, because bf16 results depend on it.
        max_new_tokens: Most tokens an answer, its stop token included.
        dtype: "bfloat16" or "float32".
        limit: Only the first so many prompts.
        workers: Processes of one thread each, which share the batches; no part of the result.

    Returns:
        The manifest.

    Raises:
        DataError: prompts or target can't be read, or are not what they should be.
    """
    if batch_size < 1 or max_new_tokens < 1 or dtype not in ("bfloat16", "float32"):
        raise DataError(
            f"batch_size {batch_size}, max_new_tokens {max_new_tokens}, dtype {dtype} found; expected positive numbers and "
            "bfloat16 or float32. Correct the option."
        )
    prompts = list(read_prompts(prompts_path))[:limit]
    tokenizer = _load_tokenizer(target_dir)
    settings = GenerationSettings(
        target_identity=target_identity(target_dir), dtype=dtype, batch_size=batch_size, prompt_multiple=PROMPT_MULTIPLE,
        max_new_tokens=max_new_tokens, torch=torch.__version__,
        transformers=transformers.__version__,
    )  # fmt: skip
    batches = plan_batches(prompts, tokenizer, batch_size)
    parts_dir = out_path.with_name(out_path.name + ".parts")
    parts_dir.mkdir(parents=True, exist_ok=True)
    missing = [batch for batch in batches if not (parts_dir / batch.file_name(settings)).exists()]
    if missing:
        print(f"regenerate: {len(batches) - len(missing)} of {len(batches)} batches are there already", file=sys.stderr)
        _generate_parts(missing, settings, tokenizer, target_dir, parts_dir, workers)
    rows = [row for batch in batches for row in _read_part(parts_dir / batch.file_name(settings))]
    return _write_result(out_path, prompts, rows, settings, prompts_path)


def read_prompts(path: Path) -> Iterator[Prompt]:
    """The prompts of a JSONL file (.gz allowed), each checked. Raises DataError with the line's number."""
    seen: set[str] = set()
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; pass a JSONL file of prompts.") from None
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{path} can't be read as UTF-8 text: {error}. Pass a JSONL file of prompts.") from None
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            prompt = _parse_prompt(line, f"{path} line {number}")
            if prompt.id in seen:
                raise DataError(f"{path} line {number} repeats the id {prompt.id!r}; ids must be unique. Rename one.")
            seen.add(prompt.id)
            yield prompt
    if not seen:
        raise DataError(f"{path} holds no prompts; at least one line is expected. Add prompts.")


def _parse_prompt(line: str, where: str) -> Prompt:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where} is not JSON ({error.msg} at column {error.colno}). Correct the line.") from None
    messages = row.get("messages") if isinstance(row, dict) else None
    if isinstance(row, dict) and messages is None and isinstance(row.get("prompt"), str):
        messages = [{"role": "user", "content": row["prompt"]}]
    turns_are_text = isinstance(messages, list) and all(
        isinstance(turn, dict) and isinstance(turn.get("role"), str) and isinstance(turn.get("content"), str) for turn in messages
    )
    if not turns_are_text or not messages or messages[-1]["role"] != "user" or not messages[-1]["content"].strip() or "id" not in row:
        raise DataError(
            f"{where} is {line[:80]!r}; expected an object with id, category and a prompt text (or messages that end with "
            "the user). Correct the line."
        )
    turns = tuple({"role": turn["role"], "content": turn["content"]} for turn in messages)
    return Prompt(str(row["id"]), row.get("split"), str(row.get("category", "")), turns)


def plan_batches(prompts: list[Prompt], tokenizer: PreTrainedTokenizerBase, batch_size: int) -> list[Batch]:
    """Batches of prompts sorted by (tokens, id): a pure function of the prompts, the tokenizer and `batch_size`."""
    rendered = [tokenizer.apply_chat_template(list(p.messages), add_generation_prompt=True, tokenize=False) for p in prompts]
    ids = [tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in rendered]
    order = sorted(range(len(prompts)), key=lambda row: (len(ids[row]), prompts[row].id))
    chunks = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    return [
        Batch(
            prompts=tuple(prompts[row] for row in chunk),
            prompt_ids=tuple(ids[row] for row in chunk),
            padded_length=-(-len(ids[chunk[-1]]) // PROMPT_MULTIPLE) * PROMPT_MULTIPLE,
        )
        for chunk in chunks
    ]


def _load_tokenizer(target_dir: Path) -> PreTrainedTokenizerBase:
    if not (target_dir / "config.json").exists():
        raise DataError(f"{target_dir} holds no config.json; expected a model directory of transformers. Correct --target.")
    tokenizer = AutoTokenizer.from_pretrained(target_dir)
    if tokenizer.chat_template is None:
        raise DataError(f"the tokenizer in {target_dir} has no chat template; prompts can't be rendered. Use a chat model.")
    return tokenizer


def stop_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Tokens after which an answer is complete: the generation config's, the config's and the tokenizer's end tokens."""
    found: set[int] = set()
    for ids in (model.generation_config.eos_token_id, model.config.get_text_config().eos_token_id, tokenizer.eos_token_id):
        found.update(ids if isinstance(ids, list | tuple) else [] if ids is None else [ids])
    return frozenset(found)


def _generate_parts(
    missing: list[Batch], settings: GenerationSettings, tokenizer: PreTrainedTokenizerBase, target_dir: Path, parts_dir: Path, workers: int
) -> None:
    """Start the workers, show their progress from the files that appear, and raise if one fails."""
    context = multiprocessing.get_context("spawn")
    shares = [missing[start::workers] for start in range(min(workers, len(missing)))]
    processes = [context.Process(target=_worker, args=(share, settings, tokenizer, target_dir, parts_dir), daemon=True) for share in shares]
    for process in processes:
        process.start()
    started, shown = time.monotonic(), 0
    while any(process.is_alive() for process in processes):
        multiprocessing.connection.wait([p.sentinel for p in processes if p.is_alive()], timeout=2.0)
        paths = [path for path in (parts_dir / batch.file_name(settings) for batch in missing) if path.exists()]
        if len(paths) > shown:
            shown = len(paths)
            _show_progress(paths, len(missing), time.monotonic() - started)
        if any(process.exitcode not in (None, 0) for process in processes):
            break
    failed = [process.exitcode for process in processes if process.exitcode not in (None, 0)]
    for process in processes:
        process.terminate()
        process.join()
    if failed:
        raise RuntimeError(f"a generation worker ended with {failed[0]}; its message is above. Finished batches are kept: start again.")


def _worker(
    batches: list[Batch], settings: GenerationSettings, tokenizer: PreTrainedTokenizerBase, target_dir: Path, parts_dir: Path
) -> None:
    # One thread a worker: threads that share a step wait for one another at each operator, which on busy cores cost
    # a factor of ten (17 tok/s against 250 measured), and the result would depend on their number.
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(target_dir, dtype=getattr(torch, settings.dtype)).to(device).eval()
    stop_ids = stop_token_ids(model, tokenizer)
    # A control token inside an answer would open a turn that isn't there, once the text is rendered again: it ends the answer.
    ending_ids = stop_ids | set(tokenizer.all_special_ids)
    parent = os.getppid()
    for batch in batches:
        answers = greedy_batch(model, batch.prompt_ids, batch.padded_length, settings.max_new_tokens, ending_ids)
        rows = [_row(p, answer, stop_ids, ending_ids, tokenizer) for p, answer in zip(batch.prompts, answers, strict=True)]
        _write_atomically(parts_dir / batch.file_name(settings), "".join(json.dumps(row) + "\n" for row in rows).encode())
        if os.getppid() != parent:
            return  # the stage was killed; an orphan must not go on using the machine


def _show_progress(paths: list[Path], total: int, seconds: float) -> None:
    num_tokens = sum(row["num_tokens"] for path in paths for row in _read_part(path))
    print(
        f"regenerate: {len(paths)}/{total} batches, {num_tokens} tokens, {num_tokens / seconds:.0f} tok/s, {seconds:.0f} s, "
        f"ETA {seconds / len(paths) * (total - len(paths)):.0f} s",
        file=sys.stderr, flush=True,
    )  # fmt: skip


def _row(
    prompt: Prompt, answer: list[int], stop_ids: frozenset[int], ending_ids: frozenset[int], tokenizer: PreTrainedTokenizerBase
) -> dict[str, Any]:
    finished = answer[-1] in stop_ids
    text = tokenizer.decode(answer[:-1] if answer[-1] in ending_ids else answer, clean_up_tokenization_spaces=False)
    messages = [*prompt.messages, {"role": "assistant", "content": text}]
    return {
        "id": prompt.id, "split": prompt.split, "category": prompt.category, "messages": messages, "finished": finished,
        "num_tokens": len(answer),
    }  # fmt: skip


def _read_part(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def _write_result(
    out_path: Path, prompts: list[Prompt], rows: list[dict[str, Any]], settings: GenerationSettings, prompts_path: Path
) -> dict[str, Any]:
    by_id = {row["id"]: row for row in rows}
    num_tokens = sum(row.pop("num_tokens") for row in rows)
    ordered = [by_id[prompt.id] for prompt in prompts]
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as stream:
        for row in ordered:
            stream.write((json.dumps(row, ensure_ascii=False) + "\n").encode())
    _write_atomically(out_path, packed.getvalue())
    manifest = {
        "settings": asdict(settings), "prompts_sha256": file_digest(prompts_path), "output_sha256": file_digest(out_path),
        "rows": len(ordered), "finished": sum(row["finished"] for row in ordered), "answer_tokens": num_tokens,
    }  # fmt: skip
    manifest_path = out_path.with_name(out_path.name + ".manifest.json")
    _write_atomically(manifest_path, (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode())
    return manifest


def _write_atomically(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)


if __name__ == "__main__":
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--workers", type=int, default=2)
    o = parser.parse_args()
    print(json.dumps(regenerate(o.prompts, o.target, o.output, o.batch_size, o.max_new_tokens, o.dtype, o.limit, o.workers)))
