"""Which prompts of an inbox have no answer yet: those whose id no conversation has."""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path

from dflash_core.data.conversations import read_conversations
from dflash_core.errors import DataError
from dflash_core.target.prompts import Prompt, read_prompts

Text = tuple[tuple[str, str], ...]  # role and content of each turn


def unanswered(prompt_files: Iterable[Path], conversation_files: Iterable[Path], asked: Iterable[Path] = ()) -> list[Prompt]:
    """Prompts of the files, in their order, that no conversation answers and no file of `asked` holds; each id once.

    Raises:
        DataError: a file can't be read, an id stands for two different texts, or a text is in two splits.
    """
    prompts = [(file, prompt) for file in prompt_files for prompt in read_prompts(file)]
    ids, firsts = {prompt.id for _, prompt in prompts}, {prompt.first for _, prompt in prompts}
    texts = {prompt.id: _text(prompt) for file in asked for prompt in read_prompts(file) if prompt.id in ids}
    answered: dict[str, Text] = {}
    splits: dict[str, str] = {}
    for conversation in (c for file in conversation_files for c in read_conversations(file)):
        if conversation.sample_id in ids:
            answered[conversation.sample_id] = tuple((turn.role, turn.content) for turn in conversation.turns)
        if conversation.split is not None and conversation.prompt in firsts:
            splits[conversation.prompt] = conversation.split
    new: list[Prompt] = []
    for file, prompt in prompts:
        text = _text(prompt)
        # Of a conversation of elsewhere nobody knows how much was the prompt: any beginning of it may have been.
        known = texts.get(prompt.id) or answered.get(prompt.id, ())[: len(text)]
        if known and known != text:
            raise DataError(_two_texts(file, prompt.id, text, known))
        _refuse_two_splits(file, prompt, splits)
        if not known:
            texts[prompt.id] = text
            new.append(prompt)
    return new


def _text(prompt: Prompt) -> Text:
    return tuple((turn["role"], turn["content"]) for turn in prompt.messages)


def _two_texts(file: Path, name: str, text: Text, known: Text) -> str:
    """What to say of an id that stands for two: the first turns that differ."""
    found, before = next(pair for pair in zip_longest(text, known) if pair[0] != pair[1])
    return f"{file} has the id {name!r} for {_told(found)}, which stands for {_told(before)} already; expected one text an id. Rename one of them."


def _told(turn: tuple[str, str] | None) -> str:
    return "a text that ends before" if turn is None else f"{turn[1][:60]!r} ({turn[0]})"


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
