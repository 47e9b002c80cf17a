"""Counts what the faults cost, in steps and tokens."""

from dataclasses import dataclass

import numpy as np

from dflash_core.diagnosis.evidence import Evidence
from dflash_core.diagnosis.view import View


@dataclass(frozen=True)
class Cost:
    """What the faults cost."""

    steps: float
    tokens: float | None


def cost(e: Evidence) -> Cost:
    """Steps during which the run was not where it had been, not logged, or done again; their tokens where logged."""
    steps, at_gaps = 0.0, e.refined.spikes_at.get("gap")
    gaps_hurt = at_gaps is not None and at_gaps.holds
    for f in e.refined.findings:
        if f.kind == "loss_spike" and f.severity == "fault":
            steps += f.detail["recovery_steps"] or 0.0
        elif f.kind == "step_gap" and (f.detail.get("after_checkpoint") is not None or gaps_hurt):
            steps += f.detail["missing"]
        elif f.kind in ("resume_replay", "aborted_start", "instability_episode") or f.kind == "nonfinite" and f.severity == "fault":
            steps += f.detail["last"] - f.detail["first"] + _usual_step(e.view)
    return Cost(steps, _tokens(e.view, steps))


def _usual_step(view: View) -> float:
    return float(np.median(np.diff(view.log.steps))) if len(view.log) > 1 else 1.0


def _tokens(view: View, steps: float) -> float | None:
    tokens = view.log.aligned.get("tokens")
    if tokens is None or not steps:
        return None
    known = np.flatnonzero(np.isfinite(tokens))
    if len(known) < 3:
        return None
    grows = (np.diff(tokens[known]) > 0).mean() > 0.95
    if not grows:
        return steps * float(np.median(tokens[known]))
    span = view.log.steps[known[-1]] - view.log.steps[known[0]]
    return float(steps * (tokens[known[-1]] - tokens[known[0]]) / span) if span else None
