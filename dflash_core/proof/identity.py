"""Whether a checkpoint, the log beside it and what is on disk belong to one run, field by field."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash_core.checkpoint.contents import Contents
from dflash_core.proof.recorded import RecordedRun, flat


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


def mismatches(contents: Contents, run: RecordedRun, saved_by: str | None, on_disk: Mapping[str, Any]) -> tuple[Mismatch, ...]:
    """Every field that differs: first within the run's directory, then between the run and the inputs on disk.

    `saved_by` is the session that saved: others may have been started with other settings, by force.
    """
    state, where, expected_identity = contents.state, "the checkpoint", run.identity(saved_by)
    found = [
        Mismatch(name, expected, value, where)
        for name, expected, value in (("run_id", run.start.run_id, state["run_id"]), ("step", contents.step, state["step"]))
        if expected != value
    ]
    found += [Mismatch(*entry, where) for entry in _differing(expected_identity, flat(state["identity"]))]
    found += [Mismatch(*entry, "what is on disk", on_disk=True) for entry in _differing(expected_identity, flat(on_disk))]
    return tuple(found)


def _differing(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    return [(key, expected.get(key), found.get(key)) for key in sorted({*expected, *found}) if expected.get(key) != found.get(key)]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:12]}..."
