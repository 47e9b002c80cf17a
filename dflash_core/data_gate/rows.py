"""Reads conversation files for the gate: every row, the faulty ones too, since one answer must name all of them.

Stage prepare stops at the first row that it can't use. Here a fault is a fact about a row like any other.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dflash_core.data.conversations import Conversation, check_order, conversation_of
from dflash_core.data.records import Record, read_records
from dflash_core.data_gate.near_copies import fold
from dflash_core.errors import DataError

# What every message about a row begins with: its place in the file.
_PLACE = re.compile(r".*? (?:line|element|row) \d+")
_LINE_CONTROLS = "\t\n\r"


@dataclass(frozen=True)
class Row:
    """One row of a file. Facts of the text are None where the row is no conversation.

    `text` and `prompt` are folded (`near_copies.fold`); `script` is the one that most letters are of.
    """

    row_id: str
    where: str
    shape_fault: str | None = None
    order_fault: str | None = None
    shortest_turn: int | None = None
    garbled: str | None = None
    category: str | None = None
    script: str | None = None
    text: str = ""
    prompt: str = ""
    conversation: Conversation | None = None


def read_rows(paths: list[Path], keep: Collection[str]) -> Iterator[Row]:
    """The rows of all files. Conversations whose id is in `keep` stay with their row: the others' texts would fill the memory."""
    for path in paths:
        try:
            for record in read_records(path):
                yield _row(record, keep)
        except DataError as error:  # what follows in this file can't be read
            place = _PLACE.match(str(error))
            yield Row(row_id=place[0] if place else str(path), where=str(path), shape_fault=str(error))


def _row(record: Record, keep: Collection[str]) -> Row:
    given = record.row.get("id")
    row_id = record.where if given in (None, "") else str(given)
    try:
        conversation = conversation_of(record)
    except DataError as error:
        return Row(row_id=row_id, where=record.where, shape_fault=str(error))
    contents = [turn.content for turn in conversation.turns]
    text = fold("".join(contents))
    order_fault = _order_fault(conversation)
    return Row(
        row_id=conversation.sample_id,
        where=record.where,
        order_fault=order_fault,
        shortest_turn=min(len(content.strip()) for content in contents),
        garbled=_garbled(contents, conversation.finished),
        category=conversation.category,
        script=script_of(text),
        text=text,
        prompt=fold(conversation.prompt) if order_fault is None else "",
        conversation=conversation if conversation.sample_id in keep else None,
    )


def _order_fault(conversation: Conversation) -> str | None:
    try:
        check_order(conversation.turns, conversation.where)
    except DataError as error:
        return str(error)
    return None


def _garbled(contents: list[str], finished: bool) -> str | None:
    """A character that no writer means, if any. An answer cut at its limit may end with half a character."""
    *before, last = contents
    text = "".join(before) + (last if finished else last.rstrip("\ufffd"))
    return next((f"U+{ord(character):04X}" for character in sorted(set(text)) if _is_garbage(character)), None)


@lru_cache(maxsize=1 << 16)
def _is_garbage(character: str) -> bool:
    """The replacement character, control characters but for line breaks and tabs, private use, and what is no character."""
    kind = unicodedata.category(character)
    return character == "\ufffd" or kind in ("Co", "Cn") or (kind == "Cc" and character not in _LINE_CONTROLS)


def script_of(text: str) -> str:
    """The script of most of its letters, such as "latin" or "cjk"; "none" without letters."""
    counts: Counter[str] = Counter()
    for character, count in Counter(text).items():
        counts[_script(character)] += count
    del counts[""]
    return counts.most_common(1)[0][0] if counts else "none"


@lru_cache(maxsize=1 << 16)
def _script(character: str) -> str:
    """The first word of the character's name, which for letters is the script."""
    return unicodedata.name(character, "").partition(" ")[0].lower() if character.isalpha() else ""
