"""What a record of the training log, or of the machine's load beside it, is in MLflow: metrics, tags, the run's status."""

import math
from collections.abc import Iterator
from typing import Any

# Fields of a step record that are numbers but no measurements.
NOT_METRICS = ("step", "wall_time", "epoch", "first_sample", "last_sample", "checksum")
# Without these a record can't be placed, or says nothing: a disk or a hand has damaged it.
NEEDED: dict[str, dict[str, type]] = {
    "step": {"step": int},
    "eval": {"step": int, "metrics": dict},
    "system": {"metrics": dict},
    "finding": {"what": str, "at_step": int, "severity": str, "text": str},
    "stop": {"step": int, "reason": str, "message": str},
}
STATUS_AFTER = {"finished": "FINISHED", "signal": "KILLED"}  # any other reason of a stop is a failure


def is_whole(record: dict[str, Any]) -> bool:
    """Whether a record has what is read of its kind."""
    needed = NEEDED.get(str(record.get("kind")), {})
    return all(isinstance(record.get(key), kind) for key, kind in needed.items()) and is_number(record.get("wall_time", 0))


def measurements(record: dict[str, Any]) -> dict[str, float]:
    """Numbers of a record by their names in MLflow; empty for one that measures nothing."""
    kind = record.get("kind")
    if kind == "step":
        values = {k: v for k, v in record.items() if is_number(v) and k not in NOT_METRICS}
        accuracies = record.get("per_position_accuracy") or []
        return values | {f"accuracy.slot_{k}": v for k, v in enumerate(accuracies, start=1) if is_number(v)}
    if kind == "eval":
        return {f"eval.{k}": v for k, v in record["metrics"].items() if is_number(v)}
    if kind == "system":
        return {f"system/{k}": v for k, v in record["metrics"].items() if is_number(v)}  # the tab of that name shows these
    return {}


def tags(record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """By which runs with a finding are searched for, and why a session ended otherwise than finished."""
    if record.get("kind") == "finding":
        yield f"finding.{record['what']}", f"step {record['at_step']}, {record['severity']}: {record['text']}"
    if record.get("kind") == "stop":
        yield "dflash.stop", f"step {record['step']}, {record['reason']}" + (f": {record['message']}" if record["message"] else "")


def status(record: dict[str, Any]) -> str | None:
    """What the run is after this record; None where it changes nothing."""
    if record.get("kind") in ("start", "resume"):
        return "RUNNING"
    return STATUS_AFTER.get(record["reason"], "FAILED") if record.get("kind") == "stop" else None


def milliseconds(record: dict[str, Any]) -> int:
    """When it was written, as MLflow counts."""
    return int(record.get("wall_time", 0) * 1000)


def is_number(value: object) -> bool:
    """A finite one; a truth value is none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


class Repeats:
    """Tells a step that a resumed session did again with the same numbers, which is no new measurement.

    One with other numbers is: MLflow then shows both at that step, the later one last.
    """

    def __init__(self, last_step: int, earlier: Iterator[dict[str, Any]]) -> None:
        self._last_step = last_step
        self._earlier = earlier
        self._known: dict[int, object] = {}

    def __contains__(self, record: dict[str, Any]) -> bool:
        if record.get("kind") != "step":
            return False
        step, numbers = _step_and_numbers(record)
        if step <= self._last_step:  # seldom, so the log before is read only here
            self._known = dict(_step_and_numbers(r) for r in self._earlier if r.get("kind") == "step") | self._known
        repeated = self._known.get(step) == numbers
        self._known[step] = numbers
        return repeated


def _step_and_numbers(record: dict[str, Any]) -> tuple[int, object]:
    return record["step"], [record.get(key) for key in ("loss_sum", "grad_norm", "lr")]
