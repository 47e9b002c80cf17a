"""Draws the report's figures as SVG; the only importer of matplotlib.

SVG stays sharp on paper, and text drawn as paths needs no font of the reader's. Figures are drawn through the object
interface, without pyplot: that has a global state and wants a display.
"""

import io
import textwrap
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator

from dflash_core.report.facts import Facts, Measured, TrainingCurves

INK = "#1f2933"
BLUE = "#1f6fb4"
ORANGE = "#d9730d"
GREEN = "#2f8f5b"
PALE = "#b9d3ea"
GRID = "#e4e7eb"
SIZE_INCHES = (6.4, 3.3)
# More points than pixels only make the file larger: 6.4 inches at 150 dpi.
MOST_POINTS = 960
MOST_NAME = 40
STYLE = {
    "svg.fonttype": "path",
    "svg.hashsalt": "dflash",  # ids, and so the file's bytes, are the same from run to run
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "legend.frameon": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def draw_all(facts: Facts) -> dict[str, str]:
    """Every figure the facts give reason for, as SVG text by name, in the page's order."""
    with matplotlib.rc_context(STYLE):
        figures: dict[str, Figure] = {}
        if facts.curves.steps:
            figures["loss"] = _loss(facts.curves)
            figures["acceptance"] = _acceptance(facts.curves, facts.overall)
        if facts.overall.survival:
            figures["positions"] = _positions(facts.overall, facts.curves.slot_accuracy)
            figures["rounds"] = _rounds(facts.overall)
        if len(facts.categories) > 1:
            figures["categories"] = _categories(facts.categories)
        if facts.buckets:
            figures["lengths"] = _lengths(facts)
        if facts.curves.steps:
            figures["optimizer"] = _optimizer(facts.curves)
        return {name: _svg(figure) for name, figure in figures.items()}


def smooth(values: Sequence[float | None], span: int) -> np.ndarray:
    """Exponential moving average with the weight of `span` steps; a missing value keeps the average. float64 [N]."""
    average, out = float("nan"), np.empty(len(values))
    for index, value in enumerate(values):
        if value is not None:
            average = value if np.isnan(average) else average + (value - average) * 2 / (span + 1)
        out[index] = average
    return out


def _loss(curves: TrainingCurves) -> Figure:
    figure, axes = _axes("optimizer step", "loss")
    keep = _thin(len(curves.steps))
    steps = np.asarray(curves.steps)
    axes.plot(steps[keep], np.asarray(curves.loss)[keep], color=PALE, linewidth=0.8, label="each step")
    axes.plot(steps[keep], smooth(curves.loss, _span(curves))[keep], color=BLUE, linewidth=1.6, label="moving average")
    _legend(figure)
    return figure


def _acceptance(curves: TrainingCurves, overall: Measured) -> Figure:
    figure, axes = _axes("optimizer step", "tokens per target forward")
    keep = _thin(len(curves.steps))
    steps = np.asarray(curves.steps)
    axes.plot(steps[keep], smooth(curves.streak, _span(curves))[keep], color=PALE, linewidth=1.6, label="streak in training")
    if curves.eval_steps:
        axes.plot(curves.eval_steps, curves.eval_tau, "o-", color=BLUE, markersize=4, linewidth=1.4, label="τ, held out, at checkpoints")
    if overall.tau is not None:
        axes.errorbar(
            [steps[-1]], [overall.tau], yerr=_interval(overall), fmt="D", color=ORANGE, capsize=4, markersize=6, label="τ, real decoding, 95 %"
        )
    axes.axhline(1.0, color=INK, linewidth=0.8, linestyle=":")
    _legend(figure)
    return figure


def _optimizer(curves: TrainingCurves) -> Figure:
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    keep = _thin(len(curves.steps))
    steps = np.asarray(curves.steps)
    upper.plot(steps[keep], np.asarray(curves.lr)[keep], color=GREEN, linewidth=1.4)
    upper.set_ylabel("learning rate")
    upper.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2))
    lower.plot(steps[keep], np.asarray(curves.grad_norm)[keep], color=PALE, linewidth=0.8)
    lower.plot(steps[keep], smooth(curves.grad_norm, _span(curves))[keep], color=BLUE, linewidth=1.4)
    lower.set_ylabel("gradient norm")
    lower.set_xlabel("optimizer step")
    if min(curves.grad_norm) > 0:
        lower.set_yscale("log", subs=[])
        lower.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        lower.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    return figure


def _positions(overall: Measured, slot_accuracy: Sequence[float | None]) -> Figure:
    """Bars fall along the block; a slot's own quality is the share accepted where everything before it was."""
    figure, axes = _axes("slot of the block", "share")
    survival = np.asarray(overall.survival)
    before = np.concatenate([[1.0], survival[:-1]])
    slots = np.arange(1, len(survival) + 1)
    axes.bar(slots, survival, color=PALE, label="of all rounds")
    reached = before > 0
    axes.plot(slots[reached], (survival[reached] / before[reached]), "o-", color=BLUE, markersize=4, label="of rounds that reached it")
    known = [(k, a) for k, a in enumerate(slot_accuracy, start=1) if a is not None]
    if known:
        axes.plot(*zip(*known, strict=True), "s--", color=ORANGE, markersize=3.5, linewidth=1, label="accuracy in training, on its own")
    axes.set_ylim(0, 1)
    axes.set_xticks(slots)
    _legend(figure)
    return figure


def _rounds(overall: Measured) -> Figure:
    figure, axes = _axes("tokens committed by a target forward", "share of rounds")
    counts = np.asarray(overall.histogram, dtype=float)
    bars = axes.bar(np.arange(1, len(counts) + 1), counts / max(counts.sum(), 1), color=BLUE)
    axes.bar_label(bars, labels=[f"{int(c)}" for c in counts], fontsize=7, color=INK, padding=1)
    axes.set_xticks(np.arange(1, len(counts) + 1))
    return figure


def _categories(categories: dict[str, Measured]) -> Figure:
    known = sorted(((m.tau, name, m) for name, m in categories.items() if m.tau is not None), key=lambda row: row[:2])
    height = max(SIZE_INCHES[1], 0.3 * len(known) + 0.8)
    figure, axes = _axes("τ, tokens per target forward", "", (SIZE_INCHES[0], height))
    for row, (tau, _, measured) in enumerate(known):
        axes.barh(row, tau, color=PALE)
        axes.errorbar([tau], [row], xerr=_interval(measured), fmt="o", color=BLUE, capsize=3, markersize=4)
    names = [f"{textwrap.shorten(name, MOST_NAME, placeholder='…')} ({m.num_prompts})" for _, name, m in known]
    axes.set_yticks(range(len(known)), names, parse_math=False)  # a dollar in a name is no formula
    axes.axvline(1.0, color=INK, linewidth=0.8, linestyle=":")
    axes.grid(axis="y", visible=False)
    return figure


def _lengths(facts: Facts) -> Figure:
    figure, axes = _axes("tokens of a sample", "samples")
    bounds, rows = np.asarray(facts.buckets).T
    multiple = facts.bucket_multiple
    axes.bar(bounds - multiple / 2, rows, width=multiple * 0.94, color=PALE, label=f"buckets, multiples of {multiple}: padding {facts.padding_waste:.1%}")
    if facts.lengths:
        lower, count = np.asarray(facts.lengths).T
        width = int(np.diff(lower).min()) if len(lower) > 1 else multiple
        # The finer bins are scaled to the buckets' area, so that both show one density.
        axes.step(lower, count * multiple / width, where="post", color=BLUE, linewidth=1, label=f"lengths, in samples a {multiple} tokens")
    _legend(figure)
    return figure


def _interval(measured: Measured) -> list[list[float]] | None:
    """Lengths of an error bar; few draws can give an interval that the value itself lies beside."""
    if measured.tau is None or measured.low is None or measured.high is None:
        return None
    return [[max(measured.tau - measured.low, 0)], [max(measured.high - measured.tau, 0)]]


def _legend(figure: Figure) -> None:
    """Above the axes, where no curve can run: a good drafter's fill every corner."""
    figure.legend(loc="outside upper left", ncols=3, fontsize=8)


def _axes(x: str, y: str, size: tuple[float, float] = SIZE_INCHES) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return figure, axes


def _thin(count: int) -> np.ndarray:
    """Indices of at most `MOST_POINTS` entries, the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, MOST_POINTS)).astype(int))


def _span(curves: TrainingCurves) -> int:
    """Steps of a moving average: a thirtieth of the run shows its shape without its noise."""
    return max(5, len(curves.steps) // 30)


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
