"""Chooses, or checks, the embedding row that stands for a masked slot.

The drafter sees the target's embedding of this id in every slot after the anchor, so the id must never mean anything else.
"""

import re
from collections.abc import Iterable, Sequence

import numpy as np
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from dflash_core.errors import ConfigError

# Names that model makers give to rows that are free for such use; tried before other control tokens.
RESERVED_NAME = re.compile(r"reserved|unused|mask|extra_id|dummy|placeholder", re.IGNORECASE)


def choose_mask_token(
    tokenizer: PreTrainedTokenizerBase,
    target_config: PreTrainedConfig,
    embedding_rows: int,
    data_token_counts: Sequence[int] | np.ndarray | None = None,
    configured: int | None = None,
) -> int:
    """The mask id: `configured` where it is fit, else the first spare row, else a control token nobody uses.

    A spare row lies past every token of the tokenizer (Qwen3: 151,669, z-lab's own choice). Where all rows are in use
    (SmolLM2: 49,152 of 49,152), it is a control token that the chat template and the data never use and that has no role
    of its own.

    Args:
        tokenizer: The target's.
        target_config: Text configuration, for its special ids.
        embedding_rows: Rows of the target's input embedding.
        data_token_counts: [V] occurrences in the data; None skips that rule.
        configured: drafter.mask_token_id.

    Raises:
        ConfigError: the configured id breaks a rule, or no id is fit.
    """
    rules = _Rules(tokenizer, target_config, embedding_rows, data_token_counts)
    if configured is not None:
        fault = rules.fault(configured)
        if fault is not None:
            raise ConfigError(
                f"drafter.mask_token_id {configured} {fault}; expected a row that nothing else uses. Set it to null, or to another row."
            )
        return configured
    chosen = next((row for row in rules.candidates() if rules.fault(row) is None), None)
    if chosen is None:
        raise ConfigError(
            f"no row of the target's {embedding_rows} embeddings is free for the mask: all belong to tokens, and each control token "
            "has a role or occurs in the chat template or the data. Add rows to the target's embedding, or clean the data."
        )
    return chosen


class _Rules:
    """What makes a row unfit for the mask, each reason in words that follow the id."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        target_config: PreTrainedConfig,
        embedding_rows: int,
        counts: Sequence[int] | np.ndarray | None,
    ) -> None:
        self._rows = embedding_rows
        self._counts = counts
        self._added = {row: token.content for row, token in tokenizer.added_tokens_decoder.items()}
        self._control = {row for row, token in tokenizer.added_tokens_decoder.items() if token.special} | set(tokenizer.all_special_ids)
        self._control |= {row for row, text in self._added.items() if RESERVED_NAME.search(text)}
        self._first_spare = max([len(tokenizer), *(row + 1 for row in tokenizer.get_vocab().values())])
        self._roles = _roles(tokenizer, target_config)
        self._template = _template_text(tokenizer)

    def fault(self, row: int) -> str | None:
        """Why `row` can't be the mask; None where it can."""
        if not 0 <= row < self._rows:
            return f"is not a row of the target's embedding, which has {self._rows}"
        if row in self._roles:
            return f"is the target's {self._roles[row]} token"
        if self._counts is not None and row < len(self._counts) and self._counts[row] > 0:
            return f"occurs {int(self._counts[row])} times in the data"
        if row >= self._first_spare:
            return None
        if row not in self._control:
            return "belongs to an ordinary token of the tokenizer, which the target can generate"
        text = self._added.get(row, "")
        return f"is {text}, which the chat template uses" if text and text in self._template else None

    def candidates(self) -> Iterable[int]:
        """Spare rows, then control tokens: those with a telling name first, in ascending order."""
        yield from range(self._first_spare, self._rows)
        yield from sorted(self._control, key=lambda row: (not RESERVED_NAME.search(self._added.get(row, "")), row))


def _roles(tokenizer: PreTrainedTokenizerBase, target_config: PreTrainedConfig) -> dict[int, str]:
    roles: dict[int, str] = {}
    for role in ("pad", "eos", "bos", "unk"):
        for owner in (tokenizer, target_config):
            ids = getattr(owner, f"{role}_token_id", None)
            roles.update(dict.fromkeys(ids if isinstance(ids, list | tuple) else [] if ids is None else [ids], role))
    return roles


def _template_text(tokenizer: PreTrainedTokenizerBase) -> str:
    template = tokenizer.chat_template
    return "\n".join(template.values()) if isinstance(template, dict) else template or ""
