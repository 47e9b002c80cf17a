"""Kills a training run with SIGKILL at random moments, resumes it to its end, and compares its weights bit by bit.

    python benchmarks/kill_campaign.py --n 10 --seed 0 --out kills.json

The same tiny run (a random target made on the spot) is trained once without interruption and once with n kills,
each in a process of its own. Half of the kills aim into a save, which is written beside the steps: they wait for the temporary
directory of a checkpoint to appear and strike within the next few milliseconds. A fifth wait for one that has just been
committed, which the log doesn't know yet; the others strike anywhere in a step. Exit status 0 means that weights, moments,
generators and the losses of all steps are equal.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import yaml
from results import leave

from dflash_core.checkpoint.resume import RunDirectory
from dflash_core.config import load_config
from dflash_core.data.plan_manifest import write_plan
from dflash_core.data.prepare import prepare
from dflash_core.stages import layout
from dflash_core.target.tiny import make_tiny_target
from dflash_core.training.log_reader import read_log
from dflash_core.training.records import StepRecord

PROJECT = Path(__file__).resolve().parents[1]
AIMS = {"save": 5, "record": 2, "step": 3}
SPREAD_S = {"save": 0.03, "record": 0.02, "step": 0.1}  # kills are spread over so long after what they wait for
POLL_S = 0.0005
TRAIN = (sys.executable, "-m", "dflash_core", "train")
PARAMS = {
    "run": "killed",
    "target": {"path": "target", "dtype": "float32"},
    "data": {"conversations": ["conversations.jsonl"], "heldout_fraction": 0.1, "max_length": 96},
    "bucket": {"multiple": 16, "tokens_per_step": 256, "tokens_per_microbatch": 128},
    "drafter": {"num_layers": 2, "block_size": 4, "num_features": 2},
    "training": {"epochs": 100, "num_anchors": 8, "learning_rate": 2e-3, "precision": "float32"},
    "checkpoint": {"every": 3, "keep_last": 2, "evaluate": False, "proof_steps": 1},
}


class Process(Protocol):
    """A training process; `subprocess.Popen` is one."""

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int | None: ...
    def send_signal(self, sig: int) -> None: ...


Start = Callable[[Path], Process]


@dataclass(frozen=True)
class Kill:
    """One kill: what it aimed at, and what it hit."""

    aim: str
    logged_step: int  # newest step in the log when the process was dead
    committed_step: int  # newest checkpoint then
    hit: str


def main(arguments: list[str] | None = None) -> int:
    """Run the campaign; see the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=10, help="kills")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps of the run")
    parser.add_argument("--out", type=Path, help="JSON to write; default: print it")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="kill-campaign-") as directory:
        result = campaign(Path(directory), options.n, options.seed, options.steps)
    return leave(result, options.out, result["identical"])


def campaign(directory: Path, num_kills: int, seed: int, num_steps: int, start: Start | None = None) -> dict[str, object]:
    """Train uninterrupted and killed in `directory`; returns what was hit, and whether the results are equal.

    `start` begins training in a workspace in a process of its own; by default a new interpreter.
    """
    start = start or start_interpreter
    began = time.perf_counter()
    whole, killed = make_workspace(directory / "whole", num_steps), directory / "killed"
    shutil.copytree(whole, killed)
    uninterrupted = start(whole)
    moments = random.Random(seed)
    kills = [kill_once(killed, moments, (number + 1) * num_steps // (num_kills + 1), start) for number in range(num_kills)]
    for process in (uninterrupted, start(killed)):
        if process.wait(timeout=600) != 0:
            raise RuntimeError(f"training ended with {process.poll()}, see output.txt")
    expected, found = final_state(whole), final_state(killed)
    equal = {part: expected[part] == found[part] for part in expected}
    return {
        "kills": [asdict(kill) for kill in kills],
        "steps": num_steps,
        "seed": seed,
        "weights_digest": [expected["weights"], found["weights"]],
        "equal": equal,
        "identical": all(equal.values()),
        "seconds": round(time.perf_counter() - began, 1),
    }


def make_workspace(directory: Path, num_steps: int) -> Path:
    """A target, conversations, their tokens and the plan."""
    directory.mkdir(parents=True)
    make_tiny_target(directory / "target", seed=0)
    rows = [
        {
            "id": f"c{i}",
            "messages": [
                {"role": "user", "content": f"Count to {i}."},
                {"role": "assistant", "content": " ".join(map(str, range(i)))},
            ],
        }
        for i in range(2, 26)
    ]
    (directory / "conversations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    training = PARAMS["training"] | {"max_steps": num_steps}
    (directory / "params.yaml").write_text(yaml.safe_dump(PARAMS | {"training": training}), encoding="utf-8")
    before = Path.cwd()
    os.chdir(directory)  # the stages take their paths from the working directory
    try:
        config = load_config(Path("params.yaml"))
        prepare(config, layout.PREPARED)
        write_plan(config, layout.PREPARED, layout.PLAN)
    finally:
        os.chdir(before)
    return directory


def start_interpreter(workspace: Path) -> subprocess.Popen[bytes]:
    """Train in a process of its own; `train` continues what it finds."""
    environment = os.environ | {"PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"}
    with (workspace / "output.txt").open("ab") as output:
        return subprocess.Popen(TRAIN, cwd=workspace, env=environment, stdout=output, stderr=output)


def kill_once(workspace: Path, moments: random.Random, from_step: int, start: Start) -> Kill:
    """Start, wait for a random moment at or after `from_step`, kill."""
    aim = moments.choices(list(AIMS), list(AIMS.values()))[0]
    delay = moments.uniform(0, SPREAD_S[aim])
    process = start(workspace)
    wait_for_moment(process, workspace, aim, from_step)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return Kill(aim, last_step(workspace), *what_was_hit(workspace))


def wait_for_moment(process: Process, workspace: Path, aim: str, from_step: int) -> None:
    """Until `from_step` is logged, and then for what is aimed at."""
    store = RunDirectory(workspace / "runs" / "killed").store
    wait_until(lambda: last_step(workspace) >= from_step, process, workspace)  # at once where that is 0: the interpreter still starts
    newest = store.names()[-1:]
    events = {"save": lambda: any(store.root.glob("*.tmp-*")), "record": lambda: store.names()[-1:] != newest, "step": lambda: True}
    wait_until(events[aim], process, workspace)


def wait_until(event: Callable[[], bool], process: Process, workspace: Path) -> None:
    """Look every half a millisecond."""
    while not event():
        if process.poll() is not None:
            raise RuntimeError(f"training ended with {process.poll()} before it could be killed, see {workspace}/output.txt")
        time.sleep(POLL_S)


def last_step(workspace: Path) -> int:
    """Newest step that the log holds, superseded or not; cheap enough to poll."""
    try:
        lines = (workspace / "runs" / "killed" / "train_log.jsonl").read_bytes().splitlines()
    except FileNotFoundError:
        return 0
    for line in reversed(lines):
        try:
            record = json.loads(line)
        except ValueError:
            continue  # torn
        if record["kind"] != "checkpoint":  # that comes some steps after its own
            return int(record["step"])
    return 0


def what_was_hit(workspace: Path) -> tuple[int, str]:
    """Newest committed step, and the state that the dead process left."""
    directory = RunDirectory(workspace / "runs" / "killed")
    if not directory.log_path.exists():
        return 0, "before the log"
    names = directory.store.names()
    leftovers = sorted(path.name.split(".")[1].split("-")[0] for path in directory.store.root.glob("step-*.*-*"))
    records = read_log(directory.log_path)
    logged = [record.name for record in records if record.kind == "checkpoint"]
    if "tmp" in leftovers:
        hit = "save unfinished"
    elif names and names[-1] not in logged:
        hit = "save committed, not yet in the log"
    elif leftovers:
        hit = "deletion unfinished"
    elif not directory.log_path.read_bytes().endswith(b"\n"):
        hit = "log line torn"
    else:
        hit = "between saves"
    return (int(names[-1].removeprefix("step-")) if names else 0), hit


def final_state(workspace: Path) -> dict[str, object]:
    """What must be equal: digests of the last checkpoint's tensors, and each step's losses, rates and samples."""
    directory = RunDirectory(workspace / "runs" / "killed")
    committed = directory.store.load_newest().committed
    manifest = json.loads((committed.path / "manifest.json").read_text(encoding="utf-8"))
    steps = [
        (r.step, r.loss_sum, r.denominator, r.grad_norm, r.lr, r.streak, r.first_sample, r.last_sample)
        for r in read_log(directory.log_path)
        if isinstance(r, StepRecord)
    ]
    return {"step": committed.step, **manifest["digests"], "steps": steps}


if __name__ == "__main__":
    sys.exit(main())
