"""Holds `train --plan` to what training really takes: peak memory and disk of scaled-down runs against the estimate.

    python benchmarks/plan_estimate.py --presets target drafter activations --n 3 --out plan.json

Each preset makes a random target, conversations and a workspace in a temporary directory, and trains n steps in a
process of its own, with a checkpoint and its evaluation after every step. What dominates memory differs: the target's
weights, the drafter with its state, activations, features. Exit status 0 means that every ratio of estimate to
measured lies within 15 %.

Memory is the peak of the resident set less what is resident after all imports. The peak is VmHWM of the process:
ru_maxrss would do, but a child inherits there what its parent had resident when it forked. Pages of the memory-mapped
weight files count, as long as they are mapped; what the kernel keeps of files that nobody maps does not.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import chdir
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from plan_presets import PRESETS, RUN, Preset, make_workspace
from results import leave

PROJECT = Path(__file__).resolve().parents[1]
TOLERANCE = 0.15
POLL_S = 0.01


def main(arguments: list[str] | None = None) -> int:
    """Run the presets; see the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", choices=PRESETS, default=list(PRESETS), help="which runs")
    parser.add_argument("--n", type=int, default=3, help="optimizer steps of a run")
    parser.add_argument("--seed", type=int, default=0, help="of weights and conversations")
    parser.add_argument("--out", type=Path, help="JSON to write; default: print it")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        print(json.dumps(train_here(options.child)))
        return 0
    results = {}
    for name in options.presets:
        with tempfile.TemporaryDirectory(prefix="plan-estimate-") as directory:
            results[name] = compare(PRESETS[name], Path(directory), options.n, options.seed)
        memory, disk = results[name]["memory"], results[name]["disk"]
        print(f"{name}: memory {memory['ratio']:.3f}, disk {disk['ratio']:.3f} of measured", file=sys.stderr, flush=True)
    ratios = [result[what]["ratio"] for result in results.values() for what in ("memory", "disk")]
    return leave({"n": options.n, "seed": options.seed, "results": results}, options.out, all(abs(ratio - 1) <= TOLERANCE for ratio in ratios))


def compare(preset: Preset, directory: Path, num_steps: int, seed: int) -> dict[str, Any]:
    """Estimate and measure one preset in `directory`; bytes, and estimate / measured."""
    make_workspace(preset, directory, num_steps, seed)
    if preset.settings["training"].get("feature_source") == "cached":
        run_stage(directory, "features")
    estimated = estimate(directory)
    measured = measure(directory)
    memory, disk = estimated["memory_bytes"], estimated["disk_bytes"]
    return {
        "preset": asdict(preset),
        "memory": ratio_of(memory, measured["peak_bytes"] - measured["imported_bytes"]) | {"items": estimated["memory"], "peak": estimated["peak"]},
        "disk": ratio_of(disk, measured["disk_bytes"]) | {"items": estimated["disk"], "measured_items": measured["disk"]},
        "imported_bytes": measured["imported_bytes"],
        "step_seconds": {"measured": measured["step_seconds"]},
    }


def ratio_of(estimate: float, measured: float) -> dict[str, float]:
    """Both, and estimate / measured."""
    return {"estimate": estimate, "measured": measured, "ratio": estimate / measured}


def estimate(directory: Path) -> dict[str, Any]:
    """What the plan says of one process on this machine's CPU, imports and what only DVC or later stages write left out."""
    from dflash_core.config import load_config
    from dflash_core.plan_estimate.disk import DVC_CACHE, disk_items, disk_peak
    from dflash_core.plan_estimate.items import peak
    from dflash_core.plan_estimate.memory import IMPORTED_BYTES, memory_items
    from dflash_core.plan_estimate.sizing import sizings_of
    from dflash_core.stages import layout

    with chdir(directory):
        (sizing,) = sizings_of(load_config(Path("params.yaml")), num_ranks=1)
    items = memory_items(sizing, "cpu")
    phase, total = peak(items)
    left_out = (DVC_CACHE, str(layout.DRAFTER), str(layout.EVALUATION), str(layout.REPORT))
    disk = [item for item in disk_items(sizing) if item.path not in left_out]
    moment, disk_bytes = disk_peak(disk)
    return {
        "memory": {item.name: item.bytes for item in items if phase in item.phases},
        "peak": phase,
        "memory_bytes": total - IMPORTED_BYTES,
        "disk": {item.name: item.bytes for item in disk if moment in item.moments},
        "disk_bytes": disk_bytes,
    }


def measure(directory: Path) -> dict[str, Any]:
    """Train in a process of its own; its memory, and the most that lay in build/ and runs/ meanwhile."""
    largest = Largest(directory)
    with largest:
        output = run_child([sys.executable, __file__, "--child", str(directory)], directory)
    found = json.loads(output.splitlines()[-1])
    return found | {"disk": largest.parts, "disk_bytes": largest.total}


def run_stage(directory: Path, stage: str) -> None:
    """One stage as a command."""
    run_child([sys.executable, "-m", "dflash_core", stage], directory)


def run_child(command: list[str], directory: Path) -> str:
    """Standard output of a command in `directory`; what it says goes to output.txt there."""
    environment = os.environ | {"PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"}
    with (directory / "output.txt").open("ab") as messages:
        done = subprocess.run(command, cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=messages, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {(directory / 'output.txt').read_text()[-2000:]}")
    return done.stdout


def train_here(directory: Path) -> dict[str, Any]:
    """In the child: import all that training imports, then train."""
    import transformers.models.llama.modeling_llama
    import transformers.models.qwen3.modeling_qwen3  # noqa: F401

    from dflash_core.config import load_config
    from dflash_core.stages import train_run
    from dflash_core.training.log_reader import read_log

    imported = resident("VmRSS")
    os.chdir(directory)
    config = load_config(Path("params.yaml"))
    print(train_run.run(config), file=sys.stderr)
    steps = [record for record in read_log(config.run_dir / "train_log.jsonl") if record.kind == "step"]
    seconds = [record.target_s + record.drafter_s for record in steps[1:]]  # the first one generates kernels
    return {"imported_bytes": imported, "peak_bytes": resident("VmHWM"), "step_seconds": seconds}


def resident(key: str) -> int:
    """Bytes of an entry of /proc/self/status."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


class Largest:
    """Watches a workspace's size from a thread: `total` at its largest, and `parts` by directory then."""

    def __init__(self, directory: Path) -> None:
        self.total, self.parts = 0, {}
        self._directory, self._ended = directory, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        places = ["build/prepared", "build/features", "build/drafter", f"runs/{RUN}"]
        while not self._ended.is_set():
            parts = {place: size_of(self._directory / place) for place in places}
            if sum(parts.values()) > self.total:
                self.total, self.parts = sum(parts.values()), parts
            time.sleep(POLL_S)


def size_of(directory: Path) -> int:
    """Bytes of all files below; those that vanish while they are counted don't count."""
    total = 0
    for root, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except FileNotFoundError:
                continue
    return total


if __name__ == "__main__":
    sys.exit(main())
