"""Measures what tracking costs a training whose MLflow is down from beginning to end, and what MLflow has of it afterwards.

    python benchmarks/tracking_outage.py --n 4 --steps 500

A pair is two whole runs of the real command, one without tracking and one with it, that take turns of two seconds: one goes,
the other is stopped with all its processes, what tracks it included. On a shared machine the pace of one and the same run
drifts by a fifth within minutes, which would hide what is measured between runs that come one after the other. Steps that a
turn's end falls into don't count. While the tracked ones train, nothing listens at their MLflow's port. Then a real server is
started there and each run is delivered twice, by the command that a person would use. Every finite number of the log must be
there exactly once.
"""

import argparse
import collections
import contextlib
import itertools
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml
from results import leave

import tasks.environment  # noqa: F401
from dflash_core.target.tiny import make_tiny_target
from tasks import deliver, mlflow_store, shipping
from tasks.launch import stage_environment
from tasks.log_records import measurements
from tasks.log_tail import new_records
from tasks.tracking import Tracker, following
from tasks.workspace import PROJECT

# The first steps load and warm what later ones use.
WARM = 20
MOST_RATIO = 1.05
KINDS = ("plain", "tracked")
TURN_S = 2.0
SETTLE_S = 0.2  # after it was stopped, caches are another's


def prepare(root: Path, steps: int) -> dict[str, Any]:
    """The smoke profile with a longer training, its stages before the training run; gives its configuration."""
    config = yaml.safe_load((PROJECT / "profiles/smoke.yaml").read_text())
    config["target"]["path"] = str(root / "target")
    config["data"]["conversations"] = [str(PROJECT / "data/smoke.jsonl")]
    config["training"] |= {"max_steps": steps, "epochs": steps}
    config["checkpoint"] |= {"every": 250, "evaluate": False}
    make_tiny_target(root / "target", seed=0)
    write(root, config)
    for stage in ("prepare", "bucket", "features"):
        run(root, stage)
    return config


def write(root: Path, config: dict[str, Any]) -> None:
    """params.yaml."""
    (root / "params.yaml").write_text(yaml.safe_dump(config))


def run(root: Path, stage: str) -> None:
    """A stage, by its command."""
    subprocess.run(
        [sys.executable, "-m", "dflash_core", stage], cwd=root, env=stage_environment(PROJECT), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    )


def train(root: Path, config: dict[str, Any], name: str, uri: str | None) -> Path:
    """One training; tracked where it has a URI, as the flow does it. Gives its directory."""
    write(root, config | {"run": name})
    run_dir = root / "runs" / name
    with following(Tracker(uri, run_dir), run_dir / shipping.LOG) if uri else contextlib.nullcontext():
        run(root, "train")
    return run_dir


def train_pair(roots: dict[str, Path], config: dict[str, Any], pair: int, uri: str) -> dict[str, list[float]]:
    """Both kinds, turn by turn; gives the times of the steps of each."""
    uris, context = {"plain": None, "tracked": uri}, multiprocessing.get_context("spawn")
    order = KINDS if pair % 2 == 0 else KINDS[::-1]
    trainings = {kind: context.Process(target=train, args=(roots[kind], config, f"{kind}-{pair}", uris[kind])) for kind in order}
    turns = take_turns(trainings)
    for training in trainings.values():
        training.join()
    if ended := {kind: training.exitcode for kind, training in trainings.items() if training.exitcode != 0}:
        raise RuntimeError(f"trainings of pair {pair} ended with {ended}, expected 0: their steps are not to be compared. Their tracebacks stand above.")
    return {kind: step_seconds(roots[kind] / f"runs/{kind}-{pair}", turns[kind]) for kind in KINDS}


def take_turns(trainings: dict[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """Start all and let each go for a while, as long as none has ended; gives from when to when each went."""
    turns: dict[str, list[tuple[float, float]]] = {kind: [] for kind in trainings}
    for training in trainings.values():
        training.start()
        _all_of(training, psutil.Process.suspend)
    while all(training.is_alive() for training in trainings.values()):
        for kind, training in trainings.items():
            began = time.time()
            _all_of(training, psutil.Process.resume)
            training.join(TURN_S)
            turns[kind].append((began, time.time()))
            _all_of(training, psutil.Process.suspend)
    for training in trainings.values():
        _all_of(training, psutil.Process.resume)
    return turns


def _all_of(training: Any, act: Callable[[psutil.Process], None]) -> None:
    """A process and its descendants, as far as they still are."""
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(training.pid)
        for process in [root, *root.children(recursive=True)]:
            act(process)


def step_seconds(run_dir: Path, turns: list[tuple[float, float]]) -> list[float]:
    """From one step's record to the next, where both lie in one turn, after its beginning."""
    times = [r["wall_time"] for r in records(run_dir) if r["kind"] == "step"][WARM:]
    return [after - before for before, after in itertools.pairwise(times) if any(a + SETTLE_S < before and after < b for a, b in turns)]


def records(run_dir: Path) -> list[dict[str, Any]]:
    """Of the log."""
    return new_records(run_dir / shipping.LOG, 0)[0]


@contextlib.contextmanager
def server(root: Path, port: int) -> Iterator[None]:
    """MLflow, as a person starts it."""
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{root / 'mlflow.db'}", "--artifacts-destination", str(root / "artifacts")]
    with (root / "server.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"})
        try:
            await_server(port)
            yield
        finally:
            process.terminate()
            process.wait(30)


def await_server(port: int) -> None:
    """Until it listens."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.5)
    raise TimeoutError(port)


def wrong_metrics(uri: str, run_dir: Path) -> tuple[int, int]:
    """How many numbers the log has, and how many are not there exactly once (or are there and not in the log)."""
    expected: collections.Counter[tuple[str, int, float]] = collections.Counter()
    for record in records(run_dir):
        for metric in mlflow_store.metrics_of(measurements(record), record["step"], 0):
            expected[metric.key, metric.step, metric.value] += 1
    client, found = mlflow_store.client_of(uri), collections.Counter()
    run_id = shipping.known_run(uri, run_dir)
    for key in client.get_run(run_id).data.metrics:
        if not key.startswith("system/"):
            found.update((key, m.step, m.value) for m in client.get_metric_history(run_id, key))
    return expected.total(), sum(abs(expected[k] - found[k]) for k in {*expected, *found})


def measure(pairs: int, steps: int) -> dict[str, Any]:
    """Step times of both kinds, and what arrived."""
    with tempfile.TemporaryDirectory() as directory, socket.socket() as reserved:
        root = Path(directory)
        reserved.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        uri = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        roots = {kind: root / kind for kind in KINDS}
        config = prepare(roots["plain"], steps)
        shutil.copytree(roots["plain"], roots["tracked"])
        by_pair = [train_pair(roots, config, pair, uri) for pair in range(pairs)]
        seconds = {kind: [one for times in by_pair for one in times[kind]] for kind in KINDS}
        reserved.close()
        with server(root, int(uri.rpartition(":")[2])):
            arrived = [deliver_twice(roots["tracked"] / f"runs/tracked-{pair}", uri) for pair in range(pairs)]
    return {
        "pairs": pairs,
        "steps": steps,
        "steps_timed": {kind: len(all_s) for kind, all_s in seconds.items()},
        "median_ms": {kind: 1e3 * float(np.median(all_s)) for kind, all_s in seconds.items()},
        "p95_ms": {kind: 1e3 * float(np.quantile(all_s, 0.95)) for kind, all_s in seconds.items()},
        "median_ratio": ratio(seconds, 0.5),
        "p95_ratio": ratio(seconds, 0.95),
        "ratios_by_pair": [[round(ratio(times, q), 4) for q in (0.5, 0.95)] for times in by_pair],
        "delivery": arrived,
    }


def deliver_twice(run_dir: Path, uri: str) -> dict[str, Any]:
    """By the command, and again."""
    began = time.perf_counter()
    deliver.ship_run(run_dir, uri)
    took = time.perf_counter() - began
    (run_dir / shipping.CURSOR).unlink()  # the second time nobody knows what was delivered
    deliver.ship_run(run_dir, uri)
    total, wrong = wrong_metrics(uri, run_dir)
    return {"metrics": total, "wrong": wrong, "seconds": round(took, 2)}


def ratio(seconds: dict[str, list[float]], quantile: float) -> float:
    """Tracked over plain."""
    return float(np.quantile(seconds["tracked"], quantile) / np.quantile(seconds["plain"], quantile))


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=4, help="pairs of runs")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    result = measure(arguments.n, arguments.steps)
    complete = all(run["metrics"] and not run["wrong"] for run in result["delivery"])
    return leave(result, arguments.json, complete and max(result["median_ratio"], result["p95_ratio"]) <= MOST_RATIO)


if __name__ == "__main__":
    sys.exit(main())
