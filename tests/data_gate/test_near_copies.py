"""Near-copies: what MinHash and the exact check find is what comparing every pair finds."""

import random

import pytest

from dflash_core.data_gate.near_copies import fold, jaccard, near_pairs

WORDS = [f"{a}{b}" for a in ("bar", "dol", "fen", "gim", "hus", "jor", "kel") for b in ("a", "ino", "ust", "ekk", "ylo")]


def texts(draw: random.Random, count: int, length: int) -> list[str]:
    """Texts and edited copies of some, by more and more words."""
    found = [draw.choices(WORDS, k=length) for _ in range(count)]
    for number, words in enumerate(found[: count // 2]):
        edited = list(words)
        for _ in range(number % 5):
            edited[draw.randrange(length)] = draw.choice(WORDS)
        found.append(edited)
    return list(dict.fromkeys("".join(words) for words in found))


@pytest.mark.parametrize("length", [20, 40, 200])
def test_all_pairs_are_found_and_no_others(length: int) -> None:
    some = texts(random.Random(length), 40, length)
    expected = {(i, j) for j in range(len(some)) for i in range(j) if jaccard(some[i], some[j]) >= 0.9}
    assert expected and set(near_pairs(some, 0.9)) == expected


def test_a_crowd_of_copies_is_found_without_comparing_every_pair() -> None:
    base = "".join(random.Random(0).choices(WORDS, k=200))
    crowd = [f"{base}{number:04}" for number in range(120)]
    assert {j for _, j in near_pairs(crowd, 0.9)} == set(range(1, 120))


@pytest.mark.parametrize(("one", "two", "expected"), [("abcdefgh", "abcdefgh", 1.0), ("abcdefgh", "12345678", 0.0), ("a", "a", 1.0), ("", "a", 0.0)])
def test_similarity_of_short_texts(one: str, two: str, expected: float) -> None:
    assert jaccard(one, two) == expected


def test_folding_leaves_letters_and_digits() -> None:
    assert fold("  The\tCAFÉ, no. 7_b!\n你好 Straße") == "thecaféno7b你好strasse"
    assert near_pairs([], 0.9) == near_pairs(["one"], 0.9) == []
