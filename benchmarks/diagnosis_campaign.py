"""Measures the diagnoser on logs with known faults: false alarms, recall by kind and size, and the ROC curve.

    python benchmarks/diagnosis_campaign.py --n 500 --seed 0 --out diagnosis.json --roc roc.png
    python benchmarks/diagnosis_campaign.py --n 500 --seed 0 --live

Two runs in five are healthy. A false alarm is a healthy run with a finding of severity fault, or a verdict that exits
with 3. A fault counts as found if a finding of its kind, or of one that means the same, begins within the larger of three
lines and 0.2 % of the run of where it was put; slow faults are found if the finding's stretch meets theirs. With --live the
runs are fed to the watch line by line, and what counts is what it tells, and how many lines after the fault.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from synthetic_logs import FAULTS, Run, faulty, healthy

from dflash_core.diagnosis.diagnose import Diagnosis, diagnose_table
from dflash_core.diagnosis.finding import Finding
from dflash_core.diagnosis.live import Watch

# Kinds that say the same of the same place.
ALSO: dict[str, tuple[str, ...]] = {
    "level_shift": ("level_shift", "loss_spike", "divergence", "slow_climb"),
    "loss_spike": ("loss_spike", "level_shift", "instability_episode"),
    "divergence": ("divergence", "slow_climb", "level_shift"),
    "checkpoint_reset": ("loss_spike",),
    "drop_then_return": ("drop_then_return", "level_shift"),
}
SLOW = {"divergence", "periodic", "two_writers", "queue_drift", "epoch_stairs", "train_eval_split", "checkpoint_reset", "resume_replay"}
SIZES = (2, 4, 6, 10, 20, 41)
ALARMS = (2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0, 12.0, 20.0)
# Kinds whose size isn't a number of sigma: they are there or not.
WHOLE = {"nonfinite", "lr_break", "resume_replay", "two_writers"}
# Kinds that move the loss itself, which the threshold in sigma is about.
ON_LOSS = ("loss_spike", "level_shift", "drop_then_return", "divergence", "checkpoint_reset")
# Kinds that the watch can tell: those of the columns that a step record has, at a place.
LIVE = ("nonfinite", "loss_spike", "level_shift", "divergence", "accuracy_drop")


def found(run: Run, findings: Iterable[Finding]) -> bool:
    """Whether the fault that was put in is among the findings."""
    tolerance = max(3 * float(np.median(np.diff(run.steps))), 0.002 * float(run.steps[-1]))
    for f in findings:
        if f.kind not in ALSO.get(run.kind, (run.kind,)):
            continue
        if run.kind == "periodic":
            if abs(f.detail["period"] / run.last - 1) < 0.1:
                return True
        elif run.kind in SLOW:
            last = f.detail.get("last", run.last)
            if f.step <= run.last + tolerance and last >= run.first - tolerance:
                return True
        elif abs(f.step - run.first) <= tolerance:
            return True
    return False


def alarmed(diagnosis: Diagnosis) -> bool:
    """Whether a healthy run would be called sick."""
    return diagnosis.verdict.unhealthy or any(f.severity == "fault" for f in diagnosis.findings)


def make_runs(n: int, seed: int) -> list[Run]:
    """Two fifths healthy, the rest spread over the kinds; each run from its own generator."""
    kinds = list(FAULTS)
    out = []
    for i in range(n):
        random = np.random.default_rng([seed, i])
        out.append(healthy(random) if i % 5 < 2 else faulty(random, kinds[(i // 5 * 3 + i % 5 - 2) % len(kinds)]))
    return out


def campaign(n: int, seed: int, alarm: float = 6.0) -> dict[str, Any]:
    """Rates over n runs."""
    hits: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    false: list[str] = []
    num_healthy, started = 0, time.perf_counter()
    for i, run in enumerate(make_runs(n, seed)):
        diagnosis = diagnose_table(run.table(), run.events, alarm=alarm)
        if run.kind == "healthy":
            num_healthy += 1
            if alarmed(diagnosis):
                worst = [f"{f.kind} at {f.step:g}" for f in diagnosis.findings if f.severity == "fault"]
                false.append(f"run {i} ({run.noise}): {diagnosis.verdict.word}, {', '.join(worst)}")
        else:
            hits[run.kind].append((run.size, found(run, diagnosis.findings)))
    large = [ok for kind, rows in hits.items() for size, ok in rows if size >= 6 or kind in WHOLE]
    return {
        "runs": n,
        "seed": seed,
        "alarm_sigma": alarm,
        "false_alarms": len(false),
        "healthy": num_healthy,
        "false_alarm_rate": len(false) / max(num_healthy, 1),
        "recall_from_6_sigma": float(np.mean(large)) if large else None,
        "recall": {kind: _by_size(kind, rows) for kind, rows in sorted(hits.items())},
        "which_false": false,
        "seconds": round(time.perf_counter() - started, 1),
    }


def _by_size(kind: str, rows: list[tuple[float, bool]]) -> dict[str, str]:
    if kind in WHOLE:
        return {"all": f"{sum(ok for _, ok in rows)}/{len(rows)}"}
    out = {}
    for low, high in pairwise(SIZES):
        inside = [ok for size, ok in rows if low <= size < high]
        if inside:
            out[f"{low} to {high}"] = f"{sum(inside)}/{len(inside)}"
    small = [ok for size, ok in rows if size < SIZES[0]]
    return ({"under 2": f"{sum(small)}/{len(small)}"} if small else {}) | out


def roc(n: int, seed: int) -> list[dict[str, float]]:
    """False alarms and recall of faults on the loss, of any size, by threshold."""
    points = []
    for alarm in ALARMS:
        rates = {"healthy": [], "faulty": []}
        for run in make_runs(n, seed):
            if run.kind != "healthy" and run.kind not in ON_LOSS:
                continue
            diagnosis = diagnose_table(run.table(), run.events, alarm=alarm)
            if run.kind == "healthy":
                rates["healthy"].append(alarmed(diagnosis))
            else:
                rates["faulty"].append(found(run, diagnosis.findings))
        points.append({"alarm": alarm, "false_alarm_rate": float(np.mean(rates["healthy"])), "recall": float(np.mean(rates["faulty"]))})
    return points


def draw(points: list[dict[str, float]], path: Path) -> None:
    """The ROC curve; the name's ending gives the format."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot([p["false_alarm_rate"] for p in points], [p["recall"] for p in points], "o-", color="#1f6fb4")
    for p in points:
        axes.annotate(f"{p['alarm']:g}σ", (p["false_alarm_rate"], p["recall"]), textcoords="offset points", xytext=(6, -10), fontsize=8)
    axes.set_xlabel("healthy runs with an alarm")
    axes.set_ylabel("faults of 2 to 40 σ found")
    axes.set_ylim(0, 1)
    figure.savefig(path, dpi=150)


@dataclass(frozen=True)
class LiveStep:
    """What the watch reads of a line."""

    step: int
    loss: float
    grad_norm: float
    lr: float
    streak: float
    tok_per_s: float
    hs_queue_depth: int
    prefetch_queue_depth: int


def watched(run: Run) -> list[tuple[int, Finding]]:
    """What the watch tells of a run, with the line at which it tells it; looks cost nothing here."""
    watcher, columns = Watch(budget=np.inf), run.columns
    names = ("grad_norm", "lr", "accuracy", "tok_per_s")
    told = []
    for i in range(len(run.steps)):
        step = LiveStep(int(run.steps[i]), float(run.loss[i]), *(float(columns[n][i]) for n in names), 2, int(columns["prefetch_queue_depth"][i]))
        told += [(i, f) for f in watcher.feed(step)]
    return told


def live(n: int, seed: int) -> dict[str, Any]:
    """How often the watch tells a fault of a healthy run, and of faults from 6 sigma on how many it tells and how soon."""
    false, healthy_runs = [], 0
    hits: dict[str, list[float | None]] = defaultdict(list)
    for i, run in enumerate(make_runs(n, seed)):
        if run.kind == "healthy":
            healthy_runs += 1
            false += [f"run {i}: {f.kind} at {f.step:g}" for _, f in watched(run) if f.severity == "fault"]
        elif run.kind in LIVE and (run.size >= 6 or run.kind in WHOLE):
            row = int(np.searchsorted(run.steps, run.first))
            hits[run.kind].append(next((float(at - row) for at, f in watched(run) if found(run, [f])), None))
    return {
        "healthy": healthy_runs,
        "fault_findings_in_healthy": false,
        "told_of": {kind: f"{sum(d is not None for d in delays)}/{len(delays)}" for kind, delays in sorted(hits.items())},
        "median_delay_lines": {k: float(np.median([d for d in delays if d is not None] or [np.nan])) for k, delays in sorted(hits.items())},
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--roc", type=Path, help="draw the ROC curve here, over as many runs for each threshold")
    parser.add_argument("--live", action="store_true", help="feed the runs to the watch instead")
    arguments = parser.parse_args()
    result = (live if arguments.live else campaign)(arguments.n, arguments.seed)
    if arguments.roc:
        result["roc"] = roc(arguments.n, arguments.seed)
        draw(result["roc"], arguments.roc)
    print(json.dumps(result, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
