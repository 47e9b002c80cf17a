"""What a person and a program get: JSON by schema, text, a page that loads nothing, exit codes."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from dflash_core.cli import main
from dflash_core.diagnosis.chart import Chart, Mark, draw, thinned, ticks


def written(path: Path, loss: np.ndarray, **columns: np.ndarray) -> Path:
    rows = [{"step": i + 1, "loss": float(v)} | {k: float(c[i]) for k, c in columns.items()} for i, v in enumerate(loss)]
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


@pytest.fixture
def sick(tmp_path: Path) -> Path:
    """A log whose loss jumps after both checkpoints, named with markup in it."""
    loss = (1 + 5 * np.exp(-np.arange(1200) / 100)) * (1 + 0.01 * np.random.default_rng(0).normal(size=1200))
    for place in (501, 901):
        loss[place : place + 8] += np.array([4, 0.2, 3, 0.1, 2, 0.1, 1, 0.5])
    return written(tmp_path / "<b>log</b>.jsonl".replace("/", ""), loss, prefetch_queue_depth=np.linspace(300, 100, 1200))


def test_json_has_the_schema_and_the_command_exits_with_3(sick: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "d.json"
    assert main(["diagnose", str(sick), "--events", "checkpoint=500,900", "--json", str(out)]) == 3
    tree = json.loads(out.read_text())
    assert tree["schema"] == 1 and tree["verdict"] == "checkpoint_reset"
    assert tree["causes"][0].keys() >= {"cause", "confidence", "evidence"}
    assert tree["findings"][0].keys() >= {"kind", "step", "severity", "text"}
    assert tree["ruled_out"][0]["what"].startswith("non-finite")
    assert tree["understood"]["columns"]["loss"] == "loss"
    text = capsys.readouterr().out
    assert text.startswith("CHECKPOINT RESET") and "Ruled out: non-finite" in text


def test_the_page_is_self_contained_and_escapes(sick: Path, tmp_path: Path) -> None:
    page = tmp_path / "d.html"
    main(["diagnose", str(sick), "--events", "checkpoint=500,900", "--html", str(page)])
    html = page.read_text()
    assert "Checkpoints disturb the run" in html and "<b>log" not in html
    assert not re.search(r"(src|href)=\"?(https?:)?//", html) and "<script" not in html
    assert html.count("<svg") >= 4 and html.index("non-finite loss") < html.index("divergence")


def test_a_healthy_log_exits_with_0_and_what_is_no_log_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(1)
    fine = written(tmp_path / "log", (1 + np.exp(-np.arange(400) / 50)) * (1 + 0.01 * random.normal(size=400)))
    assert main(["diagnose", str(fine)]) == 0
    assert main(["diagnose", str(tmp_path / "missing")]) == 2
    (tmp_path / "text").write_text("hello\n")
    assert main(["diagnose", str(tmp_path / "text")]) == 2
    assert main(["diagnose", str(fine), "--events", "lunch=1"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_thinning_keeps_a_single_spike_and_the_page_small() -> None:
    values = np.random.default_rng(0).normal(size=1_000_000)
    values[123_456] = 50.0
    _, kept = thinned(np.arange(1_000_000.0), values, 2000)
    assert len(kept) <= 2100 and kept.max() == 50.0
    assert len(draw(Chart(steps=np.arange(1_000_000.0), values=values, title="x"))) < 60_000


@pytest.mark.parametrize("values", [[1.0], [1.0, 1.0], [np.nan, np.nan], [1e-300, 1e300], [1e-320, 1e30], [-1e300, 1e300]])
def test_charts_of_strange_numbers(values: list[float]) -> None:
    assert draw(Chart(steps=np.arange(float(len(values))), values=np.array(values), title="<x>", marks=(Mark(0.0, "1", "fault", "x"),))).startswith("<svg")


def test_ticks_are_round() -> None:
    assert ticks(0, 1000, 5) == [0, 200, 400, 600, 800, 1000]
