"""Reads prompt sets: files whose rows ask something, in one turn or several, in any of the usual spellings."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_core.data.identity import file_digest
from dflash_core.data.records import Record, read_records
from dflash_core.data.spellings import Turn, plain_text, questions_of
from dflash_core.errors import DataError

ID_KEYS = ("id", "question_id", "task_id")


@dataclass(frozen=True)
class Dialogue:
    """What the user says, turn by turn; the answers between are the target's own. `system` stands before all turns."""

    sample_id: str
    set_name: str
    category: str
    system: str | None
    questions: tuple[str, ...]

    @property
    def turn_ids(self) -> tuple[str, ...]:
        """An id for each question's prompt."""
        several = len(self.questions) > 1
        return tuple(f"{self.sample_id}#{number}" if several else self.sample_id for number in range(1, len(self.questions) + 1))


@dataclass(frozen=True)
class PromptSet:
    """The dialogues of one file in its order, and the file's sha256, so that two evaluations can be held to the same prompts."""

    name: str
    digest: str
    dialogues: tuple[Dialogue, ...]


def read_prompt_sets(paths: Sequence[Path], most: int) -> tuple[PromptSet, ...]:
    """The first `most` rows of each file.

    Raises:
        DataError: a file is missing, broken or empty, a row is in no known spelling or repeats an id, or two files have one name.
    """
    sets = [read_prompt_set(path, most) for path in paths]
    names = [prompt_set.name for prompt_set in sets]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise DataError(f"{names.count(repeated)} prompt sets are called {repeated}, expected one of each name. Rename a file or its directory.")
    return tuple(sets)


def read_prompt_set(path: Path, most: int) -> PromptSet:
    """As `read_prompt_sets`, for one file."""
    if not path.is_file():
        raise DataError(f"the prompt set {path} is no file, expected JSONL, JSON or Parquet. Correct --prompts, or evaluation.prompt_sets.")
    name, seen, dialogues = set_name(path), {}, []
    for number, record in enumerate(read_records(path), start=1):
        if number > most:
            break
        dialogue = _dialogue(record, name, number)
        for sample_id in (dialogue.sample_id, *dialogue.turn_ids):
            if (first := seen.setdefault(sample_id, record.where)) != record.where:
                raise DataError(f"{record.where} repeats the id of {first}, {sample_id}; expected every id once. Rename one.")
        dialogues.append(dialogue)
    return PromptSet(name, file_digest(path), tuple(dialogues))


def set_name(path: Path) -> str:
    """Directory and file, since many sets call their file question.jsonl or test.jsonl."""
    return f"{path.resolve().parent.name}/{path.name.split('.')[0]}"


def _dialogue(record: Record, name: str, number: int) -> Dialogue:
    turns = questions_of(record.row, record.where)
    id_key = next((key for key in ID_KEYS if isinstance(record.row.get(key), str | int)), None)
    row_id = number if id_key is None else plain_text(str(record.row[id_key]), f"{record.where}, {id_key}")
    category = record.row.get("category")
    return Dialogue(
        sample_id=f"{name}/{row_id}",
        set_name=name,
        category=plain_text(category, f"{record.where}, category") if isinstance(category, str) and category else name,
        system=_system_of(turns, record.where),
        questions=tuple(turn.content for turn in turns if turn.role == "user"),
    )


def _system_of(turns: Sequence[Turn], where: str) -> str | None:
    if any(turn.role == "system" for turn in turns[1:]):
        raise DataError(f"{where} has a system turn after another turn, expected one at most, before all others. Merge or drop it.")
    return turns[0].content if turns[0].role == "system" else None


def prompts_digest(sample_ids_and_tokens: Sequence[tuple[str, Sequence[int]]]) -> str:
    """sha256 over prompts as token ids, in their order."""
    total = hashlib.sha256()
    for sample_id, ids in sample_ids_and_tokens:
        total.update(f"{sample_id}:{','.join(map(str, ids))}\n".encode())
    return total.hexdigest()
