"""Stops flow runs in every way that happens, retries them, and compares the drafter with that of a run left alone.

    python benchmarks/stop_matrix.py --n 3 --json stops.json
    python benchmarks/stop_matrix.py --only cancel flow-killed

A copy of the project with servers and workers of its own trains a tiny drafter in two ranks. Each case is one row: whether a
process was left after 60 s, the final state within 150 s (and after how long), the checkpoint that was there, whether the
retry of the same flow run went on from it and completed under the same MLflow run, and whether weights, moments, generators and
the losses of all steps are those of the run left alone. Where the server restarts or is away, the run must go on by itself, in one session.
Cancel and retry are the requests that the page's buttons send. At the end no task run may seem to go on, and every run
must still show what it showed. Exit status 0 means that all is as it must be.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import yaml
from kill_campaign import PARAMS, final_state, last_step, make_workspace
from prefect.client.schemas.filters import TaskRunFilter, TaskRunFilterState, TaskRunFilterStateType
from prefect.client.schemas.objects import FlowRun, StateType
from results import leave
from run_processes import described, runs
from services_site import Site, site, wait_for
from ways_to_stop import CASES, Case, set_state

from dflash_core.training.log_reader import all_records
from dflash_core.training.records import ResumeRecord, StartRecord
from tasks import mlflow_store
from tasks.shipping import KIND_TAG
from tasks.tidying import SETTLED

PROFILE = "stopped"
STEPS = 200  # of which a quiet machine does 10 in a second: what goes on after a stop must not be at its end by then
FIRST_STEP = 40  # of the session that is stopped
BEFORE_TRAINING = ("prepare", "bucket", "check-data", "features")
MOST_RETRIES = 3  # of a run that has a time limit, which holds for each attempt
ORPHAN_S, STATE_S, RUN_S = 60.0, 150.0, 600.0
FINAL = {"COMPLETED", "FAILED", "CANCELLED", "CRASHED"}


def main(arguments: list[str] | None = None) -> int:
    """Run the matrix; see the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=3, help="times each case")
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES), help="cases; default: all")
    parser.add_argument("--json", type=Path, help="file to write; default: print")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="stop-matrix-") as directory:
        result = matrix(Path(directory), options.only, options.n)
    return leave(result, options.json, result["as_it_must_be"])


def matrix(directory: Path, cases: list[str], times: int) -> dict[str, Any]:
    """A row for each time and case, and what holds of all of them."""
    with site(directory, PROFILE, tiny_settings(directory / "inputs", STEPS)) as place:
        place.leave_out_evaluations()
        expected = _left_alone(place)
        limit_s = _time_limit(place) if "time-out" in cases else None
        rows = []
        for case in [CASES[name] for _ in range(times) for name in cases]:
            rows.append(_row(place, case, limit_s, expected))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        changed = [row["case"] for row in rows if "run_id" in row and place.state(row["run_id"])[1] != row["after_retry"]]
        time.sleep(SETTLED.total_seconds() + 5)  # a run that has just completed is left alone for so long
        _finish(place, place.start("tidy-up", {}))
        _seconds_until({"told": (lambda: not _open_task_runs(place), STATE_S)})  # tidy-up's own are told some seconds after its end
        open_task_runs = _open_task_runs(place)
    good = not changed and not open_task_runs and not any(row["wrong"] for row in rows)
    return {"cases": rows, "n": times, "time_limit_s": limit_s, "changed_later": changed, "open_task_runs": open_task_runs, "as_it_must_be": good}


def tiny_settings(directory: Path, num_steps: int) -> dict[str, Any]:
    """A profile that trains a tiny drafter in two ranks; its target and conversations are made in `directory`."""
    inputs = make_workspace(directory, num_steps)
    return PARAMS | {
        "target": {"path": str(inputs / "target"), "dtype": "float32"},
        "data": PARAMS["data"] | {"conversations": [str(inputs / "conversations.jsonl")]},
        "data_gate": {"min_rows": 1, "max_truncated": 1.0, "max_near_copies": 1.0},
        "training": PARAMS["training"] | {"max_steps": num_steps},
        "distributed": {"nproc": 2},
        "checkpoint": PARAMS["checkpoint"] | {"every": 10, "proof_steps": 3},
        "evaluation": {"num_prompts": 2, "max_new_tokens": 8, "num_walk_prompts": 2, "bootstrap_samples": 50},
    }


def _row(place: Site, case: Case, limit_s: float | None, expected: dict[str, Any]) -> dict[str, Any]:
    """`stop_and_retry`, or what kept it from its end; the other rows are measured nevertheless."""
    try:
        return stop_and_retry(place, case, limit_s, expected)
    except (RuntimeError, psutil.Error, ValueError, OSError) as error:
        place.services("up")
        return {"case": case.name, "wrong": [f"{type(error).__name__}: {error}"]}


def stop_and_retry(place: Site, case: Case, limit_s: float | None, expected: dict[str, Any]) -> dict[str, Any]:
    """One row."""
    began = time.time()
    run_id = _start(place, **({"time_limit_minutes": limit_s / 60} if case.name == "time-out" else {}))
    workspace = place.workspace_of(PROFILE, run_id)
    wait_for(lambda: last_step(workspace) >= FIRST_STEP or place.state(run_id)[0] in FINAL, RUN_S, "training")
    before = {process for member in place.processes(run_id) for process in (member, *member.children(recursive=True))}
    since_s = case.stop(place, run_id) or 0.0
    row = {"case": case.name, "processes": len(before)} | _after_stop(place, case, run_id, before, since_s)
    place.services("up")  # what was killed of them
    row["retries"] = _retry(place, case, run_id)
    run = place.client.read_flow_run(run_id)
    row |= {"after_retry": run.state.name, "run_count": run.run_count, "resumed_from": _resumed_from(workspace)}
    row["states"] = [state.name for state in sorted(place.client.read_flow_run_states(run_id), key=lambda state: state.timestamp)]
    row |= {"mlflow": _mlflow_runs(place, began), "identical": final_state(workspace) == expected}
    row |= {"seconds": round(time.time() - began, 1), "run_id": run_id}
    return row | {"wrong": _wrong(case, row)}


def _left_alone(place: Site) -> dict[str, Any]:
    """What must come out."""
    return final_state(_undisturbed(place)[1])


def _time_limit(place: Site) -> float:
    """Seconds that leave a run like those that are stopped, whose first stages are up to date, time for all it has to do."""
    run, _ = _undisturbed(place)
    return round(1.5 * (run.end_time - run.start_time).total_seconds(), 1)


def _undisturbed(place: Site) -> tuple[FlowRun, Path]:
    run_id = _start(place)
    _finish(place, run_id)
    run = place.client.read_flow_run(run_id)
    if run.state.name != "Completed":
        raise RuntimeError(f"the run left alone failed: {run.state.message}")
    return run, place.workspace_of(PROFILE, run_id)


def _after_stop(place: Site, case: Case, run_id: str, before: set[psutil.Process], since_s: float) -> dict[str, Any]:
    """How many seconds after the stop, which was `since_s` ago, the state was final and the processes were gone, and what is left."""
    workspace = place.workspace_of(PROFILE, run_id)

    def left() -> set[psutil.Process]:
        return {process for process in before if runs(process)} | place.processes(run_id)

    completed_s = _complete(place, run_id) if case.goes_on else None
    final = {"state": (lambda: place.state(run_id)[0] in FINAL, STATE_S - since_s), "gone": (lambda: not left(), ORPHAN_S - since_s)}
    seconds = {what: late if late is None else round(late + since_s, 1) for what, late in _seconds_until(final).items()}
    return {
        "gone_after_s": seconds["gone"],
        "left": described(left()) if seconds["gone"] is None else [],
        "state": place.state(run_id)[1],
        "state_after_s": completed_s or seconds["state"],
        "stopped_at": last_step(workspace),
        "checkpoints": sorted(path.name for path in (workspace / "runs/killed/checkpoints").glob("step-????????")),
    }


def _retry(place: Site, case: Case, run_id: str) -> int:
    """Press the page's button until the run has completed; gives how often."""
    presses = 0
    _finish(place, run_id)  # one that goes on although it was stopped must not be started twice
    while place.state(run_id)[0] != "COMPLETED" and presses < (MOST_RETRIES if case.name == "time-out" else 1):
        presses += 1
        set_state(place, run_id, {"type": "SCHEDULED", "name": "AwaitingRetry", "message": "Retry from the UI"}, force=False)
        _finish(place, run_id)
    return presses


def _wrong(case: Case, row: dict[str, Any]) -> list[str]:
    """What isn't as it must be."""
    newest = int(row["checkpoints"][-1].removeprefix("step-")) if row["checkpoints"] else 0
    must = {
        "state": row["state"] == case.state,
        "state_after_s": row["state_after_s"] is not None,
        "gone_after_s": row["gone_after_s"] is not None,
        "stopped_at": case.goes_on or row["stopped_at"] < STEPS,
        "checkpoints": newest > 0,
        "retries": (row["retries"] == 0) == case.goes_on,
        "after_retry": row["after_retry"] == "Completed",
        # One that its server took for lost while that was away is Crashed for a moment, and then Running once more.
        "run_count": row["run_count"] == 1 + row["retries"] + list(pairwise(row["states"])).count(("Crashed", "Running")),
        "resumed_from": row["resumed_from"][:1] == ([] if case.goes_on else [newest]) and all(row["resumed_from"]),
        "mlflow": row["mlflow"] == ["FINISHED"],
        "identical": row["identical"],
    }
    return [what for what, holds in must.items() if not holds]


def _start(place: Site, **more: Any) -> str:
    """A run that trains, whatever was published: only what comes before training is taken over."""
    for file in (place.project / "workspaces/.published").glob("*.json"):
        published = json.loads(file.read_text(encoding="utf-8"))
        lock = yaml.safe_load(published["lock"])
        lock["stages"] = {name: lock["stages"][name] for name in BEFORE_TRAINING}
        file.write_text(json.dumps(published | {"lock": yaml.safe_dump(lock)}), encoding="utf-8")
    return place.start("train-drafter", {"profile": PROFILE, **more})


def _complete(place: Site, run_id: str) -> float:
    return wait_for(lambda: place.state(run_id)[0] == "COMPLETED", RUN_S, "the end of a run that goes on")


def _finish(place: Site, run_id: str) -> float:
    return wait_for(lambda: place.state(run_id)[0] in FINAL, RUN_S, "the end of a run")


def _seconds_until(conditions: dict[str, tuple[Callable[[], bool], float]]) -> dict[str, float | None]:
    """When each was met first; None for one that wasn't within its limit."""
    began, met = time.monotonic(), dict.fromkeys(conditions)
    while open_ones := [name for name, (_, limit) in conditions.items() if met[name] is None and time.monotonic() - began < limit]:
        met |= {name: round(time.monotonic() - began, 1) for name in open_ones if conditions[name][0]()}
        time.sleep(0.1)
    return met


def _resumed_from(workspace: Path) -> list[int]:
    """The step that each session but the first went on from; 0 for one that began again."""
    records = [r for r in all_records(workspace / "runs/killed/train_log.jsonl") if isinstance(r, StartRecord | ResumeRecord)]
    return [record.step for record in records[1:]]


def _mlflow_runs(place: Site, since: float) -> list[str]:
    """How each training that began since then ended, by MLflow's account."""
    client = mlflow_store.client_of(place.machine.mlflow_uri)
    found = client.search_runs([mlflow_store.experiment_id(client, place.machine.mlflow_uri)], f"tags.`{KIND_TAG}` = 'train'")
    return [run.info.status for run in found if run.info.start_time >= since * 1000]


def _open_task_runs(place: Site) -> list[str]:
    """Names of those that seem to go on; no flow run does."""
    seeming = TaskRunFilter(state=TaskRunFilterState(type=TaskRunFilterStateType(any_=[StateType.RUNNING, StateType.PENDING])))
    return [task.name for task in place.client.read_task_runs(task_run_filter=seeming)]


if __name__ == "__main__":
    sys.exit(main())
