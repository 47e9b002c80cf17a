"""The report page: complete, self-contained, and honest about missing numbers."""

import dataclasses
import math
import re

import numpy as np
import pytest

from dflash_core.report.facts import Facts, Measured, ProofRow, SampleDecode, TrainingCurves
from dflash_core.report.figures import _lengths, draw_all, smooth
from dflash_core.report.page import render


def measured(tau: float = 1.7, num_prompts: int = 8) -> Measured:
    return Measured(
        tau=tau,
        low=tau - 0.15,
        high=tau + 0.2,
        num_prompts=num_prompts,
        num_rounds=1000,
        num_tokens=int(1000 * tau),
        histogram=(560, 240, 110, 50, 20, 10, 6, 4),
        survival=(0.44, 0.2, 0.09, 0.04, 0.02, 0.01, 0.004),
    )


def synthetic(num_steps: int = 900) -> Facts:
    """A run with the shape of a real one: falling loss, rising acceptance, a cosine schedule."""
    random = np.random.default_rng(0)
    steps = np.arange(1, num_steps + 1)
    progress = steps / num_steps
    return Facts(
        title="demo <run>",
        headline={"τ": "1.70", "95 %": "1.55 to 1.90", "steps": str(num_steps), "output": "identical"},
        identity={"target": "models/smollm2-135m-instruct", "torch": "2.13.0", "run": "0f3a"},
        evaluation={"pooled τ": "1.70", "rounds": "1000"},
        curves=TrainingCurves(
            steps=tuple(steps.tolist()),
            loss=tuple((3 + 6 * np.exp(-6 * progress) + random.normal(0, 0.15, num_steps)).tolist()),
            streak=tuple((1 + 0.8 * progress + random.normal(0, 0.05, num_steps)).tolist()),
            lr=tuple((1e-3 * 0.5 * (1 + np.cos(math.pi * progress))).tolist()),
            grad_norm=tuple((1 + 4 * np.exp(-8 * progress) + random.gamma(2, 0.1, num_steps)).tolist()),
            slot_accuracy=(0.5, 0.36, 0.28, 0.22, 0.19, 0.17, 0.15),
            eval_steps=tuple(range(100, num_steps + 1, 100)),
            eval_tau=tuple((1 + 0.75 * np.linspace(0.3, 1, num_steps // 100)).tolist()),
        ),
        overall=measured(),
        categories={"arithmetic": measured(2.1, 5), "story": measured(1.4, 4), "small code": measured(1.9, 6)},
        buckets=tuple((32 * k, int(200 * math.exp(-((k - 5) ** 2) / 8))) for k in range(1, 13)),
        bucket_multiple=32,
        lengths=tuple((8 * k, int(50 * math.exp(-((k / 4 - 4.5) ** 2) / 8))) for k in range(48)),
        padding_waste=0.087,
        samples=(
            SampleDecode(
                sample_id="p-17",
                category="arithmetic",
                tau=2.5,
                prompt="Anna has 3 apples & buys 4 more. How many <b>apples</b> has she?",
                blocks=((0, "Anna"), (1, " starts"), (3, " with 3 apples"), (2, ". She"), (4, " buys 4 more,"), (8, " so she has 3 + 4 = 7.\n"), (1, "7")),
            ),
        ),
        proofs=(
            ProofRow(name="step-00000300", status="proven", sound=True, fault=None, first_difference=None, reason="3 steps as they were."),
            ProofRow(
                name="step-00000600", status="rejected", sound=False, fault="moments", first_difference="step 602: loss <2>", reason="Differs."
            ),
        ),
        raw_evaluation={},
    )


@pytest.fixture(scope="module")
def figures() -> dict[str, str]:
    return draw_all(synthetic(60))


def test_page_shows_every_figure_and_loads_nothing_from_outside(figures: dict[str, str]) -> None:
    facts = synthetic(60)
    assert list(figures) == ["loss", "acceptance", "positions", "rounds", "categories", "lengths", "optimizer"]
    page = render(facts, figures)
    assert len(re.findall(r'<img [^>]*src="data:image/svg\+xml;base64,', page)) == len(figures)
    assert not re.search(r"https?://", page)
    assert not re.search(r"<(script|link|iframe)|url\(|@import", page)
    assert "demo &lt;run&gt;" in page and "&lt;b&gt;apples&lt;/b&gt;" in page


def test_each_checkpoint_has_a_row_with_its_status_first_difference_and_class() -> None:
    facts = synthetic(20)
    page = render(facts, {})
    row = page.split("step-00000600")[1].split("</tr>")[0]
    assert 'class="bad">rejected<' in row and "<td>moments</td>" in row and "step 602: loss &lt;2&gt;" in row
    assert 'class="good">proven<' in page.split("step-00000300")[1].split("</tr>")[0]
    assert "their proofs" not in render(dataclasses.replace(facts, proofs=()), {})


def test_blocks_are_coloured_by_what_was_committed() -> None:
    page = render(synthetic(20), {})
    assert '<span class="n0">Anna</span>' in page
    assert '<span class="n3"> with 3 apples</span>' in page
    assert '<span class="n5"> so she has 3 + 4 = 7.\n</span>' in page


def test_same_facts_give_the_same_bytes(figures: dict[str, str]) -> None:
    assert draw_all(synthetic(60)) == figures


def test_smoothing_keeps_the_average_over_missing_values() -> None:
    np.testing.assert_allclose(smooth([2.0, None, 4.0], span=3), [2.0, 2.0, 3.0])
    assert np.isnan(smooth([None, 1.0], span=3)[0])


def test_a_run_of_one_step_is_drawn() -> None:
    facts = synthetic(200)
    c = facts.curves
    few = TrainingCurves(
        steps=c.steps[:1], loss=c.loss[:1], streak=(None,), lr=c.lr[:1],
        grad_norm=c.grad_norm[:1], slot_accuracy=(None,), eval_steps=(), eval_tau=(),
    )  # fmt: skip
    assert "loss" in draw_all(Facts(**{**vars(facts), "curves": few}))


def test_names_of_categories_are_no_formulas_and_may_be_long() -> None:
    categories = {"from $5 to \\bad{$6}": measured(), "a very long " * 30: measured(1.5)}
    svg = draw_all(dataclasses.replace(synthetic(20), categories=categories))["categories"]
    assert len(svg) > 1000


def test_an_interval_beside_its_value_and_a_missing_one_are_drawn() -> None:
    beside = dataclasses.replace(measured(1.7), low=1.8, high=1.8)
    missing = dataclasses.replace(measured(1.7), low=None, high=None)
    for odd in (beside, missing):
        figures = draw_all(dataclasses.replace(synthetic(20), overall=odd, categories={"a": odd, "b": odd}))
        assert {"acceptance", "categories"} <= set(figures)


def test_sparse_buckets_keep_their_multiple_and_the_legend_covers_no_data() -> None:
    figure = _lengths(dataclasses.replace(synthetic(20), buckets=((64, 3), (160, 2))))
    assert "multiples of 32" in " ".join(text.get_text() for text in figure.legends[0].get_texts())
    assert [bar.get_width() for bar in figure.axes[0].patches] == pytest.approx([32 * 0.94] * 2, rel=1e-6)
    assert figure.axes[0].get_legend() is None
