"""Stops flow runs in every way that happens, retries them, and compares the drafter with that of a run left alone.

    python benchmarks/stop_matrix.py --n 3 --json stops.json
    python benchmarks/stop_matrix.py --only cancel flow-killed

A copy of the project with servers and workers of its own trains a tiny drafter in two ranks. Each case is one row: whether a
process was left after 60 s, the final state within 150 s (and after how long), the checkpoint that was there, whether the
retry of the same flow run completed under the same MLflow run, and whether weights, moments, generators and the losses of all
steps are those of the run left alone. Exit status 0 means that all is as it must be in every row.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from kill_campaign import PARAMS, final_state, last_step, make_workspace
from prefect.client.schemas.objects import StateType
from prefect.states import Cancelling, Scheduled
from results import leave
from services_site import Site, read_pid, run_command, site, wait_for

PROFILE = "stopped"
STEPS = 240
FIRST_STEP = 40  # of the session that is stopped
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
        rows = matrix(Path(directory), options.only, options.n)
    return leave({"cases": rows, "n": options.n}, options.json, all(row["as_it_must_be"] for row in rows))


def matrix(directory: Path, cases: list[str], times: int) -> list[dict[str, Any]]:
    """A row for each case and time."""
    settings = tiny_settings(directory / "inputs", STEPS)
    with site(directory, PROFILE, settings) as place:
        undisturbed = _start(place)
        wait_for(lambda: place.state(undisturbed)[0] in FINAL, RUN_S, "the run left alone")
        if place.state(undisturbed)[0] != "COMPLETED":
            raise RuntimeError(f"the run left alone failed: {place.client.read_flow_run(undisturbed).state.message}")
        expected = final_state(place.workspace_of(PROFILE, undisturbed))
        rows = []
        for case in [case for case in cases for _ in range(times)]:
            rows.append(stop_and_retry(place, case, expected))
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


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


def stop_and_retry(place: Site, case: str, expected: dict[str, Any]) -> dict[str, Any]:
    """One row."""
    stop, states = CASES[case]
    run_id = _start(place, time_limit_minutes=TIME_LIMIT_MINUTES) if case == "time-out" else _start(place)
    workspace = place.workspace_of(PROFILE, run_id)
    wait_for(lambda: last_step(workspace) >= FIRST_STEP, RUN_S, "training")
    began = time.monotonic()
    stop(place, run_id)
    orphans_s = _seconds(lambda: not place.processes(), ORPHAN_S) if case != "server-restarted" else 0.0
    state_s = _seconds(lambda: place.state(run_id)[0] in FINAL, RUN_S if case == "server-restarted" else STATE_S)
    state = place.state(run_id)
    checkpoints = sorted(path.name for path in (workspace / "runs/killed/checkpoints").glob("step-????????"))
    stopped_at = last_step(workspace)
    place.services("up")  # what was killed of them
    if state[0] != "COMPLETED":
        place.client.set_flow_run_state(run_id, Scheduled(message="retried"), force=True)
        time.sleep(1)
        _seconds(lambda: place.state(run_id)[0] in FINAL, RUN_S)
    found = final_state(workspace)
    row = {
        "case": case,
        "state": "/".join(state),
        "state_right": state[1] in states,
        "gone_after_s": orphans_s,
        "state_after_s": state_s,
        "checkpoints": checkpoints,
        "stopped_at": stopped_at,
        "after_retry": place.state(run_id)[1],
        "mlflow_runs": _mlflow_runs(place, run_id),
        "identical": found == expected,
        "seconds": round(time.monotonic() - began, 1),
    }
    good = row["state_right"] and orphans_s is not None and state_s is not None and checkpoints and row["identical"]
    return row | {"as_it_must_be": bool(good and row["after_retry"] == "Completed" and row["mlflow_runs"] == 1)}


def _start(place: Site, **more: Any) -> str:
    """A run that trains, whatever was published: only what comes before training may be taken over."""
    for published in (place.project / "workspaces/.published").glob("*.json"):
        published.unlink()
    return place.start("train-drafter", {"profile": PROFILE, **more})


def _seconds(condition: Callable[[], bool], limit: float) -> float | None:
    try:
        return wait_for(condition, limit, "")
    except RuntimeError:
        return None


def _cancel(place: Site, run_id: str) -> None:
    place.client.set_flow_run_state(run_id, Cancelling())


def _wait_for_time_out(place: Site, run_id: str) -> None:
    wait_for(lambda: place.state(run_id)[0] != StateType.RUNNING.value, TIME_LIMIT_MINUTES * 60 + STATE_S, "the time-out")


def _flow_process(place: Site) -> psutil.Process:
    """The process that runs the flow: the parent of the topmost that works in the workspace."""
    stages = place.processes()
    inner = {process.pid for process in stages}
    return next(process.parent() for process in stages if process.ppid() not in inner)


def _launcher(place: Site) -> psutil.Process:
    inner = {process.pid for process in place.processes()}
    return next(process for process in place.processes() if process.ppid() not in inner)


def _signal_flow(number: int) -> Callable[[Site, str], None]:
    return lambda place, run_id: _flow_process(place).send_signal(number)


def _kill_worker(place: Site, run_id: str) -> None:
    os.kill(read_pid(place.machine, "worker-gpu"), signal.SIGKILL)


def _kill_launcher(place: Site, run_id: str) -> None:
    _launcher(place).kill()


def _kill_rank(place: Site, run_id: str) -> None:
    _launcher(place).children()[-1].kill()


def _lose_node(place: Site, run_id: str) -> None:
    worker = psutil.Process(read_pid(place.machine, "worker-gpu"))
    doomed = [worker, *worker.children(recursive=True), *place.processes()]
    for process in doomed:
        process.suspend()  # so that none acts on the death of another, as if the power had gone
    for process in doomed:
        process.kill()


def _restart_server(place: Site, run_id: str) -> None:
    server = psutil.Process(read_pid(place.machine, "prefect"))
    for process in [*server.children(recursive=True), server]:
        process.kill()
    time.sleep(10)
    place.services("up")


def _mlflow_runs(place: Site, run_id: str) -> int:
    """Runs that the flow run has in MLflow."""
    code = (
        "import mlflow; c = mlflow.MlflowClient(); e = c.get_experiment_by_name('dflash');"
        f"""print(len(c.search_runs([e.experiment_id], "tags.`dflash.flow_run_id` = '{run_id}'")))"""
    )
    return int(run_command(place.project, "-c", f"import os; os.environ['MLFLOW_TRACKING_URI'] = '{place.machine.mlflow_uri}'; {code}").split()[-1])


TIME_LIMIT_MINUTES = 0.75
CASES: dict[str, tuple[Callable[[Site, str], None], set[str]]] = {
    "cancel": (_cancel, {"Cancelled"}),
    "time-out": (_wait_for_time_out, {"TimedOut"}),
    "flow-terminated": (_signal_flow(signal.SIGTERM), {"Crashed"}),
    "flow-killed": (_signal_flow(signal.SIGKILL), {"Crashed"}),
    "worker-killed": (_kill_worker, {"Crashed"}),
    "launcher-killed": (_kill_launcher, {"Failed"}),
    "rank-killed": (_kill_rank, {"Failed"}),
    "server-restarted": (_restart_server, {"Completed"}),
    "node-lost": (_lose_node, {"Crashed"}),
}

if __name__ == "__main__":
    sys.exit(main())
