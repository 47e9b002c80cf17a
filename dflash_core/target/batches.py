"""Groups prompts into generation batches: a pure function of the prompt list, named by all that decides its answers."""

import hashlib
import json
from dataclasses import asdict, dataclass

from transformers import PreTrainedTokenizerBase

from dflash_core.data.spellings import Turn
from dflash_core.data.template import prompt_ids
from dflash_core.errors import DataError
from dflash_core.target.prompts import Prompt

PROMPT_MULTIPLE = 32  # each new prompt width costs oneDNN about a second of kernel generation


@dataclass(frozen=True)
class GenerationSettings:
    """All that decides the answers, besides the prompts themselves."""

    target_identity: str
    tokenizer_identity: str  # its template decides the prompts, its special tokens where an answer ends
    dtype: str
    batch_size: int
    prompt_multiple: int
    max_new_tokens: int
    torch: str
    transformers: str


@dataclass(frozen=True)
class Batch:
    """Prompts generated together; `padded_length` tokens each, padding on the left."""

    prompts: tuple[Prompt, ...]
    prompt_ids: tuple[tuple[int, ...], ...]
    padded_length: int

    def file_name(self, settings: GenerationSettings) -> str:
        """Name of the batch's part file: a digest of everything its answers depend on."""
        content = json.dumps([asdict(settings), [p.id for p in self.prompts], self.prompt_ids, self.padded_length])
        return f"{hashlib.sha256(content.encode()).hexdigest()[:32]}.jsonl"


def plan_batches(prompts: list[Prompt], tokenizer: PreTrainedTokenizerBase, batch_size: int) -> list[Batch]:
    """Batches of prompts sorted by (tokens, id): a pure function of the prompts, the tokenizer and `batch_size`.

    Raises:
        DataError: the chat template refuses a prompt, as some do with a system turn.
    """
    ids = [_prompt_ids(prompt, tokenizer) for prompt in prompts]
    order = sorted(range(len(prompts)), key=lambda row: (len(ids[row]), prompts[row].id))
    chunks = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    return [
        Batch(
            prompts=tuple(prompts[row] for row in chunk),
            prompt_ids=tuple(ids[row] for row in chunk),
            padded_length=-(-len(ids[chunk[-1]]) // PROMPT_MULTIPLE) * PROMPT_MULTIPLE,
        )
        for chunk in chunks
    ]


def _prompt_ids(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    try:
        return tuple(prompt_ids(tokenizer, [Turn(turn["role"], turn["content"]) for turn in prompt.messages]))
    except DataError as error:
        raise DataError(f"prompt {prompt.id!r}: {error}") from None
