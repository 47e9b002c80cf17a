"""Trains the same tiny run in worlds of one, two and three processes and compares samples, losses and weights.

    python benchmarks/worlds.py --n 40 --json worlds.json

In float32 on gloo. Every rank notes the ids that it trained on: they must be those that the plan deals it. Losses must
be those of one process within 1e-5 relative, final weights within 1e-4 relative L2 over all parameters. Every world is
trained twice, bit-identically. A run that is stopped twice and continued by other numbers of ranks must consume the same
ids, with losses within 1e-4. Two nodes on loopback are started by our launcher, and by the torchrun command that
it prints. Exit status 0 means that all of it holds.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from forked_ranks import on_ranks
from kill_campaign import PROJECT, final_state, make_workspace
from results import leave

from dflash_core.checkpoint.resume import RunDirectory
from dflash_core.config import load_config
from dflash_core.data.dataset import Dataset
from dflash_core.data.plan import BatchPlan
from dflash_core.errors import Stopped
from dflash_core.launcher.options import LaunchOptions
from dflash_core.stages import layout
from dflash_core.stages.train import train
from dflash_core.training import loop
from dflash_core.training.log_reader import read_log
from dflash_core.training.records import StartRecord, StepRecord

LOSS_LIMIT, WEIGHTS_LIMIT, RESUMED_LOSS_LIMIT = 1e-5, 1e-4, 1e-4
SPLIT = {"placement": "split"}


@dataclass(frozen=True)
class Layout:
    """Processes of a world, and the distributed settings that differ from the defaults."""

    size: int
    settings: dict[str, object] = field(default_factory=dict)

    @property
    def num_drafters(self) -> int:
        """Drafter ranks, which are the first."""
        return self.size - int(self.settings.get("target_ranks", 0))


WORLDS = {
    "1": Layout(1),
    "2 ddp": Layout(2),
    "2 fsdp2": Layout(2, {"parallel": "fsdp2"}),
    "1+1": Layout(2, SPLIT | {"target_ranks": 1}),
    "1+2": Layout(3, SPLIT | {"target_ranks": 2}),
    "1+2 tensor parallel": Layout(3, SPLIT | {"target_ranks": 2, "tensor_parallel": 2}),
    "2+1 ddp": Layout(3, SPLIT | {"target_ranks": 1}),
    "2+1 fsdp2": Layout(3, SPLIT | {"target_ranks": 1, "parallel": "fsdp2"}),
    "3 ddp": Layout(3),
    "3 fsdp2": Layout(3, {"parallel": "fsdp2"}),
}
CHAINS = (("1", "3 ddp", "1"), ("1", "3 fsdp2", "1"), ("1", "2+1 fsdp2", "2 ddp"))


def main(arguments: list[str] | None = None) -> int:
    """Run the campaign; see the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=40, help="optimizer steps of each run")
    parser.add_argument("--worlds", nargs="+", choices=list(WORLDS), default=list(WORLDS))
    parser.add_argument("--no-nodes", action="store_true", help="leave out the two nodes, whose processes import torch anew")
    parser.add_argument("--json", type=Path, help="file to write; default: print it")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="worlds-") as directory:
        result = campaign(Path(directory), options.n, options.worlds, CHAINS, () if options.no_nodes else ("launcher", "torchrun"))
    return leave(result, options.json, result["holds"])


def campaign(
    directory: Path, num_steps: int, names: Iterable[str], chains: Sequence[Sequence[str]], nodes: Sequence[str] = ()
) -> dict[str, Any]:
    """Train and compare in `directory`."""
    prepared = make_workspace(directory / "prepared", num_steps)
    one = run_world(prepared, directory / "one", WORLDS["1"])
    worlds, resumed, launched = {}, {}, {}
    for name in names:
        worlds[name] = compare_world(prepared, directory / name, WORLDS[name], one)
        say(name, worlds[name])
    for chain in chains:
        name = " -> ".join(chain)
        resumed[name] = compare_chain(prepared, directory / name, [WORLDS[link] for link in chain], one, num_steps)
        say(name, resumed[name])
    for way in nodes:
        launched[way] = compare_nodes(prepared, directory / way, way, one)
        say(f"two nodes by {way}", launched[way])
    figures = [*worlds.values(), *resumed.values(), *launched.values()]
    return {
        "steps": num_steps,
        "worlds": worlds,
        "resumed": resumed,
        "two_nodes": launched,
        "largest": {key: max(f[key] for f in figures) for key in ("loss_difference", "weights_difference", "largest_dw")},
        "holds": all(f["holds"] for f in figures),
    }


def say(name: str, figures: dict[str, Any]) -> None:
    """One line to follow a long run by."""
    print(f"{name}: {figures}", file=sys.stderr, flush=True)


def compare_world(prepared: Path, directory: Path, world: Layout, one: Path) -> dict[str, Any]:
    """Two runs of the world, against each other and against one process."""
    began = time.perf_counter()
    first = run_world(prepared, directory / "first", world)
    seconds = time.perf_counter() - began
    second = run_world(prepared, directory / "second", world)
    figures = differences(first, one, LOSS_LIMIT) | {
        "ids_as_planned": all(ids_as_planned(run, [world]) for run in (first, second)),
        "repeats_to_the_bit": final_state(first) == final_state(second),
        "seconds": round(seconds, 1),
    }
    return figures | {"holds": figures["holds"] and figures["ids_as_planned"] and figures["repeats_to_the_bit"]}


def compare_chain(prepared: Path, directory: Path, chain: Sequence[Layout], one: Path, num_steps: int) -> dict[str, Any]:
    """A run that each world of the chain continues for its part of the steps."""
    for number, world in enumerate(chain, start=1):
        last = number == len(chain)
        run_world(prepared, directory, world, stop_after=None if last else num_steps * number // len(chain), session=number)
    figures = differences(directory, one, RESUMED_LOSS_LIMIT) | {"ids_as_planned": ids_as_planned(directory, chain)}
    return figures | {"holds": figures["holds"] and figures["ids_as_planned"]}


def run_world(prepared: Path, directory: Path, world: Layout, stop_after: int | None = None, session: int = 1) -> Path:
    """Train in a copy of the prepared workspace, or go on there; `stop_after` is the step after which a signal comes."""
    configure(prepared, directory, world)
    on_ranks(world.size, train_watched, directory, stop_after, session)
    return directory


def configure(prepared: Path, directory: Path, world: Layout) -> None:
    """A copy of the prepared workspace, set to the world."""
    if not directory.exists():
        shutil.copytree(prepared, directory)
    tree = yaml.safe_load((directory / "params.yaml").read_text(encoding="utf-8"))
    (directory / "params.yaml").write_text(yaml.safe_dump(tree | {"distributed": world.settings}), encoding="utf-8")


def train_watched(workspace: Path, stop_after: int | None, session: int) -> None:
    """Train as one rank, and note the ids of every step before it is done."""
    rank, genuine = int(os.environ["RANK"]), loop.train_step
    with (workspace / f"ids-{session}-{rank}.jsonl").open("w", encoding="utf-8") as notes:

        def noted(trainee: Any, optimizer: Any, batch: Any, *rest: Any) -> Any:
            notes.write(json.dumps([batch.outline.step, *batch.sample_ids]) + "\n")
            if batch.outline.step == stop_after and rank == 0:
                os.kill(os.getpid(), signal.SIGTERM)
            return genuine(trainee, optimizer, batch, *rest)

        loop.train_step = noted
        try:
            train(load_config(workspace / "params.yaml"), workspace, resume="auto")
        except Stopped:
            if stop_after is None:
                raise


def ids_as_planned(workspace: Path, sessions: Sequence[Layout]) -> bool:
    """Whether the ranks of all sessions together trained on what the plan deals them: every step once, every id in its order."""
    config = load_config(workspace / "params.yaml")
    dataset = Dataset.open(workspace / layout.PREPARED, "train")
    plan = BatchPlan(dataset.lengths, config.bucket, config.training.seed)
    step = 0
    for session, world in enumerate(sessions, start=1):
        noted = [read_notes(workspace / f"ids-{session}-{rank}.jsonl") for rank in range(world.num_drafters)]
        for of_ranks in zip(*noted, strict=True):
            step += 1
            shares = plan.shares(plan.step_number(step - 1), world.num_drafters)
            dealt = [[step, *(dataset.sample_id(row) for micro in share for row in micro.rows)] for share in shares]
            if list(of_ranks) != dealt:
                return False
    return step == config.training.max_steps + config.checkpoint.proof_steps


def read_notes(path: Path) -> list[list[Any]]:
    """[step, id, ...] of each step of a rank."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def differences(workspace: Path, one: Path, loss_limit: float) -> dict[str, Any]:
    """How far the run is from that of one process."""
    mine, theirs = steps_of(workspace), steps_of(one)
    same_samples = [(s.step, s.first_sample, s.last_sample) for s in mine] == [(s.step, s.first_sample, s.last_sample) for s in theirs]
    loss = max(abs(a.loss - b.loss) / abs(b.loss) for a, b in zip(mine, theirs, strict=True))
    own, other = weights_of(workspace), weights_of(one)
    apart = sum(float((own[name] - other[name]).double().square().sum()) for name in other) ** 0.5
    size = sum(float(weight.double().square().sum()) for weight in other.values()) ** 0.5
    figures = {
        "same_samples": same_samples,
        "loss_difference": loss,
        "weights_difference": apart / size,
        "largest_dw": max(float((own[name] - other[name]).abs().max()) for name in other),
    }
    return figures | {"holds": same_samples and loss <= loss_limit and apart / size <= WEIGHTS_LIMIT}


def steps_of(workspace: Path) -> list[StepRecord]:
    """Steps that count."""
    return [r for r in read_log(RunDirectory(workspace / "runs" / "killed").log_path) if isinstance(r, StepRecord)]


def weights_of(workspace: Path) -> dict[str, Any]:
    """Tensors of the last checkpoint."""
    return dict(RunDirectory(workspace / "runs" / "killed").store.load_newest().contents.weights)


def compare_nodes(prepared: Path, directory: Path, way: str, one: Path) -> dict[str, Any]:
    """Two agents on loopback with one rank each, started as a person would."""
    configure(prepared, directory, Layout(2))
    endpoint = f"127.0.0.1:{free_port()}"
    environment = os.environ | {"PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    agents = []
    for node in range(2):
        command = agent_command(way, LaunchOptions(nproc=1, nnodes=2, node_rank=node, rdzv_endpoint=endpoint))
        with (directory / f"node-{node}.txt").open("wb") as output:
            agents.append(subprocess.Popen(command, shell=True, cwd=directory, env=environment, stdout=output, stderr=output))
    codes = [agent.wait(600) for agent in agents]
    if codes != [0, 0]:
        raise RuntimeError(f"the agents ended with {codes}: {(directory / 'node-0.txt').read_text()[-2000:]}")
    ranks = [r.world["size"] for r in read_log(RunDirectory(directory / "runs" / "killed").log_path) if isinstance(r, StartRecord)]
    figures = differences(directory, one, LOSS_LIMIT)
    return figures | {"exit_codes": codes, "ranks": ranks, "holds": figures["holds"] and ranks == [2]}


def agent_command(way: str, options: LaunchOptions) -> str:
    """Shell command of one node: our launcher, or the torchrun that it says is the same."""
    if way == "torchrun":
        return options.torchrun_command(["-m", "dflash_core", "train"])
    place = f"--nnodes {options.nnodes} --node-rank {options.node_rank} --rdzv-endpoint {options.rdzv_endpoint}"
    return f"{sys.executable} -m dflash_core train --nproc {options.nproc} {place}"


def free_port() -> int:
    """A port that was free a moment ago: two nodes must be told one before either listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


if __name__ == "__main__":
    sys.exit(main())
