"""From the many public spellings of a conversation row to turns.

Read are: `messages` or `conversations`/`conversation` with role/content or from/value (OpenAI, ShareGPT), Alpaca
(instruction/input/output), Dolly (instruction/context/response), and the pairs prompt/response,
prompt/completion and question/answer. The first of these that a row has counts, so files may mix them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from dflash_core.errors import DataError

MESSAGE_KEYS = ("messages", "conversations", "conversation")
ANSWER_KEYS = ("output", "response", "completion", "answer")
QUESTION_KEYS = ("instruction", "prompt", "question")
CONTEXT_KEYS = ("input", "context")  # the second part of an Alpaca or Dolly instruction
ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
}
TOOL_ROLES = {"tool", "tools", "function", "function_call", "function_response", "observation", "ipython", "tool_call"}
TOOL_KEYS = ("tool_calls", "function_call", "tool_call_id")
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True)
class Turn:
    """One message; `role` is system, user or assistant."""

    role: str
    content: str


def turns_of(row: dict[str, object], where: str) -> tuple[Turn, ...]:
    """The turns of one raw row, `where` naming its place.

    Raises:
        DataError: no known spelling, no answer, an unknown role, a tool turn, or content that is not plain text.
    """
    for key in MESSAGE_KEYS:
        if row.get(key) is not None:
            return _with_system(row, _messages(row[key], f"{where}, {key}"), where)
    return _with_system(row, _pair(row, where), where)


def questions_of(row: dict[str, object], where: str) -> tuple[Turn, ...]:
    """The system turn, where a row has one, and the user's turns of a prompt row, whose answers are passed over.

    Read are `turns` (a list of texts, as in MT-bench and Spec-Bench) and all that `turns_of` reads; the second part of an
    instruction may also stand in the first of its `instances`.

    Raises:
        DataError: no known spelling, no user turn, an unknown role, or content that is not plain text.
    """
    if row.get("turns") is not None:
        turns = _texts(row["turns"], f"{where}, turns")
    elif (key := _first_key(row, MESSAGE_KEYS)) is not None:
        turns = _messages(row[key], f"{where}, {key}")
    else:
        turns = _question(row, _question_key(row, ("turns", *MESSAGE_KEYS), where), where)
    asked = tuple(turn for turn in _with_system(row, turns, where) if turn.role != "assistant")
    if not any(turn.role == "user" and turn.content.strip() for turn in asked):
        raise DataError(f"{where} has no user turn with text, expected at least one. Drop the row.")
    return asked


def _texts(value: object, where: str) -> tuple[Turn, ...]:
    if not isinstance(value, list):
        raise DataError(f"{where} is {_name(value)}, expected a list of texts. Correct the row.")
    return tuple(Turn("user", _text(text, f"{where} {number}")) for number, text in enumerate(value, start=1))


def _with_system(row: dict[str, object], turns: tuple[Turn, ...], where: str) -> tuple[Turn, ...]:
    """Put a row's own `system` text (usual beside Alpaca and ShareGPT turns) in front, unless a turn says it."""
    system = row.get("system")
    if system is None or system == "" or (turns and turns[0].role == "system"):
        return turns
    return (Turn("system", _text(system, f"{where}, system")), *turns)


def _pair(row: dict[str, object], where: str) -> tuple[Turn, ...]:
    question_key = _question_key(row, MESSAGE_KEYS, where)
    answer_key = _first_key(row, ANSWER_KEYS)
    if answer_key is None:
        raise DataError(
            f"{where} has {question_key!r} but no answer, expected one of {', '.join(ANSWER_KEYS)}. Add it or drop the row."
        )
    return _question(row, question_key, where) + _side(row, answer_key, "assistant", where)


def _question_key(row: dict[str, object], others: tuple[str, ...], where: str) -> str:
    key = _first_key(row, QUESTION_KEYS)
    if key is None:
        known = ", ".join((*others, *QUESTION_KEYS))
        found = ", ".join(map(repr, list(row)[:8])) or "none"
        raise DataError(f"{where} has the keys {found}, expected one of {known}. Rename the keys or columns.")
    return key


def _question(row: dict[str, object], key: str, where: str) -> tuple[Turn, ...]:
    question = _side(row, key, "user", where)
    if key != "instruction":
        return question
    instances = row.get("instances")
    source = instances[0] if isinstance(instances, list) and instances and isinstance(instances[0], dict) else row
    context_key = _first_key(source, CONTEXT_KEYS)
    if context_key is None or source[context_key] == "":
        return question
    return (Turn("user", f"{question[0].content}\n\n{_text(source[context_key], f'{where}, {context_key}')}"),)


def _first_key(row: dict[str, object], keys: Iterable[str]) -> str | None:
    return next((key for key in keys if row.get(key) is not None), None)


def _side(row: dict[str, object], key: str, role: str, where: str) -> tuple[Turn, ...]:
    """One half of a pair: text, or (as trainers of preference data write it) a list of messages."""
    value = row[key]
    is_messages = isinstance(value, list) and key in ("prompt", "completion")
    return _messages(value, f"{where}, {key}") if is_messages else (Turn(role, _text(value, f"{where}, {key}")),)


def _messages(value: object, where: str) -> tuple[Turn, ...]:
    if not isinstance(value, list):
        raise DataError(f"{where} is {_name(value)}, expected a list of messages. Correct the row.")
    if not value:
        raise DataError(f"{where} is an empty list, expected a user turn with its answer. Drop the row.")
    return tuple(_message(message, f"{where} {number}") for number, message in enumerate(value, start=1))


def _message(message: object, where: str) -> Turn:
    if not isinstance(message, dict):
        raise DataError(f"{where} is {_name(message)}, expected an object with role and content. Correct the row.")
    role = _role(_first_value(message, ("role", "from")), where)
    _refuse_unsupported(message, where)
    content = _first_value(message, ("content", "value"))
    if content is None:
        raise DataError(f"{where} ({role}) has no content, expected text under content or value. Add it or drop the row.")
    return Turn(role, _text(content, where))


def _first_value(message: dict[str, object], keys: tuple[str, str]) -> object:
    return next((message[key] for key in keys if message.get(key) is not None), None)


def _role(value: object, where: str) -> str:
    name = value.strip().lower() if isinstance(value, str) else None
    if name in TOOL_ROLES:
        raise DataError(f"{where} is a tool turn (role {value!r}), expected system, user or assistant. Drop such conversations.")
    if name not in ROLES:
        raise DataError(f"{where} has the unknown role {repr(value)[:60]}, expected one of {', '.join(ROLES)}. Rename the role.")
    return ROLES[name]


def _refuse_unsupported(message: dict[str, object], where: str) -> None:
    """Keys that change what the model has to write; to pass over them would train on another text in silence."""
    for key in TOOL_KEYS:
        if message.get(key):
            raise DataError(f"{where} is a tool turn (key {key!r}), expected plain text only. Drop such conversations.")
    for key in REASONING_KEYS:
        if message.get(key):
            raise DataError(
                f"{where} keeps reasoning apart under {key!r}, expected all that the model wrote under content. "
                "Put it into content the way the model writes it."
            )
    if message.get("weight") not in (None, 1):
        raise DataError(f"{where} has weight {message['weight']!r}, expected every answer to count. Drop the row or the key.")


def _text(value: object, where: str) -> str:
    if isinstance(value, list):
        value = "".join(_text_part(part, where) for part in value)
    if not isinstance(value, str):
        raise DataError(f"{where} has {_name(value)} ({repr(value)[:40]}) for content, expected text. Correct or drop the row.")
    return plain_text(value, where)


def plain_text(value: str, where: str) -> str:
    """`value` as it is. Raises DataError for what a JSON string may hold and UTF-8 can't, or no text has."""
    if "\x00" in value:
        raise DataError(f"{where} holds a null byte at character {value.index(chr(0))}, expected plain text. Remove it.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where} holds half a surrogate pair at character {error.start}, expected Unicode text. Remove it."
        ) from None
    return value


def _text_part(part: object, where: str) -> str:
    if isinstance(part, dict) and part.get("type", "text") == "text" and isinstance(part.get("text"), str):
        return part["text"]
    kind = part.get("type") if isinstance(part, dict) else _name(part)
    raise DataError(f"{where} has a content part of type {kind!r}, expected text parts only. Drop such conversations.")


def _name(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)
