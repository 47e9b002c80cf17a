"""A verdict is told once: who is evaluated for it must not be evaluated each night."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tasks import proof
from tasks.tracking import Tracker


def verdict(name: str, outcome: str) -> dict[str, object]:
    return {"name": name, "outcome": outcome, "sound": outcome == "proven", "digest": "d", "reason": "r", "fault": None}


def test_each_new_verdict_is_an_event_and_all_are_the_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: list[tuple[str, str, str]] = []
    tables: list[list[dict[str, object]]] = []
    monkeypatch.setattr(proof, "tell", lambda event, resource, **payload: told.append((event, resource, payload["checkpoint"])))
    monkeypatch.setattr(proof, "show_table", lambda key, rows, description: tables.append(rows))
    place = SimpleNamespace(root=tmp_path / "demo")
    old, good, bad = verdict("step-1", "proven"), verdict("step-2", "proven"), verdict("step-3", "rejected")
    proof._pass_on(place, Tracker("", None), [old], [old, good, bad])
    assert told == [("checkpoint.proven", "checkpoint.demo.step-2", "step-2"), ("checkpoint.rejected", "checkpoint.demo.step-3", "step-3")]
    assert [row["name"] for row in tables[0]] == ["step-1", "step-2", "step-3"]
    proof._pass_on(place, Tracker("", None), [old, good, bad], [old, good, bad])
    assert len(told) == 2 and len(tables) == 1
    again = [old, good | {"reason": "again"}, bad]
    proof._pass_on(place, Tracker("", None), [old, good, bad], again)
    assert len(told) == 2 and len(tables) == 2, "proven once more: a person sees it, and nothing is evaluated for it"
