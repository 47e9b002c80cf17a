"""Progress and loss of a training that goes on, as artifacts."""

import json
from pathlib import Path

import pytest

from tasks import progress
from tasks.progress import Curve, showing_progress

START = {"kind": "start", "total_steps": 4}


def line(record: dict[str, object]) -> str:
    return json.dumps(record) + "\n"


def step(number: int, loss: float) -> dict[str, object]:
    return {"kind": "step", "step": number, "loss": loss}


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Percentages and plots, in order."""
    made: list[object] = []
    monkeypatch.setattr(progress, "create_progress_artifact", lambda percent, key, description: made.append(percent))
    monkeypatch.setattr(progress, "update_progress_artifact", lambda artifact, percent: made.append(percent))
    monkeypatch.setattr(progress, "show_text", lambda key, markdown, description: made.append(markdown))
    return made


def test_after_a_resume_the_steps_done_again_count() -> None:
    curve = Curve()
    for record in (START, step(1, 4.0), step(2, 3.0), {"kind": "resume", "total_steps": 4}, step(2, 2.0)):
        curve.add(record)
    assert curve.percent == 50.0 and curve.losses == {1: 4.0, 2: 2.0}


def test_the_end_of_a_training_is_shown_with_its_plot(tmp_path: Path, shown: list[object]) -> None:
    log = tmp_path / "log"
    with showing_progress(log):
        log.write_text(line(START) + "".join(line(step(n, 5.0 / n)) for n in range(1, 5)))
    assert shown[0] == 100.0
    assert shown[1].startswith("![loss by step](data:image/svg+xml;base64,") and "step 4 of 4, loss 1.25" in shown[1]
    assert len(shown) == 2


def test_a_stage_that_is_up_to_date_shows_nothing(tmp_path: Path, shown: list[object]) -> None:
    log = tmp_path / "log"
    log.write_text(line(START) + line(step(1, 1.0)))
    with showing_progress(log):
        pass
    assert shown == []
