"""One entry of an estimate, and the moment of a run at which its entries add up to most."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Phase = Literal["load", "start", "features", "drafter", "update", "save", "evaluate"]
PHASES: tuple[Phase, ...] = ("load", "start", "features", "drafter", "update", "save", "evaluate")
WORDS: dict[Phase, str] = {
    "load": "the target is loaded",
    "start": "the drafter is initialised",
    "features": "the target runs",
    "drafter": "the drafter runs forward and backward",
    "update": "the optimizer updates",
    "save": "a checkpoint is saved",
    "evaluate": "a checkpoint is evaluated",
}


@dataclass(frozen=True)
class Item:
    """So many bytes, why, and the phases in which they are held."""

    name: str
    bytes: float
    formula: str
    phases: frozenset[Phase]


def held(name: str, num_bytes: float, formula: str, phases: Iterable[Phase] = PHASES) -> Item:
    """An item of these phases; by default of all."""
    return Item(name, num_bytes, formula, frozenset(phases))


def since(first: Phase) -> tuple[Phase, ...]:
    """This phase and all later ones."""
    return PHASES[PHASES.index(first) :]


def peak(items: Iterable[Item]) -> tuple[Phase, float]:
    """The phase that holds most, and how many bytes that is."""
    items = tuple(items)
    totals = {phase: sum(item.bytes for item in items if phase in item.phases) for phase in PHASES}
    phase = max(totals, key=lambda p: totals[p])
    return phase, totals[phase]
