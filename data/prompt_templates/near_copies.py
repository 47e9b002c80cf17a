"""Finds held-out prompts that nearly copy a training prompt."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise

NEAR = 0.7


def words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+(?:'[^\W_]+)?", text.lower())


def bigrams(text: str) -> frozenset[tuple[str, str]]:
    found = words(text)
    return frozenset(pairwise(found))


def near_duplicates(train: Iterable[str], heldout: Iterable[str]) -> list[tuple[str, str]]:
    """(held-out, training) pairs: equal words, or Jaccard similarity of bigrams >= NEAR."""
    train = list(train)
    sets = [bigrams(text) for text in train]
    same: dict[tuple[str, ...], list[int]] = defaultdict(list)
    index: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, text in enumerate(train):
        same[tuple(words(text))].append(number)
        for pair in sets[number]:
            index[pair].append(number)
    found = []
    for text in heldout:
        mine = bigrams(text)
        # The index keeps this fast: only prompts that share a bigram are compared.
        common = Counter(number for pair in mine for number in index.get(pair, ()))
        near = {n for n, c in common.items() if c / (len(mine) + len(sets[n]) - c) >= NEAR}
        found += [(text, train[n]) for n in sorted(near.union(same.get(tuple(words(text)), ())))]
    return found
