"""Events as people give them, and the chance that findings come at them by accident."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dflash_core.diagnosis.correlate import at_least
from dflash_core.diagnosis.diagnose import Diagnosis
from dflash_core.diagnosis.events import parse_events
from dflash_core.errors import DataError

Diagnose = Callable[..., Diagnosis]


@pytest.mark.parametrize(
    ("text", "steps", "periods"),
    [
        ("checkpoint=2000,4001", {"checkpoint": [2000, 4001]}, {}),
        ("checkpoint=5 eval=every:500", {"checkpoint": [5]}, {"eval": 500}),
        ("resume at step 2448 (mid epoch 2 of 1632-step epochs)", {"resume": [2448]}, {"epoch": 1632}),
        ("checkpoint saved at 3000", {"checkpoint": [3000]}, {}),
        ("every checkpoint (1000 steps)", {}, {"checkpoint": 1000}),
        ("every 500 steps moments are zeroed and the mask is redrawn; checkpoints every 2000", {}, {"reset": 500, "checkpoint": 2000}),
    ],
)
def test_events_in_options_and_in_words(text: str, steps: dict[str, list[float]], periods: dict[str, float]) -> None:
    events = parse_events([text])
    assert {k: v.tolist() for k, v in events.steps.items()} == steps
    assert events.periods == periods


def test_a_kind_without_a_step_is_kept_as_such() -> None:
    assert parse_events(["resume_from_checkpoint"]).unplaced == {"resume"}
    assert not parse_events(["none"]).told


def test_a_checkpoint_directory_and_a_list(tmp_path: Path) -> None:
    for name in ("step-500", "step-1000", "latest"):
        (tmp_path / "run" / name).mkdir(parents=True)
    assert parse_events([str(tmp_path / "run")]).steps["checkpoint"].tolist() == [500, 1000]
    (tmp_path / "list").write_text("100\n200\neval=50\n")
    events = parse_events([str(tmp_path / "list")])
    assert events.steps["checkpoint"].tolist() == [100, 200] and events.steps["eval"].tolist() == [50]


@pytest.mark.parametrize("text", ["lunch=12", "checkpoint=soon", "eval=every:x"])
def test_what_is_no_event_is_refused(text: str) -> None:
    with pytest.raises(DataError):
        parse_events([text])


def test_chance_is_binomial() -> None:
    assert at_least(2, 2, 0.01) == pytest.approx(1e-4)
    assert at_least(1, 10, 0.1) == pytest.approx(1 - 0.9**10)
    assert at_least(0, 5, 0.5) == 1.0 and math.isclose(at_least(3, 3, 1.0), 1.0)


def spiky(places: list[int], n: int = 1200) -> list[dict[str, float]]:
    loss = (1 + 5 * np.exp(-np.arange(n) / 100)) * (1 + 0.01 * np.random.default_rng(0).normal(size=n))
    for place in places:
        loss[place : place + 8] += np.array([4, 0.2, 3, 0.1, 2, 0.1, 1, 0.5])
    return [{"step": i + 1, "loss": float(v)} for i, v in enumerate(loss)]


def test_spikes_at_two_of_two_checkpoints_are_named(diagnose: Diagnose) -> None:
    result = diagnose(spiky([501, 901]), "checkpoint=500,900")
    assert result.verdict.word == "checkpoint_reset" and result.causes[0].cause == "optimizer_state"
    assert all(f.detail["after_checkpoint"] in (500, 900) for f in result.findings if f.kind == "loss_spike")


def without(rows: list[dict[str, float]], *gaps: tuple[int, int]) -> list[dict[str, float]]:
    return [row for row in rows if not any(first <= row["step"] <= last for first, last in gaps)]


def test_spikes_after_gaps_point_to_saves_that_nobody_told_of(diagnose: Diagnose) -> None:
    rows = without(spiky([501, 901]), (481, 500), (885, 900))
    result = diagnose(rows)
    assert result.verdict.word == "checkpoint_reset" and "gaps in the steps" in result.verdict.sentence
    assert {c.cause for c in result.causes[:2]} == {"batches_repeated_or_lost", "optimizer_state"}
    assert max(c.confidence for c in result.causes) < 0.7
    assert diagnose(rows, "checkpoint=480,884").causes[0].confidence >= 0.7


@pytest.mark.parametrize("places", [[501, 731], [611, 731]])
def test_gaps_with_spikes_elsewhere_point_to_nothing(diagnose: Diagnose, places: list[int]) -> None:
    assert diagnose(without(spiky(places), (481, 500), (885, 900))).verdict.word != "checkpoint_reset"


def test_one_coincidence_is_not_called(diagnose: Diagnose) -> None:
    result = diagnose(spiky([501, 731]), "checkpoint=500,900")
    assert result.verdict.word != "checkpoint_reset"


def test_an_epoch_at_the_same_steps_confounds(diagnose: Diagnose) -> None:
    result = diagnose(spiky([501, 901]), "checkpoint=500,900", "epoch=500,900")
    assert result.verdict.word != "checkpoint_reset"
    cause = next(c for c in result.causes if c.cause == "optimizer_state")
    assert cause.confidence <= 0.3 and any("epoch" in text for text in cause.against)


def risen(height: float) -> list[dict[str, float]]:
    """A loss that comes down by 2.6 until step 400 and stays higher from then on."""
    steps = np.arange(1, 601)
    loss = 3 * np.exp(-steps / 200) + 1 + 0.02 * np.random.default_rng(0).normal(size=600) + height * (steps > 400)
    return [{"step": int(s), "loss": float(v)} for s, v in zip(steps, loss, strict=True)]


@pytest.mark.parametrize(("events", "confidence"), [(["checkpoint=200,400"], 0.7), (["checkpoint=200,400", "epoch=200,400"], 0.5)])
def test_a_level_that_rises_far_right_after_one_checkpoint(diagnose: Diagnose, events: list[str], confidence: float) -> None:
    result = diagnose(risen(2.0), *events)
    assert result.verdict.word == "diverged" and result.verdict.sentence.endswith("It comes right after the checkpoint at step 400.")
    assert [c.cause for c in result.causes] == ["weights", "instability"] and "coincidence" in result.causes[0].against[0]
    assert result.causes[0].confidence == confidence and len(result.causes[0].against) == len(events)
    assert {r.what: r.state for r in result.ruled}.items() >= {"lost weights": "found", "divergence": "found"}.items()


@pytest.mark.parametrize(
    ("events", "word", "first"),
    [([], "diverged", "instability"), (["checkpoint=200,400"], "diverged", "optimizer_state"), (["resume=400"], "checkpoint_reset", "optimizer_state")],
)
def test_a_rise_by_less_than_half_leaves_lost_weights_open(diagnose: Diagnose, events: list[str], word: str, first: str) -> None:
    result = diagnose(risen(1.0), *events)
    assert result.verdict.word == word and result.causes[0].cause == first and "weights" not in {c.cause for c in result.causes}
    assert next(r.state for r in result.ruled if r.what == "lost weights") == "can't be told"


def test_a_small_rise_that_stays_leaves_normal_unsure(diagnose: Diagnose) -> None:
    rows = spiky([])
    for row in rows[600:]:
        row["loss"] += 0.5
    result = diagnose(rows, "checkpoint=300,600")
    assert result.verdict.word == "inconclusive" and {c.cause: c.confidence for c in result.causes}["normal"] == 0.6


def test_a_lasting_spike_at_one_checkpoint_has_a_cause(diagnose: Diagnose) -> None:
    rows = spiky([])
    for i, row in enumerate(rows[600:640]):
        row["loss"] += 4.0 * 0.9**i
    result = diagnose(rows, "checkpoint=300,600")
    assert result.verdict.word == "unstable_recovered" and result.causes[0].cause == "instability"


def test_a_level_that_rises_at_the_resume(diagnose: Diagnose) -> None:
    rows = spiky([])
    for row in rows[600:]:
        row["loss"] += 4.0
    result = diagnose(rows, "resume=600")
    assert result.verdict.word == "checkpoint_reset" and result.causes[0].cause == "weights"
