"""Which prompts of an inbox have no answer yet: those whose id no conversation has."""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from dflash_core.data.conversations import read_conversations
from dflash_core.errors import DataError
from dflash_core.target.prompts import Prompt, read_prompts


def unanswered(prompt_files: Iterable[Path], conversation_files: Iterable[Path]) -> list[Prompt]:
    """Prompts of the files, in their order, that no conversation answers; each id once.

    Raises:
        DataError: a file can't be read, or an id stands for two different texts.
    """
    texts = {c.sample_id: c.prompt for file in conversation_files for c in read_conversations(file)}
    new: list[Prompt] = []
    for file in prompt_files:
        for prompt in read_prompts(file):
            first = next(turn["content"] for turn in prompt.messages if turn["role"] == "user")
            if prompt.id not in texts:
                texts[prompt.id] = first
                new.append(prompt)
            elif (known := texts[prompt.id]) != first:
                raise DataError(
                    f"{file} has the id {prompt.id!r} for {first[:60]!r}, which stands for {known[:60]!r} already; expected one text an id. "
                    "Rename one of them."
                )
    return new


def batch_name(prompts: Sequence[Prompt]) -> str:
    """The same name for the same prompts, so that answering them can be killed and go on."""
    return hashlib.sha256(_lines(prompts).encode()).hexdigest()[:16]


def write_prompts(path: Path, prompts: Sequence[Prompt]) -> None:
    """Write a prompt file, which appears whole."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(_lines(prompts), encoding="utf-8")
    os.replace(temporary, path)


def _lines(prompts: Sequence[Prompt]) -> str:
    rows = [{"id": p.id, "split": p.split, "category": p.category, "messages": list(p.messages)} for p in prompts]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
