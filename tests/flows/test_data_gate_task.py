"""What the data gate says reaches a person: a text in the UI and, where it is a no, an event; once for each verdict."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tasks import data_gate


def verdict(*failed: str) -> dict[str, Any]:
    same = {"table": "tokens", "says": "No a|b.", "limit": "data_gate.max_ab", "observed": "3 of 9", "fault": None}
    rows = [same | {"name": n, "passed": n not in failed} for n in ("one", "two")]
    return {"passed": not failed, "dataset": "d", "facts": {"rows": "9"}, "failed": list(failed), "expectations": rows}


@pytest.mark.parametrize("failed", [(), ("two",)], ids=["yes", "no"])
def test_a_new_verdict_is_shown_and_a_no_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: tuple[str, ...]) -> None:
    shown: list[str] = []
    told: list[tuple[str, dict[str, Any]]] = []
    file = tmp_path / "build/data_gate/verdict.json"
    file.parent.mkdir(parents=True)

    def stage(workspace: Any, name: str, force: bool) -> bool:
        if force:
            file.write_text(json.dumps(verdict(*failed)))
        if force and failed:
            raise RuntimeError("exit code 3")
        return force

    monkeypatch.setattr(data_gate, "run_if_needed", stage)
    monkeypatch.setattr(data_gate, "show_text", lambda key, markdown, description: shown.append(markdown))
    monkeypatch.setattr(data_gate, "tell", lambda event, about, **payload: told.append((event, payload)))
    place = SimpleNamespace(root=tmp_path)
    try:
        data_gate.check_data.fn(place, True)
    except RuntimeError:
        assert failed
    data_gate.check_data.fn(place, False)
    assert len(shown) == 1, "what is up to date says nothing new"
    assert ("**Passed**: all 2" in shown[0]) == (not failed) and "No a\\|b. `data_gate.max_ab` |" in shown[0]
    assert shown[0].splitlines()[4].startswith("| **no** | tokens | two |" if failed else "| yes | tokens | one |")
    expected = [("data.refused", {"workspace": tmp_path.name, "dataset": "d", "failed": ["two"]})]
    assert told == (expected if failed else [])
