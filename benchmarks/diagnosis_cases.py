"""Diagnoses labelled cases and compares: verdicts and events of whole logs, and causes of short series.

    python benchmarks/diagnosis_cases.py CASES --out cases.json

CASES holds vocabulary.json, logs/NAME/labels.json beside one log each, and cases in *.jsonl with `series` [[step, loss]],
`event` (given as --events) and `cause`. Such cases are other people's; they are measured on and not part of this project.
A case counts with at least five points and a known cause; the cause's class must be among the first two. Series given
beside the loss (learning rate, norms, evaluations) are logged with it, unless --loss-only.
"""

import argparse
import json
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from dflash_core.diagnosis.diagnose import Diagnosis, diagnose_file

LEAST_POINTS = 5
CONFIDENT = 0.5
BESIDE = ("grad_norm", "lr", "accept_len")
STEP_KEYS = ("step", "first", "step_near", "first_missing")


def events_of(label: dict[str, Any]) -> list[float]:
    """Steps at which a labelled event was seen."""
    single = [label[k] for k in STEP_KEYS if k in label][:1]
    return [float(s) for s in [*label.get("steps", []), *label.get("at_global_step", []), *single, *label.get("overlap", [])[:1]]]


def missed(diagnosis: Diagnosis, labels: dict[str, Any], vocabulary: dict[str, Any]) -> list[str]:
    """Labelled events that no finding of their kind matches within the tolerance."""
    log = diagnosis.log
    spacing = float(log.steps[-1] - log.steps[0]) / max(1, len(log) - 1)
    tolerance = max(3 * spacing, 0.002 * float(log.steps[-1]))
    out = []
    for label in labels["events"]:
        if label["kind"] in vocabulary["label_notes_not_findings"]:
            continue
        kinds = vocabulary["labels_to_kinds"].get(label["kind"], label["kind"])
        kinds = [kinds] if isinstance(kinds, str) else kinds
        kinds = ["counter_change"] if "step_counter_restarts" in kinds else ["grad_spike"] if "grad_spike_no_loss_spike" in kinds else kinds
        found = [f for f in diagnosis.findings if f.kind in kinds and label.get("class") in (None, f.detail.get("class"))]
        places = events_of(label)
        if not found or not all(any(abs(f.step - p) <= tolerance for f in found) for p in places):
            out.append(f"{label['kind']} {places}")
    return out


def log_rows(directory: Path, vocabulary: dict[str, Any]) -> list[dict[str, Any]]:
    """One row a log: verdict told and labelled, events missed, faults that no label names."""
    rows = []
    for label_file in sorted(directory.glob("*/labels.json")):
        labels = json.loads(label_file.read_text())
        events = ["checkpoint=" + ",".join(map(str, labels["checkpoint_steps"]))] if "checkpoint_steps" in labels else []
        diagnosis = diagnose_file(label_file.parent / labels.get("file", "train_log.jsonl"), events)
        known = {k for e in labels["events"] for k in _kinds(e["kind"], vocabulary)}
        rows.append(
            {
                "log": labels["slug"],
                "verdict": diagnosis.verdict.word,
                "labelled": labels["verdict"],
                "missed": missed(diagnosis, labels, vocabulary),
                "unlabelled_faults": [f.text for f in diagnosis.findings if f.severity == "fault" and f.kind not in known],
            }
        )
    return rows


def _kinds(kind: str, vocabulary: dict[str, Any]) -> list[str]:
    kinds = vocabulary["labels_to_kinds"].get(kind, kind)
    return [kinds] if isinstance(kinds, str) else kinds


def case_rows(path: Path, vocabulary: dict[str, Any], loss_only: bool) -> list[dict[str, Any]]:
    """One row a case with points: the class of its cause, and what was told."""
    classes = {name: kind for kind, names in vocabulary["cause_classes"].items() for name in names}
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log.jsonl"
        for line in path.read_text().splitlines():
            case = json.loads(line)
            if not case["series"]:
                continue
            log.write_text(_as_log(case, loss_only))
            events = [] if case["event"] == "none" else [case["event"]]
            events += [f"{kind}=" + ",".join(map(str, case[f"{kind}_steps"])) for kind in ("checkpoint", "reset") if case.get(f"{kind}_steps")]
            diagnosis = diagnose_file(log, events)
            rows.append(
                {
                    "case": case["id"],
                    "points": case["n_points"],
                    "class": classes.get(case["cause"], case["cause"]),
                    "told": [(c.cause, c.confidence) for c in diagnosis.causes[:2]],
                    "verdict": diagnosis.verdict.word,
                    "counts": case["n_points"] >= LEAST_POINTS and case["cause"] != "unknown",
                }
            )
    return rows


def _as_log(case: dict[str, Any], loss_only: bool) -> str:
    beside = {} if loss_only else {name: dict(case[name]) for name in BESIDE if name in case}
    rows = [{"step": s, "loss": v} | {n: values[s] for n, values in beside.items() if s in values} for s, v in case["series"]]
    rows += [] if loss_only else [{"step": s, "eval_loss": v} for s, v in case.get("eval", [])]
    return "".join(json.dumps(row) + "\n" for row in rows)


def summary(logs: list[dict[str, Any]], cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts, and the confusion of labelled class against the first cause told."""
    counted = [c for c in cases if c["counts"]]
    hit = [c for c in counted if c["class"] in [name for name, _ in c["told"]]]
    confusion: dict[str, Counter[str]] = defaultdict(Counter)
    for c in counted:
        confusion[c["class"]][c["told"][0][0]] += 1
    wrong = [c["case"] for c in cases if c["class"] != "unknown" and c["told"] and c["told"][0][1] >= CONFIDENT and c["class"] not in dict(c["told"])]
    return {
        "logs": len(logs),
        "verdicts_right": sum(r["verdict"] == r["labelled"] for r in logs),
        "events_missed": {r["log"]: r["missed"] for r in logs if r["missed"]},
        "unlabelled_faults": {r["log"]: r["unlabelled_faults"] for r in logs if r["unlabelled_faults"]},
        "cases": len(counted),
        "cause_among_first_two": len(hit),
        "confident_and_wrong": wrong,
        "confusion": {k: dict(v) for k, v in sorted(confusion.items())},
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", type=Path)
    parser.add_argument("--loss-only", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    vocabulary = json.loads((arguments.cases / "vocabulary.json").read_text())
    logs = log_rows(arguments.cases / "logs", vocabulary)
    cases = [row for path in sorted(arguments.cases.glob("*.jsonl")) for row in case_rows(path, vocabulary, arguments.loss_only)]
    result = summary(logs, cases)
    print(json.dumps(result, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(result | {"log_rows": logs, "case_rows": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
