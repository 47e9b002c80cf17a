"""Writes what the gate says: a verdict, the bad rows, the profile of the data and a page."""

import json
from pathlib import Path

from dflash_core.data.directory import replaced_directory
from dflash_core.data_gate.inputs import Inputs
from dflash_core.data_gate.page import render
from dflash_core.data_gate.profile import Profile, profile_of
from dflash_core.data_gate.verdict import Verdict
from dflash_core.errors import DataError

VERDICT, BAD_ROWS, PROFILE, PAGE = "verdict.json", "bad_rows.jsonl", "profile.json", "page.html"
# What later stages depend on: the same bytes for the same data, so that another threshold doesn't train again.
PASSED = "passed.json"


def write_verdict(directory: Path, verdict: Verdict, inputs: Inputs) -> None:
    """Replace the directory whole; PASSED is there only where the gate says yes."""
    profile = profile_of(inputs.rows)
    with replaced_directory(directory) as place:
        _write(place / VERDICT, json.dumps(verdict.tree(), indent=1, ensure_ascii=False) + "\n")
        _write(place / BAD_ROWS, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in verdict.bad_rows()))
        _write(place / PROFILE, profile.to_json())
        _write(place / PAGE, render(verdict, profile, _reference(inputs)))
        if verdict.passed:
            _write(place / PASSED, json.dumps({"passed": True, "dataset": verdict.dataset}) + "\n")


def _reference(inputs: Inputs) -> Profile | None:
    try:
        return inputs.reference
    except DataError:  # the verdict says so
        return None


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
