"""Fills a category's templates so that no filler is used in both splits."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle, islice

TRAIN, HELDOUT = "train", "heldout"
HAND = "hand"
_HELDOUT_ONE_IN = 6
_HASH_START = 357  # chosen so that every pool holds out 12 to 21 % of its values
_SLOT = re.compile(r"\{(?!ask\})([a-z]+)\d?\}")  # {ask} is filled together with its text

Pools = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Category:
    """One kind of request: how it is worded and what it can be about."""

    name: str
    templates: Mapping[str, str]
    heldout_templates: Mapping[str, str]  # wordings that training never sees
    fillers: Pools  # what a prompt is about: each value belongs to one split
    details: Pools  # numbers, moods and the like: both splits may use them
    hand_train: tuple[str, ...]
    hand_heldout: tuple[str, ...]


@dataclass(frozen=True)
class Prompt:
    """One user message, with the fillers that make it belong to its split."""

    split: str
    category: str
    template: str
    text: str
    fillers: frozenset[str]


def parts(text: str) -> tuple[str, ...]:
    """Short fillers, separated by semicolons."""
    return tuple(" ".join(part.split()) for part in text.split(";"))


def bullets(text: str) -> tuple[str, ...]:
    """Long fillers, each starting with "- " and wrapped as the file needs."""
    pieces = re.split(r"^- ", text, flags=re.MULTILINE)
    return tuple(" ".join(piece.split()) for piece in pieces if piece.strip())


def subject(filler: str) -> str:
    """The filler without the questions that may follow it after bars."""
    return filler.split(" | ")[0]


def split_of(filler: str) -> str:
    """The one split that may use the filler."""
    # A hash, not a shuffle, so that adding a filler never moves another one.
    held_out = zlib.crc32(subject(filler).encode(), _HASH_START) % _HELDOUT_ONE_IN == 0
    return HELDOUT if held_out else TRAIN


def normalized(text: str) -> str:
    """Lower case, with single spaces."""
    return " ".join(text.lower().split())


def fill(template: str, category: Category, split: str, rng: random.Random) -> tuple[str, frozenset[str]]:
    """The filled template and the fillers used; {x} and {x2} are two values of pool x."""
    text = template
    used: set[str] = set()
    taken: set[str] = set()
    while match := _SLOT.search(text):
        slot, pool = match.group(0), match.group(1)
        own = pool in category.fillers
        options = category.fillers[pool] if own else category.details[pool]
        allowed = [o for o in options if o not in taken and not (own and split_of(o) != split)]
        value = rng.choice(allowed)
        taken.add(value)
        if own:
            used.add(subject(value))
        text = _insert(text, slot, value, rng)
    return text, frozenset(used)


def _insert(text: str, slot: str, value: str, rng: random.Random) -> str:
    """Puts the value in its slot, and one of the questions that come with it in {ask}."""
    content, *asks = value.split(" | ")
    if asks:
        text = text.replace("{ask}", rng.choice(asks))
    return text.replace(slot, content)


def templated(category: Category, split: str, templates: Mapping[str, str], rng: random.Random, tries: int) -> Iterator[Prompt]:
    """The distinct prompts among the given number of tries, taking the templates in turn."""
    seen: set[str] = set()
    for name in islice(cycle(templates), tries):
        text, used = fill(templates[name], category, split, rng)
        if normalized(text) not in seen:
            seen.add(normalized(text))
            yield Prompt(split, category.name, name, text, used)


def hand_written(category: Category, split: str) -> list[Prompt]:
    texts = category.hand_train if split == TRAIN else category.hand_heldout
    return [Prompt(split, category.name, HAND, text, _mentioned(text, category)) for text in texts]


def _mentioned(text: str, category: Category) -> frozenset[str]:
    """The category's fillers that a hand-written prompt happens to use."""
    every = (subject(value) for pool in category.fillers.values() for value in pool)
    return frozenset(f for f in every if re.search(rf"(?<!\w){re.escape(f)}(?!\w)", text))
