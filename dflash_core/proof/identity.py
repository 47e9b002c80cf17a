"""Whether a checkpoint, the log beside it and what is on disk belong to one run, field by field."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash_core.checkpoint.store import Contents
from dflash_core.proof.recorded import RecordedRun


@dataclass(frozen=True)
class Mismatch:
    """One field with two values. `on_disk` where the checkpoint is right about its run and the inputs have changed."""

    field: str
    expected: Any
    found: Any
    where: str
    on_disk: bool = False

    @property
    def text(self) -> str:
        """For the verdict."""
        return f"{self.field} is {_short(self.found)} in {self.where}, expected {_short(self.expected)}"


def mismatches(contents: Contents, run: RecordedRun, on_disk: Mapping[str, Any]) -> tuple[Mismatch, ...]:
    """Every field that differs: first within the run's directory, then between the run and the inputs on disk."""
    state, where = contents.state, "the checkpoint"
    found = [
        Mismatch(name, expected, value, where)
        for name, expected, value in (("run_id", run.start.run_id, state["run_id"]), ("step", contents.step, state["step"]))
        if expected != value
    ]
    found += [Mismatch(*entry, where) for entry in _differing(run.start.identity, state["identity"])]
    found += [Mismatch(*entry, "what is on disk", on_disk=True) for entry in _differing(run.start.identity, on_disk)]
    return tuple(found)


def _differing(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    wanted, there = flat(expected), flat(found)
    return [(key, wanted.get(key), there.get(key)) for key in sorted(wanted | there) if wanted.get(key) != there.get(key)]


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves by dotted key; tuples as JSON gives them back, as lists."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            leaves |= flat(value, f"{prefix}{key}.")
        else:
            leaves[prefix + key] = list(value) if isinstance(value, tuple) else value
    return leaves


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:12]}..."
