"""Which prompts of an inbox have no answer yet: those whose id no conversation has."""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from dflash_core.data.conversations import read_conversations
from dflash_core.errors import DataError
from dflash_core.target.prompts import Prompt, read_prompts


def unanswered(prompt_files: Iterable[Path], conversation_files: Iterable[Path], asked: Iterable[Path] = ()) -> list[Prompt]:
    """Prompts of the files, in their order, that no conversation answers and no file of `asked` holds; each id once.

    Raises:
        DataError: a file can't be read, an id stands for two different texts, or a text is in two splits.
    """
    texts = {prompt.id: prompt.first for file in asked for prompt in read_prompts(file)}
    splits: dict[str, str] = {}
    for conversation in (c for file in conversation_files for c in read_conversations(file)):
        texts[conversation.sample_id] = conversation.prompt
        if conversation.split is not None:
            splits[conversation.prompt] = conversation.split
    new: list[Prompt] = []
    for file in prompt_files:
        for prompt in read_prompts(file):
            if prompt.id not in texts:
                texts[prompt.id] = prompt.first
                _refuse_two_splits(file, prompt, splits)
                new.append(prompt)
            elif (known := texts[prompt.id]) != prompt.first:
                raise DataError(
                    f"{file} has the id {prompt.id!r} for {prompt.first[:60]!r}, which stands for {known[:60]!r} already; expected one "
                    "text an id. Rename one of them."
                )
    return new


def _refuse_two_splits(file: Path, prompt: Prompt, splits: dict[str, str]) -> None:
    """Stage `prepare` refuses such data, which would be too late: the answers have been taken in by then."""
    if prompt.split is not None and (known := splits.setdefault(prompt.first, prompt.split)) != prompt.split:
        raise DataError(
            f"{file} has the prompt {prompt.id!r} in {prompt.split}, whose text {prompt.first[:60]!r} is in {known} already; expected "
            "equal prompts in one split. Leave its split out."
        )


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
