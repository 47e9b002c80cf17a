"""Checks the prompt set: reproducible, balanced, and without leaks between the splits."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

DATA = Path(__file__).parents[2] / "data"
sys.path.insert(0, str(DATA))  # the generator stands alone and is no installed package

import make_prompts
from prompt_templates.core import HAND, HELDOUT, TRAIN, Prompt, normalized, split_of, subject
from prompt_templates.near_copies import near_duplicates

NAMES = {"explain", "list", "story", "arithmetic", "code", "rewrite", "qa", "json"}
KEYS = ["id", "split", "category", "template", "prompt"]


@pytest.fixture(scope="module")
def made() -> list[tuple[str, Prompt]]:
    return make_prompts.all_prompts()


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    return [json.loads(line) for line in make_prompts.OUTPUT.read_text(encoding="utf-8").splitlines()]


def texts(rows: list[dict[str, str]], split: str) -> list[str]:
    return [row["prompt"] for row in rows if row["split"] == split]


def fillers(made: list[tuple[str, Prompt]], category: str, split: str) -> set[str]:
    own = (p.fillers for _, p in made if (p.category, p.split) == (category, split))
    return set().union(*own)


def test_generator_reproduces_the_committed_file(made: list[tuple[str, Prompt]]) -> None:
    assert make_prompts.render(made).encode() == make_prompts.OUTPUT.read_bytes()


def test_every_line_has_the_same_keys_and_a_unique_id(rows: list[dict[str, str]]) -> None:
    assert all(list(row) == KEYS and row["prompt"].strip() for row in rows)
    assert len({row["id"] for row in rows}) == len(rows)
    assert [row["id"] for row in rows] == sorted(row["id"] for row in rows)


def test_categories_are_balanced(rows: list[dict[str, str]]) -> None:
    counts = Counter((row["category"], row["split"]) for row in rows)
    assert counts == {(name, split): n for name in NAMES for split, n in ((TRAIN, 400), (HELDOUT, 40))}


def test_each_category_has_twenty_hand_written_prompts(rows: list[dict[str, str]]) -> None:
    assert Counter(row["category"] for row in rows if row["template"] == HAND) == {name: 20 for name in NAMES}


def test_no_slot_is_left_unfilled(rows: list[dict[str, str]]) -> None:
    slots = [f"{{{pool}}}" for c in make_prompts.CATEGORIES for pool in (*c.fillers, *c.details, "ask")]
    assert not [row["id"] for row in rows if any(slot in row["prompt"] for slot in slots)]


def test_no_prompt_comes_twice(rows: list[dict[str, str]]) -> None:
    assert max(Counter(normalized(row["prompt"]) for row in rows).values()) == 1


def test_no_filler_is_in_both_splits(made: list[tuple[str, Prompt]]) -> None:
    for name in NAMES:
        train, heldout = fillers(made, name, TRAIN), fillers(made, name, HELDOUT)
        assert train and heldout and not train & heldout, name


def test_a_filler_keeps_its_split_whatever_question_follows_it() -> None:
    filler = "The pool closes early. | When? | Why?"
    assert split_of(filler) == split_of(subject(filler)) == split_of("The pool closes early. | Who?")


@pytest.mark.parametrize("category", make_prompts.CATEGORIES, ids=lambda c: c.name)
def test_a_quarter_of_heldout_prompts_use_wording_unseen_in_training(
    made: list[tuple[str, Prompt]], category: make_prompts.Category
) -> None:
    prompts = [p for _, p in made if p.category == category.name]
    trained = {p.template for p in prompts if p.split == TRAIN} - {HAND}
    heldout = [p.template for p in prompts if p.split == HELDOUT]
    assert len(category.templates) >= 14
    assert 4 * sum(template not in trained for template in heldout) >= len(heldout)


def test_no_heldout_prompt_nearly_copies_a_training_prompt(rows: list[dict[str, str]]) -> None:
    assert near_duplicates(texts(rows, TRAIN), texts(rows, HELDOUT)) == []


CHANGES: dict[str, Callable[[str], str]] = {
    "capitals": str.upper,
    "spaces": lambda text: text.replace(" ", "  ").rstrip(".?"),
    "one more word": lambda text: text + " Please.",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_planted_near_copy_is_found(rows: list[dict[str, str]], change: Callable[[str], str]) -> None:
    train = texts(rows[:600], TRAIN)
    copied = max(train, key=len)
    assert (change(copied), copied) in near_duplicates(train, [change(copied)])


def test_a_one_word_copy_is_found_and_a_different_prompt_is_not() -> None:
    assert near_duplicates(["Hello!"], ["hello"]) == [("hello", "Hello!")]
    assert near_duplicates(["Explain tides in two sentences."], ["Explain rust in two sentences."]) == []
