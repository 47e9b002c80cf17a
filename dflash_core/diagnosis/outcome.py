"""A diagnosis as JSON for programs and as text for a terminal."""

import math
from typing import Any

import numpy as np

from dflash_core.diagnosis.diagnose import Diagnosis
from dflash_core.diagnosis.finding import Finding

SCHEMA = 1
HEALTHY_EXIT, UNHEALTHY_EXIT = 0, 3
MOST_LINES = 14


def exit_code(diagnosis: Diagnosis) -> int:
    """3 if the run is unhealthy."""
    return UNHEALTHY_EXIT if diagnosis.verdict.unhealthy else HEALTHY_EXIT


def as_tree(diagnosis: Diagnosis) -> dict[str, Any]:
    """The whole diagnosis; numbers that aren't finite become null."""
    tree = {
        "schema": SCHEMA,
        "source": diagnosis.source,
        "verdict": diagnosis.verdict.word,
        "exit_code": exit_code(diagnosis),
        "sentence": diagnosis.verdict.sentence,
        "causes": [
            {"cause": c.cause, "confidence": c.confidence, "evidence": list(c.evidence), "against": list(c.against), "advice": c.advice}
            for c in diagnosis.causes
        ],
        "findings": [_finding(f) for f in diagnosis.findings],
        "ruled_out": [{"what": r.what, "why": r.why} for r in diagnosis.ruled if r.state == "ruled out"],
        "not_told": [{"what": r.what, "why": r.why} for r in diagnosis.ruled if r.state == "can't be told"],
        "cost": {"steps": diagnosis.cost.steps, "tokens": diagnosis.cost.tokens},
        "missing": list(diagnosis.verdict.missing),
        "understood": understood(diagnosis),
        "events": {k: v[:1000].tolist() for k, v in diagnosis.view.events.steps.items()},
    }
    return _plain(tree)


def _finding(f: Finding) -> dict[str, Any]:
    return f.detail | {"kind": f.kind, "step": f.step, "severity": f.severity, "size": f.size, "text": f.text}


def _plain(value: Any) -> Any:
    """Only what JSON has: no NaN, no numpy."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    return value


def understood(diagnosis: Diagnosis) -> dict[str, Any]:
    """What was read, under which names, and what could not be used."""
    log = diagnosis.log
    return {
        "format": log.format,
        "rows": len(log),
        "steps": [float(log.steps[0]), float(log.steps[-1])],
        "columns": log.names | {f"accuracy {i}": n for i, n in enumerate(list(log.accuracies)[:8], 1)} | {f"queue {i}": n for i, n in enumerate(log.queues, 1)},
        "held_out_points": {role: len(s.steps) for role, s in log.held_out.items()},
        "events": {k: len(v) for k, v in diagnosis.view.events.steps.items()},
        "not_used": log.unread,
        "notes": list(log.notes),
    }


def as_text(diagnosis: Diagnosis) -> str:
    """For a terminal: verdict, causes, findings, what was ruled out, what was read."""
    log, verdict = diagnosis.log, diagnosis.verdict
    lines = [f"{verdict.word.replace('_', ' ').upper()}: {verdict.sentence}", ""]
    for rank, cause in enumerate(diagnosis.causes[:3], start=1):
        lines.append(f"{rank}. {cause.cause.replace('_', ' ')} (confidence {cause.confidence:.1f})")
        lines += [f"   + {text}" for text in cause.evidence] + [f"   - {text}" for text in cause.against]
        lines += [f"   > {cause.advice}"] if cause.advice else []
    shown = told(diagnosis, MOST_LINES)
    if shown:
        lines += ["", "Seen:"] + [f"  {_mark(f)} {f.text}" for f in shown]
        rest = len(diagnosis.findings) - len(shown)
        lines += [f"    and {rest:,} more, see --json"] if rest else []
    lines += ["", "Ruled out: " + "; ".join(f"{r.what} ({r.why})" for r in diagnosis.ruled if r.state == "ruled out")]
    unknown = [r.what for r in diagnosis.ruled if r.state == "can't be told"]
    lines += [f"Can't be told from this log: {', '.join(unknown)}"] if unknown else []
    if diagnosis.cost.steps:
        tokens = f", {diagnosis.cost.tokens:,.0f} tokens" if diagnosis.cost.tokens else ""
        lines.append(f"Cost: {diagnosis.cost.steps:,.0f} steps{tokens}")
    lines.append(f"Read: {log.format}, {len(log):,} rows, steps {log.steps[0]:g} to {log.steps[-1]:g}, loss from {log.names['loss']}")
    lines += [f"  {note}" for note in log.notes] + [f"  not used: {count:,} {what}" for what, count in log.unread.items()]
    lines += [f"For a surer answer, give {', '.join(verdict.missing)}."] if verdict.missing and verdict.word != "healthy" else []
    return "\n".join(lines)


def told(diagnosis: Diagnosis, count: int) -> list[Finding]:
    """The gravest and largest findings, in order of steps."""
    order = {"fault": 0, "warning": 1, "note": 2}
    chosen = sorted(diagnosis.findings, key=lambda f: (order[f.severity], -f.size))[:count]
    return sorted(chosen, key=lambda f: f.step)


def _mark(f: Finding) -> str:
    return {"fault": "!!", "warning": " !", "note": "  "}[f.severity]
