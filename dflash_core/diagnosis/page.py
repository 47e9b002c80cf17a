"""Renders a diagnosis as one HTML file that loads nothing else, for a reader who never saw the tool."""

from dataclasses import dataclass
from functools import cache
from importlib import resources

import jinja2
import numpy as np

from dflash_core.diagnosis.chart import Chart, Mark, draw
from dflash_core.diagnosis.diagnose import Diagnosis
from dflash_core.diagnosis.finding import Finding
from dflash_core.diagnosis.outcome import told, understood

VERDICTS = {
    "healthy": "The run is healthy",
    "healthy_noisy": "The run is healthy, and noisy",
    "healthy_after_resume": "The run is healthy after its resumes",
    "inconclusive": "The log doesn't decide it",
    "checkpoint_reset": "Checkpoints disturb the run",
    "broken_from_start": "The run is broken from its start",
    "diverged": "The run diverged",
    "unstable_recovered": "The run was unstable, and recovered",
    "overfit_unstable": "Held-out quality got worse while training went on",
    "lr_too_high": "The learning rate is too high",
    "loss_scale_wrong": "The logged loss has the wrong scale",
}
CAUSES = {
    "weights": "weights not restored, or only in part",
    "masters": "fp32 master weights not filled",
    "optimizer_state": "optimizer state lost or wrong",
    "lr_schedule": "learning-rate schedule restarted",
    "data_order": "data order not restored",
    "batches_repeated_or_lost": "batches lost or repeated",
    "rng": "random numbers not restored",
    "accumulation": "gradient accumulation",
    "loss_scale": "loss scale not restored",
    "counter": "step counter changed",
    "epoch_boundary": "epoch boundary",
    "instability": "training instability",
    "nonfinite": "non-finite numbers",
    "logging": "the logging, not the training",
    "mode": "evaluation mode left on",
    "overfit": "overfitting",
    "normal": "nothing is wrong",
}
OTHER_SERIES = (("lr", "Learning rate"), ("grad_norm", "Gradient norm"), ("throughput", "Throughput"))
MOST_ZOOMS, MOST_FLAGS = 8, 24
ZOOM_ROWS = 40


@dataclass(frozen=True)
class Zoom:
    """One finding looked at closely."""

    number: int
    finding: Finding
    svg: str
    facts: dict[str, str]


def render(diagnosis: Diagnosis) -> str:
    """The page."""
    flagged = told(diagnosis, MOST_FLAGS)
    numbers = {id(f): n for n, f in enumerate(flagged, start=1)}
    return _template().render(
        d=diagnosis,
        title=VERDICTS[diagnosis.verdict.word],
        names=CAUSES,
        understood=understood(diagnosis),
        whole=draw(_whole(diagnosis, flagged, numbers)),
        others=[draw(chart) for chart in _others(diagnosis)],
        zooms=_zooms(diagnosis, flagged, numbers),
        flagged=[(numbers[id(f)], f) for f in flagged],
        rest=len(diagnosis.findings) - len(flagged),
        event_kinds=[k for k, v in diagnosis.view.events.steps.items() if 0 < len(v) <= 60],
        dense_kinds={k: len(v) for k, v in diagnosis.view.events.steps.items() if len(v) > 60},
    )


@cache
def _template() -> jinja2.Template:
    """Compiled once, in 30 ms."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(resources.files(__package__).joinpath("page.html.j2").read_text(encoding="utf-8"))


def _marks(flagged: list[Finding], numbers: dict[int, int]) -> tuple[Mark, ...]:
    return tuple(Mark(f.step, str(numbers[id(f)]), f.severity, f.text) for f in flagged)


def _whole(diagnosis: Diagnosis, flagged: list[Finding], numbers: dict[int, int]) -> Chart:
    log = diagnosis.log
    return Chart(
        steps=log.steps,
        values=log.loss,
        title=f"{log.names['loss']}, all {len(log):,} rows, over the training step",
        events=diagnosis.view.events.steps,
        marks=_marks(flagged, numbers),
        nonfinite=log.steps[~np.isfinite(log.loss)],
        height=360,
    )


def _others(diagnosis: Diagnosis) -> list[Chart]:
    """The other series, small, under the loss."""
    log = diagnosis.log
    series = {n: v for n, v in list(log.accuracies.items())[:1]}
    series |= {f"{title} ({log.names[role]})": log.aligned[role] for role, title in OTHER_SERIES if role in log.aligned}
    series |= dict(log.queues)
    held = [
        Chart(steps=s.steps, values=s.values, title=f"Held out ({role.replace('_', ' ')})", width=512, height=170, dots=True, linear=True)
        for role, s in log.held_out.items()
        if np.isfinite(s.values).sum() > 1 and (np.diff(s.steps) >= 0).all()
    ]
    return held + [
        Chart(steps=log.steps, values=values, title=name, events=diagnosis.view.events.steps, width=512, height=170, linear=values is not log.aligned.get("grad_norm"))
        for name, values in series.items()
        if np.isfinite(values).sum() > 1 and len(log) > 1
    ]


def _zooms(diagnosis: Diagnosis, flagged: list[Finding], numbers: dict[int, int]) -> list[Zoom]:
    """The gravest findings on the curve they were seen on."""
    grave = [f for f in flagged if f.severity != "note"] or sorted(flagged, key=lambda f: -f.size)[:2]
    return [Zoom(numbers[id(f)], f, draw(_close(diagnosis, f, numbers)), _facts(f)) for f in grave[:MOST_ZOOMS]]


def _close(diagnosis: Diagnosis, f: Finding, numbers: dict[int, int]) -> Chart:
    log = diagnosis.log
    name, values = _series_of(diagnosis, f)
    first = max(0, f.index if f.index >= 0 else int(np.searchsorted(log.steps, f.step)))
    last_step = f.detail.get("last") or f.detail.get("returns_at") or f.step + (f.detail.get("recovery_steps") or 0)
    last = int(np.searchsorted(log.steps, last_step)) if f.kind != "queue_drift" else len(log) - 1
    around = max(ZOOM_ROWS, (last - first) // 2)
    window = slice(max(0, first - around), min(len(log), last + around))
    level, sigma = f.detail.get("level"), f.detail.get("sigma")
    recovered = f.kind in ("loss_spike", "drop_then_return", "nonfinite", "instability_episode", "slow_climb", "divergence", "two_writers")
    return Chart(
        steps=log.steps[window],
        values=values[window],
        title=f"{name} around step {f.step:g}",
        events=diagnosis.view.events.steps,
        marks=(Mark(f.step, str(numbers[id(f)]), f.severity, f.text),),
        level=level,
        band=(level - 2 * sigma, level + 2 * sigma) if level is not None and sigma else None,
        stretch=(f.step, float(last_step)) if recovered else None,
        nonfinite=log.steps[window][~np.isfinite(values[window])] if f.kind == "nonfinite" else np.zeros(0),
        width=700,
        height=230,
        dots=True,
        linear=f.kind != "grad_spike" and values is not log.loss,
    )


def _series_of(diagnosis: Diagnosis, f: Finding) -> tuple[str, np.ndarray]:
    log = diagnosis.log
    by_kind = {"grad_spike": "grad_norm", "lr_break": "lr", "throughput_change": "throughput"}
    role = by_kind.get(f.kind) or f.detail.get("series")
    for group in (log.aligned, log.accuracies, log.queues):
        if role in group:
            return str(role), group[role]
    return log.names["loss"], log.loss


FACTS = {
    "before": "before",
    "peak": "jump to",
    "ratio": "ratio",
    "highest": "highest",
    "recovery_steps": "steps until back",
    "trajectory": "way back",
    "after_checkpoint": "checkpoint at",
    "after_resume": "resume at",
    "after_reset": "reset at",
    "from": "from",
    "to": "to",
    "class": "class",
    "throughput": "throughput",
    "missing": "steps missing",
    "rows": "rows",
    "lowest": "lowest",
    "period": "period, steps",
    "empty_at": "empty at step",
}


def _facts(f: Finding) -> dict[str, str]:
    return {name: _number(f.detail[key]) for key, name in FACTS.items() if f.detail.get(key) is not None}


def _number(value: object) -> str:
    return f"{value:,.4g}" if isinstance(value, float) and abs(value) < 1e4 else f"{value:,.0f}" if isinstance(value, float) else str(value).replace("_", " ")
