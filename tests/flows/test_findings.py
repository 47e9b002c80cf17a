"""Findings become one artifact that grows; that it can't be made is no fault of the run."""

import json
from pathlib import Path

import pytest

from tasks import findings, log_tail
from tasks.findings import as_markdown, showing_findings


def line(step: int, text: str = "it jumps") -> str:
    return json.dumps({"kind": "finding", "what": "loss_spike", "step": step + 9, "at_step": step, "severity": "fault", "text": text}) + "\n"


def test_each_new_finding_makes_a_version_with_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(findings, "create_markdown_artifact", lambda markdown, key, description: made.append(markdown))
    log = tmp_path / "log"
    log.write_text('{"kind": "step", "step": 1}\n' + line(5) + '{"kind": "torn\n' + line(7)[:20])
    with showing_findings(log):
        pass
    with showing_findings(tmp_path / "none"):
        pass
    assert made == [as_markdown([json.loads(line(5))])]
    assert as_markdown([json.loads(line(5)), json.loads(line(7, "a|b"))]).splitlines()[2:] == [
        "| 7 | loss spike | fault | a\\|b. |",
        "| 5 | loss spike | fault | it jumps. |",
    ]


def test_new_records_wait_for_whole_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(line(5) + line(7)[:20])
    first, offset = log_tail.new_records(log, 0)
    log.write_text(line(5) + line(7))
    assert [r["at_step"] for r in [*first, *log_tail.new_records(log, offset)[0]]] == [5, 7]


def test_an_artifact_that_cannot_be_made_only_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []

    class Logger:
        def warning(self, text: str, *parts: object) -> None:
            warnings.append(text % parts)

    def dead(markdown: str, key: str, description: str) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(findings, "create_markdown_artifact", dead)
    monkeypatch.setattr(findings, "get_run_logger", Logger)
    (tmp_path / "log").write_text(line(5))
    with showing_findings(tmp_path / "log"):
        pass
    assert warnings == ["the findings were not shown (ConnectionError: no route); the run goes on"]
