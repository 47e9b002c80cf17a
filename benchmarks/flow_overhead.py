"""What the flow adds to the plain commands of its stages: the smoke profile, each way in turn, in the same workspace.

    python benchmarks/flow_overhead.py --n 3 --json overhead.json

With a running server and worker, a run that does every stage is timed from its start to its end; then the stages' commands, as
dvc.yaml declares them, one after the other. Each begins in an empty workspace. The least of the n times counts on either side,
for what else the machine does only adds to them. Exit status 0 means that the flow adds 5 s at most.
"""

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from kill_campaign import PROJECT
from results import leave
from services_site import Site, site, wait_for
from starts import RUN_S
from stop_matrix import FINAL

from dflash_core.target.tiny import make_tiny_target
from tasks.launch import stage_environment

PROFILE = "overhead"
SECONDS_ALLOWED = 5.0


def main(arguments: list[str] | None = None) -> int:
    """Measure; see the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=3, help="times each way")
    parser.add_argument("--json", type=Path, help="file to write; default: print")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="flow-overhead-") as directory:
        result = measure(Path(directory), options.n)
    return leave(result, options.json, result["overhead_seconds"] <= SECONDS_ALLOWED)


def measure(directory: Path, times: int) -> dict[str, Any]:
    """Seconds of the flow and of the commands, and what is between the least of each."""
    flows, commands = [], []
    with site(directory, PROFILE, smoke_settings(directory)) as place:
        place.leave_out_evaluations()
        workspace = place.project / "workspaces" / PROFILE
        for _ in range(times):
            _empty(workspace)
            flows.append(flow_seconds(place))
            _empty(workspace)
            commands.append(command_seconds(place, workspace))
            print({"flow": flows[-1], "commands": commands[-1]}, file=sys.stderr, flush=True)
    between = min(flows) - min(sum(stages.values()) for stages in commands)
    return {"flow_seconds": flows, "command_seconds": commands, "overhead_seconds": round(between, 2)}


def smoke_settings(directory: Path) -> dict[str, Any]:
    """The smoke profile with absolute paths, its target made on the spot."""
    make_tiny_target(directory / "target", seed=0)
    settings = yaml.safe_load((PROJECT / "profiles/smoke.yaml").read_text(encoding="utf-8"))
    data = settings["data"] | {"conversations": [str(PROJECT / "data/smoke.jsonl")]}
    return settings | {"target": settings["target"] | {"path": str(directory / "target")}, "data": data}


def flow_seconds(place: Site) -> float:
    """One run of every stage in the workspace of the profile's name."""
    run_id = place.start("train-drafter", {"profile": PROFILE, "workspace": PROFILE, "force": True})
    wait_for(lambda: place.state(run_id)[0] in FINAL, RUN_S, "the run")
    run = place.client.read_flow_run(run_id)
    if run.state.name != "Completed":
        raise RuntimeError(json.dumps(place.state(run_id)))
    return round(run.total_run_time.total_seconds(), 2)


def command_seconds(place: Site, workspace: Path) -> dict[str, float]:
    """Each stage's command, in the order of dvc.yaml."""
    seconds = {}
    for name, stage in yaml.safe_load((workspace / "dvc.yaml").read_text(encoding="utf-8"))["stages"].items():
        began = time.monotonic()
        subprocess.run(shlex.split(stage["cmd"]), cwd=workspace, env=stage_environment(place.project), stdout=subprocess.DEVNULL, check=True)
        seconds[name] = round(time.monotonic() - began, 2)
    return seconds


def _empty(workspace: Path) -> None:
    """Leave what configures it."""
    for name in ("build", "runs", "logs"):
        shutil.rmtree(workspace / name, ignore_errors=True)
    (workspace / "dvc.lock").unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
