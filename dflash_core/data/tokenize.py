"""Conversation to tokens with a loss mask.

Supervised are the tokens that the target itself has to generate: the text of every assistant turn and the token
that ends it, not the newline behind that. Where the answers lie in the rendered text comes from the chat template
(`template.render`); characters become tokens by the tokenizer's offsets. A token across either end of an answer is
not supervised: it isn't the assistant's alone.

T tokens of the row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from dflash_core.data.spellings import Turn
from dflash_core.data.template import Span, render

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Tokens:
    """input_ids int32 [T], loss_mask bool [T] of the same length; `truncated` if the row was cut at the limit."""

    input_ids: np.ndarray
    loss_mask: np.ndarray
    truncated: bool


@dataclass(frozen=True)
class _Encoded:
    """Token ids [T] and the characters each covers, start and end [T], without the gaps that trimming leaves."""

    ids_T: np.ndarray
    starts_T: np.ndarray
    ends_T: np.ndarray


def render_and_mask(
    tokenizer: "PreTrainedTokenizerBase", turns: Sequence[Turn], max_length: int, finished: bool = True
) -> Tokens:
    """Tokens of the rendered conversation and which of them are supervised.

    Where `finished` is False the last answer was cut by a generation limit: the row ends with its last token.

    Raises:
        DataError: the template refuses the conversation or rewrites its answers.
    """
    text, spans = render(tokenizer, turns)
    encoded = _encode(tokenizer, text)
    stops = _stops(tokenizer)
    loss_mask = np.zeros(len(encoded.ids_T), dtype=np.bool_)
    length = len(encoded.ids_T)
    for number, span in enumerate(spans):
        ends_turn = finished or number + 1 < len(spans)
        first, last = _token_range(encoded, text, span, stops, ends_turn)
        loss_mask[first:last] = True
        length = length if ends_turn else last
    kept = min(length, max_length)
    return Tokens(encoded.ids_T[:kept], loss_mask[:kept], truncated=length > max_length)


def _encode(tokenizer: "PreTrainedTokenizerBase", text: str) -> _Encoded:
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    offsets = np.asarray(encoded["offset_mapping"], dtype=np.int64).reshape(-1, 2)
    # Byte-level post-processors with trim_offsets leave a token's leading spaces out of its offsets (GPT-2, Llama 3):
    # give such a gap back to the token behind it, else a space of the template would pass as the answer's.
    reached = np.maximum.accumulate(np.concatenate([[0], offsets[:-1, 1]])) if len(offsets) else offsets[:, 0]
    starts_T = np.minimum(offsets[:, 0], reached)
    return _Encoded(np.asarray(encoded["input_ids"], dtype=np.int32), starts_T, offsets[:, 1])


@dataclass(frozen=True)
class _Stops:
    """Ids of tokens that can end a turn: `special` ones may stand inside a generation block, `added` ones behind it."""

    special: frozenset[int]
    added: frozenset[int]


@lru_cache(maxsize=4)
def _stops(tokenizer: "PreTrainedTokenizerBase") -> _Stops:
    """The added tokens but for whitespace (Gemma has "\\n" among its own); "</think>" is added but not special."""
    added = {token_id: token for token_id, token in tokenizer.added_tokens_decoder.items() if token.content.strip()}
    eos = {tokenizer.eos_token_id} - {None}
    return _Stops(frozenset({i for i, token in added.items() if token.special} | eos), frozenset(added) | eos)


def _token_range(encoded: _Encoded, text: str, span: Span, stops: _Stops, ends_turn: bool) -> tuple[int, int]:
    """Tokens [first, last) that lie inside the span, with the token that ends the turn if `ends_turn`, else without."""
    start, end = span
    first = int(np.searchsorted(encoded.starts_T, start, side="left"))
    last = int(np.searchsorted(encoded.ends_T, end, side="right"))
    while first < last and encoded.ends_T[first] <= start:
        first += 1  # zero-width token on the boundary: the dummy prefix of some sentencepiece tokenizers
    last = max(first, last)
    stop = _last_stop(encoded, text, first, last, stops.special)
    if stop is not None:  # a generation block that takes in the stop token, and perhaps the newline behind it
        return first, stop + ends_turn
    follows = last < len(encoded.ids_T) and encoded.ids_T[last] in stops.added and encoded.starts_T[last] <= end
    return first, last + int(follows and ends_turn)


def _last_stop(encoded: _Encoded, text: str, first: int, last: int, stops: frozenset[int]) -> int | None:
    """Index of a stop token that only whitespace follows within [first, last)."""
    for index in range(last - 1, first - 1, -1):
        if encoded.ids_T[index] in stops:
            return index
        if text[encoded.starts_T[index] : encoded.ends_T[index]].strip():
            return None
    return None
