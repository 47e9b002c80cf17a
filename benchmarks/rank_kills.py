"""Kills ranks of distributed runs with SIGKILL at random moments, resumes the runs to their end, and compares bit by bit.

    python benchmarks/rank_kills.py --n 20 --stops 6 --seed 0 --json rank_kills.json

The kills are dealt to the worlds in turn: two drafter ranks with sharded weights, three with whole ones, and two drafter ranks
with a target rank of their own. `dflash-core train --nproc N` starts each session; one kill in five strikes
while the ranks come up, two in a save, two anywhere in a step, and each takes a random rank. All processes of the launch must be gone
within 60 s, its exit code must not be 0, and its last line must name the rank. Stops send SIGTERM to the launcher instead,
which must end with code 4. Exit status 0 means that all of it holds, and that weights, moments and the losses of all
steps are those of the uninterrupted runs.

`--forked` forks launcher and ranks from this process, which saves 5 s of imports in each.
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil
from forked_launch import launch_forked
from kill_campaign import POLL_S, PROJECT, final_state, last_step, make_workspace, what_was_hit
from results import leave
from worlds import WORLDS, Layout, configure

from dflash_core.checkpoint.resume import RunDirectory

GONE_S = 60.0
AIMS = {"start": 1, "save": 2, "step": 2}
SPREAD_S = {"start": 6.0, "save": 0.03, "step": 0.3}  # kills are spread over so long after their event
DEFAULT_WORLDS = ("2 fsdp2", "3 ddp", "2+1 ddp")


class Launch(Protocol):
    """A launcher's process; `subprocess.Popen` is one."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int | None: ...
    def send_signal(self, sig: int) -> None: ...


Start = Callable[[Path, Sequence[str]], Launch]


@dataclass(frozen=True)
class Hit:
    """One kill or stop: what it aimed at, what it hit, and what came of it."""

    aim: str
    victim: int | None  # None: the launcher was asked to stop
    logged_step: int  # newest step in the log when all were gone
    committed_step: int
    hit: str
    gone_after_s: float
    exit_code: int | None
    said: str
    holds: bool


def main(arguments: list[str] | None = None) -> int:
    """Run the campaign; see the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=20, help="kills, over all worlds")
    parser.add_argument("--stops", type=int, default=6, help="stops, over all worlds")
    parser.add_argument("--seed", type=int, default=0, help="of ranks and moments")
    parser.add_argument("--steps", type=int, default=80, help="optimizer steps of each run")
    parser.add_argument("--worlds", nargs="+", choices=[name for name in WORLDS if name != "1"], default=DEFAULT_WORLDS)
    parser.add_argument("--forked", action="store_true", help="fork launcher and ranks instead of starting interpreters")
    parser.add_argument("--json", type=Path, help="file to write; default: print it")
    options = parser.parse_args(arguments)
    start = launch_forked if options.forked else launch_interpreters
    with tempfile.TemporaryDirectory(prefix="rank-kills-") as directory:
        result = campaign(Path(directory), options.worlds, options.n, options.stops, options.seed, options.steps, start)
    return leave(result, options.json, result["holds"])


def campaign(
    directory: Path, worlds: Sequence[str], num_kills: int, num_stops: int, seed: int, num_steps: int, start: Start
) -> dict[str, Any]:
    """All worlds, each with its share of kills and stops."""
    began, draw = time.perf_counter(), random.Random(seed)
    prepared = make_workspace(directory / "prepared", num_steps)
    blows = [*["kill"] * num_kills, *["stop"] * num_stops]
    result = {}
    for place, name in enumerate(worlds):
        mine = blows[place :: len(worlds)]
        draw.shuffle(mine)
        result[name] = strike_world(prepared, directory / name, WORLDS[name], mine, draw, num_steps, start)
    hits = [hit for figures in result.values() for hit in figures["hits"]]
    return {
        "seed": seed,
        "steps": num_steps,
        "worlds": result,
        "kills": sum(hit["victim"] is not None for hit in hits),
        "slowest_end_s": max((hit["gone_after_s"] for hit in hits), default=0.0),
        "identical": all(figures["identical"] for figures in result.values()),
        "holds": all(figures["identical"] for figures in result.values()) and all(hit["holds"] for hit in hits),
        "seconds": round(time.perf_counter() - began, 1),
    }


def strike_world(
    prepared: Path, directory: Path, world: Layout, blows: Sequence[str], draw: random.Random, num_steps: int, start: Start
) -> dict[str, Any]:
    """One run uninterrupted and one with blows, both to their end."""
    whole, struck = directory / "whole", directory / "struck"
    for workspace in (whole, struck):
        configure(prepared, workspace, world)
    finish(start(whole, command(world)), whole)
    hits = []
    for number, blow in enumerate(blows, start=1):
        # evenly over the first four fifths: a run that has ended can't be killed
        hits.append(strike(struck, world, blow, number * 4 * num_steps // (5 * (len(blows) + 1)), draw, start))
        print(hits[-1], file=sys.stderr, flush=True)
    finish(start(struck, command(world)), struck)
    expected, found = final_state(whole), final_state(struck)
    equal = {part: expected[part] == found[part] for part in expected}
    return {"hits": [asdict(hit) for hit in hits], "equal": equal, "identical": all(equal.values())}


def command(world: Layout) -> list[str]:
    """Arguments of dflash-core; `train` goes on with what it finds."""
    return ["train", "--nproc", str(world.size)]


def launch_interpreters(workspace: Path, arguments: Sequence[str]) -> Launch:
    """As a person would."""
    environment = os.environ | {"PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"}
    with (workspace / "output.txt").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "dflash_core", *arguments], cwd=workspace, env=environment, stdout=output, stderr=output
        )


def finish(launch: Launch, workspace: Path) -> None:
    """Wait for a run to its end."""
    if launch.wait(1200) != 0:
        raise RuntimeError(f"training ended with {launch.poll()}: {last_line(workspace)}")


def strike(workspace: Path, world: Layout, blow: str, from_step: int, draw: random.Random, start: Start) -> Hit:
    """Start, wait for a random moment, strike, and see what is left."""
    aim = draw.choices(list(AIMS), list(AIMS.values()))[0]
    victim, delay = draw.randrange(world.size), draw.uniform(0, SPREAD_S[aim])
    launch = start(workspace, command(world))
    ranks = wait_for_moment(launch, workspace, world.size, aim, from_step)
    time.sleep(delay)
    family = psutil.Process(launch.pid).children(recursive=True)
    if blow == "kill":
        ranks[victim].kill()
    else:
        launch.send_signal(signal.SIGTERM)
    gone_after_s = wait_until_gone(launch, family)
    said = last_line(workspace)
    right = re.search(rf"rank {victim} \(pid {ranks[victim].pid} .* SIGKILL", said) if blow == "kill" else launch.poll() == 4
    return Hit(
        aim,
        victim if blow == "kill" else None,
        last_step(workspace),
        *what_is_left(workspace),
        round(gone_after_s, 1),
        launch.poll(),
        said,
        bool(right) and gone_after_s < GONE_S and launch.poll() not in (0, None),
    )


def wait_for_moment(launch: Launch, workspace: Path, size: int, aim: str, from_step: int) -> dict[int, psutil.Process]:
    """Wait for all ranks to run and for what is aimed at; gives the processes of the ranks."""
    ranks: dict[int, psutil.Process] = {}
    checkpoints = RunDirectory(workspace / "runs" / "killed").store.root
    while (
        len(ranks) < size
        or (aim != "start" and last_step(workspace) < from_step)
        or (aim == "save" and not list(checkpoints.glob("*.tmp-*")))
    ):
        if launch.poll() is not None:
            raise RuntimeError(f"training ended with {launch.poll()} before it could be struck: {last_line(workspace)}")
        if len(ranks) < size:
            ranks = running_ranks(launch)
        time.sleep(POLL_S)
    return ranks


def running_ranks(launch: Launch) -> dict[int, psutil.Process]:
    """The launcher's children by rank, known by the file that their output goes to."""
    found = {}
    for child in psutil.Process(launch.pid).children():
        try:
            log = re.search(r"rank-(\d+)\.log$", os.readlink(f"/proc/{child.pid}/fd/1"))
        except OSError:
            continue
        if log:
            found[int(log[1])] = child
    return found


def wait_until_gone(launch: Launch, family: Sequence[psutil.Process]) -> float:
    """Seconds until the launcher and its family are gone; who is left after 60 s is killed."""
    began = time.monotonic()
    launch.wait(GONE_S)
    _, left = psutil.wait_procs(family, max(0.0, GONE_S - (time.monotonic() - began)))
    seconds = time.monotonic() - began
    for process in [*left, *([psutil.Process(launch.pid)] if launch.poll() is None else [])]:
        process.kill()
    return seconds


def what_is_left(workspace: Path) -> tuple[int, str]:
    """As `what_was_hit`; a rank that was killed while the first session came up has left nothing."""
    return what_was_hit(workspace) if RunDirectory(workspace / "runs" / "killed").log_path.exists() else (0, "nothing yet")


def last_line(workspace: Path) -> str:
    """The launcher's last word."""
    lines = (workspace / "output.txt").read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[-1] if lines else ""


if __name__ == "__main__":
    sys.exit(main())
