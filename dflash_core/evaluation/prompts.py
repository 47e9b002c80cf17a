"""Which held-out prompts are measured, and their recorded answers as text to walk along.

The choice is a pure function of the dataset: every evaluation of a run, and of the next run on the same data,
measures the same prompts, so two acceptance lengths can be compared.
"""

import hashlib
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from dflash_core.data.dataset import Dataset
from dflash_core.errors import DataError

HELDOUT = "held out"


@dataclass(frozen=True)
class MeasuredPrompt:
    """A prompt to decode.

    Attributes:
        sample_id: names the prompt; unique in an evaluation.
        category: as its file has it.
        prompt_ids: at least one token id.
        answer_ids: of a held-out one, its first answer as recorded, the stop token included.
        set_name: the prompt set it is of.
        turn: which of its dialogue's, from 1.
    """

    sample_id: str
    category: str
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...] = ()
    set_name: str = HELDOUT
    turn: int = 1


def choose_prompts(heldout: Dataset, count: int) -> tuple[MeasuredPrompt, ...]:
    """At most `count` prompts: one of each category in turn (alphabetical), each category in the order of its ids' digests.

    Files are seldom in random order: in the shipped one, every category's hand-written prompts come first, which are harder
    than the rest, and the first 48 of 320 gave 1.45 where all gave 1.55.

    Raises:
        DataError: the split is empty, or not one of its rows has a prompt before its answer.
    """
    if len(heldout) == 0:
        raise DataError(
            "the held-out split has 0 rows, expected at least 1. Raise data.heldout_fraction and run stage prepare again, or, to "
            "train without measuring, set checkpoint.evaluate to false."
        )
    queues: dict[str, list[MeasuredPrompt]] = defaultdict(list)
    for row in range(len(heldout)):
        sample = heldout.sample(row)
        if (prompt := split_first_answer(sample)) is not None:
            queues[prompt.category].append(prompt)
    if not queues:
        raise DataError(
            f"0 of {len(heldout)} held-out rows have a prompt before an answer, expected at least 1. Check the conversations."
        )
    for queue in queues.values():
        queue.sort(key=lambda prompt: hashlib.sha256(prompt.sample_id.encode()).digest())
    longest = max(map(len, queues.values()))
    dealt = [queues[name][turn] for turn in range(longest) for name in sorted(queues) if turn < len(queues[name])]
    return tuple(dealt[:count])


def split_first_answer(sample: object) -> MeasuredPrompt | None:
    """Prompt and first answer of a sample: the first run of supervised tokens is the answer; None without either."""
    supervised = np.flatnonzero(sample.loss_mask)
    if not len(supervised) or supervised[0] == 0:
        return None
    start = int(supervised[0])
    holes = np.flatnonzero(~np.asarray(sample.loss_mask[start:], dtype=bool))
    end = start + int(holes[0]) if len(holes) else len(sample.loss_mask)
    ids = [int(token) for token in sample.input_ids[:end]]
    return MeasuredPrompt(sample.sample_id, sample.category, tuple(ids[:start]), tuple(ids[start:]))
