"""Reads prompt files: JSONL with an id and a prompt (or messages that end with the user) a line."""

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_core.data.conversations import check_order, conversation_of
from dflash_core.data.records import Record, parse_json
from dflash_core.data.spellings import ROLES, Turn
from dflash_core.errors import DataError


@dataclass(frozen=True)
class Prompt:
    """One line of the prompt file."""

    id: str
    split: str | None
    category: str
    messages: tuple[dict[str, str], ...]

    @property
    def first(self) -> str:
        """The first user turn, which stands for the prompt as `Conversation.prompt` does."""
        return next(turn["content"] for turn in self.messages if turn["role"] == "user")


def read_prompts(path: Path) -> Iterator[Prompt]:
    """The prompts of a JSONL file (.gz allowed), each checked. Raises DataError with the line's number."""
    seen: set[str] = set()
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; pass a JSONL file of prompts.") from None
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
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
    row = parse_json(line, where)
    messages = row.get("messages") if isinstance(row, dict) else None
    if isinstance(row, dict) and messages is None and isinstance(row.get("prompt"), str):
        messages = [{"role": "user", "content": row["prompt"]}]
    turns_are_text = isinstance(messages, list) and all(
        isinstance(turn, dict) and isinstance(turn.get("role"), str) and isinstance(turn.get("content"), str) for turn in messages
    )
    if not turns_are_text or not messages or ROLES.get(messages[-1]["role"]) != "user" or not messages[-1]["content"].strip() or row.get("id") is None:
        raise DataError(
            f"{where} is {line[:80]!r}; expected an object with id and a prompt text (or messages that end with the user). Correct the line."
        )
    turns = _checked_turns(row, messages, where)
    asked = tuple({"role": turn.role, "content": turn.content} for turn in turns)
    return Prompt(str(row["id"]), row.get("split"), str(row.get("category", "")), asked)


def _checked_turns(row: dict[str, Any], messages: list[dict[str, str]], where: str) -> tuple[Turn, ...]:
    """The turns as a conversation has them, for `prepare` renders those: a `human` is asked as a user.

    Raises:
        DataError: what nothing would read once it is answered: an id that is neither text nor a whole number, an unknown split or
            role, turns out of order, a null byte.
    """
    turns = [*({"role": turn["role"], "content": turn["content"]} for turn in messages), {"role": "assistant", "content": "answer"}]
    tree = {"id": row["id"], "split": row.get("split"), "category": str(row.get("category", "")), "messages": turns}
    conversation = conversation_of(Record(where, tree))
    check_order(conversation.turns, where)
    return conversation.turns[:-1]
