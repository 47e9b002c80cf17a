"""Writes data/prompts.jsonl, the project's own prompt set: python data/make_prompts.py."""

from __future__ import annotations

import json
import random
from itertools import islice
from pathlib import Path

from prompt_templates import arithmetic, code, explain, json_extraction, lists, qa, rewrite, story
from prompt_templates.core import HELDOUT, TRAIN, Category, Prompt, hand_written, templated
from prompt_templates.near_copies import near_duplicates

SEED = 20240
OUTPUT = Path(__file__).with_name("prompts.jsonl")
TRAIN_PER_CATEGORY = 400
HELDOUT_PER_CATEGORY = 40
HELDOUT_NEW_WORDING = 8  # held-out prompts whose template training never sees
TRIES = 10  # tries for each prompt wanted, as repeats and near copies are dropped

MODULES = (arithmetic, code, explain, json_extraction, lists, qa, rewrite, story)
CATEGORIES: tuple[Category, ...] = tuple(module.CATEGORY for module in MODULES)


def train_prompts(category: Category, rng: random.Random) -> list[Prompt]:
    hand = hand_written(category, TRAIN)
    wanted = TRAIN_PER_CATEGORY - len(hand)
    tries = templated(category, TRAIN, category.templates, rng, wanted * TRIES)
    return hand + list(islice(tries, wanted))


def heldout_prompts(category: Category, train: list[Prompt], rng: random.Random) -> list[Prompt]:
    prompts = hand_written(category, HELDOUT)
    known = HELDOUT_PER_CATEGORY - HELDOUT_NEW_WORDING - len(prompts)
    plan = ((category.heldout_templates, HELDOUT_NEW_WORDING), (category.templates, known))
    for templates, wanted in plan:
        tries = templated(category, HELDOUT, templates, rng, wanted * TRIES)
        prompts += fresh(list(tries), train)[:wanted]
    return prompts


def fresh(candidates: list[Prompt], train: list[Prompt]) -> list[Prompt]:
    """The candidates that do not nearly copy a training prompt."""
    pairs = near_duplicates([p.text for p in train], [p.text for p in candidates])
    copies = {heldout for heldout, _ in pairs}
    return [p for p in candidates if p.text not in copies]


def all_prompts() -> list[tuple[str, Prompt]]:
    """Every prompt with its id, by category, training prompts first."""
    numbered = []
    for category in CATEGORIES:
        rng = random.Random(f"{SEED}-{category.name}")
        train = train_prompts(category, rng)
        prompts = train + heldout_prompts(category, train, rng)
        numbered += [(f"{category.name}-{i:04d}", p) for i, p in enumerate(prompts)]
    return numbered


def record(name: str, prompt: Prompt) -> dict[str, str]:
    return {
        "id": name,
        "split": prompt.split,
        "category": prompt.category,
        "template": prompt.template,
        "prompt": prompt.text,
    }


def render(numbered: list[tuple[str, Prompt]]) -> str:
    rows = (json.dumps(record(name, prompt), ensure_ascii=False) for name, prompt in numbered)
    return "".join(row + "\n" for row in rows)


if __name__ == "__main__":
    OUTPUT.write_text(render(all_prompts()), encoding="utf-8", newline="\n")
