"""Conversations as the pipeline knows them, whatever spelling their file uses.

A conversation is: at most one system turn, then user and assistant in turn, ending with the assistant.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dflash_core.data.records import Record, read_records
from dflash_core.data.spellings import Turn, plain_text, turns_of
from dflash_core.errors import DataError

__all__ = ["Conversation", "Turn", "read_conversations"]

SPLITS = ("train", "heldout")
NO_CATEGORY = "other"


@dataclass(frozen=True)
class Conversation:
    """One training row in words.

    `split` is None where the file leaves it to `prepare`; `finished` is False where the answer was cut by a
    generation limit, so that no end of turn may be learnt; `where` names the file and line.
    """

    sample_id: str
    category: str
    split: str | None
    turns: tuple[Turn, ...]
    finished: bool = True
    where: str = ""

    @property
    def prompt(self) -> str:
        """The first user turn: rows that share it always go to the same split."""
        return next(turn.content for turn in self.turns if turn.role == "user")


def read_conversations(path: Path, seen: dict[str, str] | None = None) -> Iterator[Conversation]:
    """Yield the conversations of one file, in order, every row checked.

    `seen` maps the ids met so far to their places; pass one dict for several files that must not share ids.
    Rows without an id get a hash of their turns; equal rows therefore share it, and are yielded all the same.

    Raises:
        DataError: the file or a row is not what it should be; the message names the line. See `read_records`.
    """
    seen = {} if seen is None else seen
    for record in read_records(path):
        conversation = conversation_of(record)
        check_order(conversation.turns, conversation.where)
        if record.row.get("id") is not None:
            _refuse_repeated_id(conversation, seen)
        yield conversation


def conversation_of(record: Record) -> Conversation:
    """One raw row as a conversation, whatever the order of its turns. Raises DataError as `turns_of`, or for a wrong id, split or flag."""
    row, where = record.row, record.where
    turns = turns_of(row, where)
    return Conversation(
        sample_id=_sample_id(row.get("id"), turns, where),
        category=_category(row.get("category"), where),
        split=_split(row.get("split"), where),
        turns=turns,
        finished=_finished(row.get("finished"), where),
        where=where,
    )


def _refuse_repeated_id(conversation: Conversation, seen: dict[str, str]) -> None:
    first = seen.setdefault(conversation.sample_id, conversation.where)
    if first != conversation.where:
        raise DataError(
            f"{conversation.where} repeats the id {conversation.sample_id!r} of {first}, expected every id once. "
            "Rename one of them or drop the row."
        )


def check_order(turns: tuple[Turn, ...], where: str) -> None:
    """Raise DataError unless user and assistant alternate, the user first and the assistant last, a system turn only before them."""
    rest = turns[1:] if turns and turns[0].role == "system" else turns
    if not rest:
        raise DataError(f"{where} has no user turn, expected a user turn with its answer. Drop the row.")
    for number, turn in enumerate(rest):
        expected = "user" if number % 2 == 0 else "assistant"
        if turn.role != expected:
            raise DataError(
                f"{where} has {_kind_of_turn(turn.role)} as turn {number + 1 + len(turns) - len(rest)}, expected the "
                f"{expected}'s: user and assistant alternate, the user first, a system turn only before them. "
                "Merge or drop turns."
            )
    if rest[-1].role != "assistant":
        raise DataError(f"{where} ends with the user's turn, expected an assistant's answer. Add the answer or drop the turn.")


def _kind_of_turn(role: str) -> str:
    return {"system": "a system turn", "user": "a user's turn", "assistant": "an assistant's turn"}[role]


def _sample_id(value: object, turns: tuple[Turn, ...], where: str) -> str:
    if value is None:
        text = json.dumps([[turn.role, turn.content] for turn in turns], ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8")).hexdigest()[:24]  # 96 bits: no collision in any real file
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise DataError(f"{where} has the id {repr(value)[:60]}, expected text or a whole number. Correct or remove the id.")
    return plain_text(str(value), f"{where}, id")


def _category(value: object, where: str) -> str:
    if value is None or value == "":
        return NO_CATEGORY
    if not isinstance(value, str):
        raise DataError(f"{where} has the category {repr(value)[:60]}, expected text. Correct or remove the category.")
    return plain_text(value, f"{where}, category")


def _split(value: object, where: str) -> str | None:
    if value is None or (isinstance(value, str) and value in SPLITS):
        return value
    raise DataError(f"{where} has the unknown split {repr(value)[:60]}, expected {' or '.join(SPLITS)}. Correct or remove it.")


def _finished(value: object, where: str) -> bool:
    if value is None or isinstance(value, bool):
        return value is not False
    raise DataError(f"{where} has finished {repr(value)[:60]}, expected true or false. Correct or remove it.")
