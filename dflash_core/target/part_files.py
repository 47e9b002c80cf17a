"""Computes batches in worker processes of one thread each; every finished batch is one file that appears whole."""

import json
import multiprocessing
import multiprocessing.connection
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from dflash_core.target.batches import Batch, GenerationSettings
from dflash_core.target.greedy import greedy_batch
from dflash_core.target.orphan import exit_with_parent
from dflash_core.target.prompts import Prompt


def generate_parts(
    missing: Sequence[Batch], settings: GenerationSettings, tokenizer: PreTrainedTokenizerBase, target_dir: Path, parts_dir: Path, workers: int
) -> None:
    """Compute the missing batches, here or in `workers` processes, with a progress line on stderr.

    Raises:
        OSError: a full disk, say, whether here or in a worker.
        RuntimeError: a worker died of anything else; what it had finished is kept.
    """
    started, paths = time.monotonic(), [parts_dir / batch.file_name(settings) for batch in missing]
    if workers == 1 or len(missing) == 1 or torch.cuda.is_available():
        for number, _ in enumerate(_compute(missing, settings, tokenizer, target_dir, parts_dir), start=1):
            _show_progress(paths[:number], len(missing), time.monotonic() - started)
        return
    context = multiprocessing.get_context("spawn")
    shares = [missing[start::workers] for start in range(min(workers, len(missing)))]
    told = context.SimpleQueue()
    processes = [context.Process(target=_worker, args=(share, settings, tokenizer, target_dir, parts_dir, told), daemon=True) for share in shares]
    for process in processes:
        process.start()
    try:
        _watch(processes, paths, started, told)
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _watch(processes: Sequence[BaseProcess], paths: Sequence[Path], started: float, told: SimpleQueue) -> None:
    """Return when all have ended well, showing each batch that appears; raise at the first that fails, what it has told if it has."""
    shown, running = 0, True
    while running:  # once more after the last has ended, whose exit code would else not be looked at
        sentinels = [process.sentinel for process in processes if process.is_alive()]
        running = bool(sentinels)
        if running:
            multiprocessing.connection.wait(sentinels, timeout=2.0)
        done = [path for path in paths if path.exists()]
        if len(done) > shown:
            shown = len(done)
            _show_progress(done, len(paths), time.monotonic() - started)
        failed = [process.exitcode for process in processes if process.exitcode not in (None, 0)]
        if failed and not told.empty():
            raise told.get()
        if failed:
            raise RuntimeError(f"a generation worker ended with {failed[0]}; its message is above. Finished batches are kept: start again.")


def _worker(
    batches: Sequence[Batch], settings: GenerationSettings, tokenizer: PreTrainedTokenizerBase, target_dir: Path, parts_dir: Path, told: SimpleQueue
) -> None:
    exit_with_parent()  # a batch takes minutes: an orphan must not go on using the machine to the end of it
    try:
        for _ in _compute(batches, settings, tokenizer, target_dir, parts_dir):
            pass
    except OSError as error:
        told.put(error)
        sys.exit(1)  # without a traceback: the parent says it in a sentence


def _compute(
    batches: Sequence[Batch], settings: GenerationSettings, tokenizer: PreTrainedTokenizerBase, target_dir: Path, parts_dir: Path
) -> Iterator[None]:
    """Yield after each batch whose file is in place."""
    transformers_logging.disable_progress_bar()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(target_dir, dtype=getattr(torch, settings.dtype)).to(device).eval()
    stop_ids = stop_token_ids(model, tokenizer)
    # A control token inside an answer would open a turn that isn't there, once the text is rendered again: it ends the answer.
    ending_ids = stop_ids | set(tokenizer.all_special_ids)
    for batch in batches:
        with _one_thread():
            answers = greedy_batch(model, batch.prompt_ids, batch.padded_length, settings.max_new_tokens, ending_ids)
        rows = [_row(p, answer, stop_ids, ending_ids, tokenizer) for p, answer in zip(batch.prompts, answers, strict=True)]
        write_atomically(parts_dir / batch.file_name(settings), "".join(json.dumps(row) + "\n" for row in rows).encode())
        yield


@contextmanager
def _one_thread() -> Iterator[None]:
    """Threads that share a step wait for one another at each operator: on busy cores 17 tok/s were measured with two threads
    and 190 with one, on idle ones two processes are no slower. Also, results would depend on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _show_progress(paths: Sequence[Path], total: int, seconds: float) -> None:
    num_tokens = sum(row["num_tokens"] for path in paths for row in read_part(path))
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


def stop_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Tokens after which an answer is complete: the generation config's, the config's and the tokenizer's end tokens."""
    found: set[int] = set()
    for ids in (model.generation_config.eos_token_id, model.config.get_text_config().eos_token_id, tokenizer.eos_token_id):
        found.update(ids if isinstance(ids, list | tuple) else [] if ids is None else [ids])
    return frozenset(found)


def read_part(path: Path) -> list[dict[str, Any]]:
    """Rows of a finished batch: {id, split, category, messages, finished, num_tokens}."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside `path`, then rename: `path` holds all of `content` or is as before."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)
