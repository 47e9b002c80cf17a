"""Draws line charts as SVG text: a few thousand lines or a million look the same, since each pixel column keeps its extremes."""

from dataclasses import dataclass, field
from html import escape

import numpy as np

INK, SOFT, GRID = "#1f2933", "#616e7c", "#e4e7eb"
BLUE, PALE = "#1f6fb4", "#dbe8f4"
SEVERITY = {"fault": "#c8322b", "warning": "#d9730d", "note": "#8896a5"}
EVENTS = {"checkpoint": "#2f8f5b", "resume": "#7b4fb0", "reset": "#7b4fb0", "epoch": "#b08a2e", "eval": "#5aa3b5"}
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 22, 34
# More marks than this are a hatch that hides the curve.
MOST_MARKS = 60
LOG_FROM = 8.0
FLAG_ROOM, MOST_FLAG_ROWS = 20, 6
# Share of the height that stays free for the flags.
HEAD_ROOM = 0.1


@dataclass(frozen=True)
class Mark:
    """A finding on the curve: a numbered flag."""

    step: float
    label: str
    severity: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Chart:
    """What to draw.

    Fields:
        steps, values: the series; NaN breaks the line.
        title: above the plot.
        events: steps by kind, as thin vertical lines.
        marks: findings.
        band: low and high, shaded across the plot.
        level: a dashed horizontal line.
        stretch: steps between which the plot is shaded.
        nonfinite: steps whose value isn't finite, marked at the top.
        linear: never a logarithmic axis.
    """

    steps: np.ndarray
    values: np.ndarray
    title: str
    events: dict[str, np.ndarray] = field(default_factory=dict)
    marks: tuple[Mark, ...] = ()
    band: tuple[float, float] | None = None
    level: float | None = None
    stretch: tuple[float, float] | None = None
    nonfinite: np.ndarray = field(default_factory=lambda: np.zeros(0))
    width: int = 1040
    height: int = 300
    dots: bool = False
    linear: bool = False


@dataclass(frozen=True)
class _Scale:
    """From data to pixels."""

    chart: Chart
    x_low: float
    x_high: float
    y_low: float
    y_high: float
    log: bool

    def x(self, steps: np.ndarray | float) -> np.ndarray:
        span = self.x_high - self.x_low or 1.0
        return LEFT + (np.asarray(steps) - self.x_low) / span * (self.chart.width - LEFT - RIGHT)

    def y(self, values: np.ndarray | float) -> np.ndarray:
        v = np.asarray(values, dtype=float)
        v = np.log10(np.maximum(v, 1e-300)) if self.log else v
        low, high = (np.log10(self.y_low), np.log10(self.y_high)) if self.log else (self.y_low, self.y_high)
        part = np.clip((v - low) / ((high - low) or 1.0), -0.02, 1.02)
        return TOP + (1 - part) * (self.chart.height - TOP - BOTTOM)


def draw(chart: Chart) -> str:
    """The chart as an SVG element."""
    with np.errstate(all="ignore"):  # a span of numbers near the float's own may overflow: the plot is then empty
        return _drawn(chart, _scale(chart))


def _drawn(chart: Chart, scale: _Scale) -> str:
    parts = [
        f'<svg viewBox="0 0 {chart.width} {chart.height}" role="img" aria-label="{escape(chart.title)}" font-size="12" fill="{INK}">',
        f'<text x="{LEFT}" y="14" font-weight="600">{escape(chart.title)}</text>',
        *_axes(chart, scale),
        *_under(chart, scale),
        *_events(chart, scale),
        *_line(chart, scale),
        *_marks(chart, scale),
        "</svg>",
    ]
    return "\n".join(parts)


def _scale(chart: Chart) -> _Scale:
    good = np.isfinite(chart.values)
    values = chart.values[good]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    log = not chart.linear and low > 0 and high / low > LOG_FROM
    if not log:
        pad = 0.06 * (high - low) or abs(high) * 0.05 or 1.0
        low, high = low - pad, high + pad
    else:
        low, high = low / 1.1, high * 1.15
    if chart.marks:
        # Bounded, since what lies near the float's own limits would become infinite.
        high = min(high * min(high / low, 1e300) ** HEAD_ROOM, max(high, 1e300)) if log else high + HEAD_ROOM * (high - low)
    first, last = float(chart.steps[0]), float(chart.steps[-1])
    return _Scale(chart, first, last if last > first else first + 1, low, high, log)


def _axes(chart: Chart, s: _Scale) -> list[str]:
    out = []
    bottom = chart.height - BOTTOM
    for tick in log_ticks(s.y_low, s.y_high) if s.log else ticks(s.y_low, s.y_high, max(4, chart.height // 55)):
        y = float(s.y(tick))
        out.append(f'<path d="M{LEFT} {y:.1f}H{chart.width - RIGHT}" stroke="{GRID}"/>')
        out.append(f'<text x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end" fill="{SOFT}">{_label(tick)}</text>')
    for tick in ticks(s.x_low, s.x_high, max(3, chart.width // 130)):
        x = float(s.x(tick))
        out.append(f'<text x="{x:.1f}" y="{bottom + 17}" text-anchor="middle" fill="{SOFT}">{tick:,.10g}</text>')
        out.append(f'<path d="M{x:.1f} {bottom}v4" stroke="{SOFT}"/>')
    out.append(f'<path d="M{LEFT} {bottom}H{chart.width - RIGHT}" stroke="{SOFT}"/>')
    return out


def _label(value: float) -> str:
    value = 0.0 if abs(value) < 1e-300 else value
    return f"{value:,.10g}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers between two bounds."""
    span = high - low
    if not np.isfinite(span) or span <= 0:
        return [low]
    raw = span / count
    size = 10.0 ** np.floor(np.log10(raw))
    step = next((m * size for m in (1, 2, 5) if m * size >= raw), 10 * size)
    return [float(t) for t in np.arange(np.ceil(low / step), np.floor(high / step) + 1) * step][:50]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5 in each decade between two bounds; whole decades only over more than three."""
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    parts = (1, 2, 5) if len(decades) <= 4 else (1,)
    every = max(1, len(decades) // 8)
    return [m * 10.0**d for d in list(decades)[::every] for m in parts if low <= m * 10.0**d <= high]


def _under(chart: Chart, s: _Scale) -> list[str]:
    out = []
    inside = chart.height - TOP - BOTTOM
    if chart.stretch is not None:
        a, b = (float(s.x(np.clip(v, s.x_low, s.x_high))) for v in chart.stretch)
        out.append(f'<rect x="{a:.1f}" y="{TOP}" width="{max(b - a, 1.5):.1f}" height="{inside}" fill="#fdecea"/>')
    if chart.band is not None:
        high, low = (float(s.y(max(v, 1e-300) if s.log else v)) for v in (chart.band[1], chart.band[0]))
        out.append(f'<rect x="{LEFT}" y="{high:.1f}" width="{chart.width - LEFT - RIGHT}" height="{max(low - high, 1):.1f}" fill="{PALE}" opacity=".75"/>')
    if chart.level is not None and (chart.level > 0 or not s.log):
        out.append(f'<path d="M{LEFT} {float(s.y(chart.level)):.1f}H{chart.width - RIGHT}" stroke="{BLUE}" stroke-dasharray="4 4" opacity=".7"/>')
    return out


def _events(chart: Chart, s: _Scale) -> list[str]:
    out = []
    for kind, steps in chart.events.items():
        inside = steps[(steps >= s.x_low) & (steps <= s.x_high)]
        if not 0 < len(inside) <= MOST_MARKS:
            continue
        colour = EVENTS.get(kind, SOFT)
        path = "".join(f"M{float(s.x(v)):.1f} {TOP}V{chart.height - BOTTOM}" for v in inside)
        out.append(f'<path d="{path}" stroke="{colour}" stroke-width="1.2" stroke-dasharray="2 3"><title>{escape(kind)}</title></path>')
    return out


def _line(chart: Chart, s: _Scale) -> list[str]:
    out = []
    for a, b in _runs(np.isfinite(chart.values)):
        steps, values = thinned(chart.steps[a:b], chart.values[a:b], 2 * chart.width)
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(s.x(steps), s.y(values), strict=True))
        out.append(f'<polyline points="{points}" fill="none" stroke="{BLUE}" stroke-width="1.2" stroke-linejoin="round"/>')
        if chart.dots and b - a <= 240 or b - a == 1:
            out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2" fill="{BLUE}"/>' for x, y in zip(s.x(steps), s.y(values), strict=True)]
    bad = chart.nonfinite[:: max(1, len(chart.nonfinite) // 400)]
    out += [f'<text x="{float(s.x(v)):.1f}" y="{TOP + 10}" text-anchor="middle" fill="{SEVERITY["fault"]}">×</text>' for v in bad]
    return out


def _runs(mask: np.ndarray) -> list[tuple[int, int]]:
    """Stretches of true values, at most a few hundred: more are drawn without their breaks."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))[:400]


def thinned(steps: np.ndarray, values: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """At most about `most` points: of each stretch its lowest and highest, so that a single spike stays."""
    if len(values) <= most:
        return steps, values
    size = int(np.ceil(2 * len(values) / most))
    whole = len(values) // size * size
    blocks = values[:whole].reshape(-1, size)
    base = np.arange(len(blocks)) * size
    keep = np.unique(np.concatenate([base + blocks.argmin(axis=1), base + blocks.argmax(axis=1), [0, len(values) - 1]]))
    return steps[keep], values[keep]


def _marks(chart: Chart, s: _Scale) -> list[str]:
    """Numbered flags above the curve, in the highest row where they have room."""
    out = []
    ends: list[float] = []  # of each row
    for mark in chart.marks:
        x = float(s.x(np.clip(mark.step, s.x_low, s.x_high)))
        row = next((r for r, end in enumerate(ends) if x - end >= FLAG_ROOM), len(ends))
        ends[row:] = [x, *ends[row + 1 :]]
        y = TOP + 9 + 17 * (row % MOST_FLAG_ROWS)
        colour = SEVERITY[mark.severity]
        flag = max(x, LEFT + FLAG_ROOM / 2)  # not over the axis's numbers
        out.append(
            f'<g><title>{escape(mark.text)}</title><path d="M{x:.1f} {y}V{chart.height - BOTTOM}" stroke="{colour}" opacity=".55"/>'
            f'<circle cx="{flag:.1f}" cy="{y}" r="8.5" fill="{colour}"/>'
            f'<text x="{flag:.1f}" y="{y + 4}" text-anchor="middle" font-size="11" fill="#fff">{escape(mark.label)}</text></g>'
        )
    return out
