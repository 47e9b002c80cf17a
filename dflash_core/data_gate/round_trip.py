"""Decodes prepared rows and compares them with their conversations: what training sees must be what somebody said.

Whitespace and Unicode normal form are left out of the comparison, since tokenizers may change both.
"""

import hashlib
import operator
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from dflash_core.data.conversations import Conversation
from dflash_core.data.dataset import Dataset, Sample
from dflash_core.data.template import render

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SPACE = re.compile(r"\s+")


def sampled_rows(datasets: Iterable[Dataset], num_rows: int) -> dict[str, tuple[Dataset, int]]:
    """Rows to decode, by id: the ids with the smallest hashes, so that they stay the same from one version to the next."""
    places = {dataset.sample_id(row): (dataset, row) for dataset in datasets for row in range(len(dataset))}
    chosen = sorted(places, key=lambda row_id: hashlib.blake2b(row_id.encode(), digest_size=8).digest())[:num_rows]
    return {row_id: places[row_id] for row_id in chosen}


def round_trip_faults(
    sampled: Mapping[str, tuple[Dataset, int]],
    conversations: Mapping[str, Conversation],
    tokenizer: "PreTrainedTokenizerBase",
    max_length: int,
) -> dict[str, str]:
    """What is wrong, by id of the sampled row; a row whose conversation isn't known is left to another expectation.

    Rows that were cut, at `max_length` or by a generation limit, hold the beginning of their conversation.
    """
    faults = {}
    for row_id in sampled.keys() & conversations.keys():
        dataset, row = sampled[row_id]
        sample, conversation = dataset.sample(row), conversations[row_id]
        same = operator.eq if conversation.finished and len(sample.input_ids) < max_length else _begins
        fault = _fault(sample, conversation, tokenizer, same)
        if fault is not None:
            faults[row_id] = fault
    return faults


def _fault(
    sample: Sample, conversation: Conversation, tokenizer: "PreTrainedTokenizerBase", same: Callable[[str, str], bool]
) -> str | None:
    if np.any(sample.input_ids < 0):
        return "a token id is negative"  # which no tokenizer decodes
    text, spans = render(tokenizer, conversation.turns)
    if not same(_plain(text), _plain(tokenizer.decode(sample.input_ids))):
        return "the tokens are not the conversation's text"
    if len(sample.loss_mask) != len(sample.input_ids):
        return "the mask is not as long as the row"
    answers = "".join(text[start:end] for start, end in spans)
    for special in tokenizer.all_special_tokens:  # the token that ends a turn is supervised, and stands in the span or behind it
        answers = answers.replace(special, "")
    found = tokenizer.decode(sample.input_ids[sample.loss_mask], skip_special_tokens=True)
    return None if same(_plain(answers), _plain(found)) else "the supervised tokens are not the answers"


def _begins(expected: str, found: str) -> bool:
    """Whether `found` is the beginning of `expected`; a row cut inside a character ends with half of it."""
    return expected.startswith((found, found.rstrip("\ufffd")))


def _plain(text: str) -> str:
    return _SPACE.sub("", unicodedata.normalize("NFC", text))
