"""Measures how long a save blocks the training, what it costs the training beside it, and whether steps go missing.

    python benchmarks/save_stall.py --n 20 --json save_stall.json

A model with its AdamW moments, 200 MB together, is saved in turn by our saves, torch.save with fsync, and dcp.save, in random
order within each round, beside one `copy_` of the same tensors into buffers that are kept and touched. Then the same for
shards on two ranks. Then it trains, in steps of at least half a second on all cores: micro-batches done while a save is being
written, against those of the same time without. At last a small drafter trains 2,000 short steps with a save every 20.
Exit status 0 means that the limits below hold.
"""

import argparse
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from forked_ranks import on_ranks
from memory_world import make_world
from results import leave
from save_ways import Model, OurSave, copy_all, dcp_save, torch_save
from saving_run import SavingRun
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from dflash_core.checkpoint.resume import RunDirectory
from dflash_core.checkpoint.staging import HostBuffers
from dflash_core.training.hooks import Position

RATIO_LIMIT, SHARDED_RATIO_LIMIT, SYNC_SHARE_LIMIT, THROUGHPUT_LIMIT = 1.5, 2.5, 0.2, 0.85
STEP_S = 0.5
PARTS = ("sharded", "stall", "throughput", "short_steps")  # the forks come before this process has threads of its own


def main(arguments: list[str] | None = None) -> int:
    """Measure; see the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=20, help="rounds, and saves beside the training")
    parser.add_argument("--steps", type=int, default=2000, help="short steps with a save every 20")
    parser.add_argument("--seed", type=int, default=0, help="of the order within a round")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--directory", type=Path, help="where to write; default: a temporary one")
    parser.add_argument("--json", type=Path, help="file to write; default: print it")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="save-stall-", dir=options.directory) as directory:
        result = measure(Path(directory), options.parts, options.n, options.steps, options.seed)
    return leave(result, options.json, result["holds"])


def measure(directory: Path, names: Sequence[str], n: int, steps: int, seed: int) -> dict[str, Any]:
    """The named parts."""
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "sharded": lambda: on_ranks(2, measure_sharded, n)[0],
        "stall": lambda: measure_stall(directory / "stall", n, random.Random(seed)),
        "throughput": lambda: measure_throughput(directory / "throughput", n),
        "short_steps": lambda: measure_short_steps(directory / "short", steps),
    }
    result = {}
    for name in PARTS:
        if name in names:
            result[name] = parts[name]()
            print(f"{name}: {result[name]}", file=sys.stderr, flush=True)
    return result | {"holds": all(part["holds"] for part in result.values())}


def measure_stall(directory: Path, n: int, draw: random.Random) -> dict[str, Any]:
    """Seconds that each way blocks, the first call apart."""
    directory.mkdir()
    model = Model()
    model.micro_batch()
    model.update()
    ours = OurSave(model, directory / "ours")
    kept = [torch.empty_like(tensor).copy_(tensor) for tensor in model.tensors()]
    numbers = iter(range(10**6))
    ways: dict[str, Callable[[], None]] = {
        "copy": lambda: copy_all(model.tensors(), kept),
        "ours": ours,
        "torch.save": lambda: torch_save(model, directory / f"{next(numbers)}.pt"),
        "dcp.save": lambda: dcp_save(model, directory / f"{next(numbers)}.dcp"),
    }
    first = {name: timed(way) for name, way in ways.items()}
    ours.settle()
    ours.durable_s.clear()
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(n):
        for name in draw.sample(list(ways), len(ways)):
            model.micro_batch()  # a save comes in the middle of work: cores that have slept copy at a fifth of their speed
            taken[name].append(timed(ways[name]))
            if name == "ours":
                ours.settle()
            clear(directory)
    median = {name: statistics.median(seconds) for name, seconds in taken.items()}
    ratio, share = median["ours"] / median["copy"], median["ours"] / min(median["torch.save"], median["dcp.save"])
    return {
        "megabytes": sum(tensor.nbytes for tensor in kept) / 1e6,
        "first_ms": milliseconds(first),
        "median_ms": milliseconds(median),
        "worst_ms": milliseconds({name: max(seconds) for name, seconds in taken.items()}),
        "ours_until_durable_ms": round(1e3 * statistics.median(ours.durable_s), 1),
        "ratio_to_copy": round(ratio, 2),
        "share_of_the_faster_synchronous_save": round(share, 3),
        "holds": ratio <= RATIO_LIMIT and share <= SYNC_SHARE_LIMIT,
    }


def measure_sharded(n: int) -> dict[str, Any]:
    """On two ranks with a shard each: the copy of this rank's rows, against one `copy_` of them."""
    dist.init_process_group("gloo")
    model = Model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.net:
        fully_shard(layer, mesh=mesh)
    model.micro_batch()
    model.update()
    buffers, place = HostBuffers(), {"index": dist.get_rank(), "count": dist.get_world_size()}
    rows = [getattr(tensor, "_local_tensor", tensor) for tensor in model.tensors()]
    kept = [torch.empty_like(tensor).copy_(tensor) for tensor in rows]
    taken: dict[str, list[float]] = {"copy": [], "ours": []}
    first_s = timed(lambda: buffers.stage(model.share(Position(1, 1), **place)))
    for _ in range(n):
        for name, way in (("copy", lambda: copy_all(rows, kept)), ("ours", lambda: buffers.stage(model.share(Position(1, 1), **place)))):
            dist.barrier()
            taken[name].append(timed(way))
    median = {name: statistics.median(seconds) for name, seconds in taken.items()}
    ratio = median["ours"] / median["copy"]
    dist.destroy_process_group()
    return {
        "ranks": 2,
        "first_ms": round(1e3 * first_s, 1),
        "median_ms": milliseconds(median),
        "ratio_to_copy": round(ratio, 2),
        "holds": ratio <= SHARDED_RATIO_LIMIT,
    }


def measure_throughput(directory: Path, n: int) -> dict[str, Any]:
    """Micro-batches per second while a save is being written, against the rest of the time."""
    torch.set_num_threads(os.cpu_count() or 1)  # the writer has no core of its own
    model = Model()
    saves = model.saves(directory)
    marks = [timed(model.micro_batch) for _ in range(5)]
    accumulation = max(1, round(1.2 * STEP_S / statistics.median(marks)) + 1)
    model.update()
    beside, alone, writes, steps_s = [], [], [], []
    for number in range(1, n + 2):
        saves.boundary(Position(number, number), True, saves.news())
        ends, written, began = [time.perf_counter()], 0.0, time.perf_counter()
        while not written or len(ends) % accumulation != 1 or ends[-1] - began < max(2 * (written - began), 4 * STEP_S):
            model.micro_batch()
            ends.append(time.perf_counter())
            if not written and saves.news() == (0.0, 0.0):
                written = ends[-1]
            if len(ends) % accumulation == 1:
                model.update()
                steps_s.append(ends[-1] - ends[-1 - accumulation])
        took = [(b - a, b <= written) for a, b in pairwise(ends)]
        if number > 1:  # the first save makes its buffers
            beside += [seconds for seconds, during in took if during]
            alone += [seconds for seconds, during in took if not during]
            writes.append(written - began)
    saves.finish(Position(number, number))
    ratio = statistics.mean(alone) / statistics.mean(beside)
    return {
        "step_s": round(statistics.median(steps_s), 2),
        "micro_batches": [len(beside), len(alone)],
        "write_s": round(statistics.median(writes), 2),
        "throughput_beside_a_write": round(ratio, 3),
        "holds": ratio >= THROUGHPUT_LIMIT and statistics.median(steps_s) >= STEP_S,
    }


def measure_short_steps(directory: Path, steps: int) -> dict[str, Any]:
    """No step id is missing, and the losses are those of a run that never saves."""
    torch.set_num_threads(1)
    runs = []
    for every in (20, 10**9):
        place = directory / str(every)
        place.mkdir(parents=True)
        training = {"epochs": steps, "max_steps": steps, "num_anchors": 2}
        here = make_world(8, training=training, checkpoint={"every": every, "wait": False}, tokens_per_step=32)
        run = SavingRun(RunDirectory(place), here)
        run.run()
        runs.append(run)
    saving, never = (run.records("step") for run in runs)
    records = runs[0].records("checkpoint")
    ids = [record.step for record in saving] == list(range(1, steps + 1))
    equal = [(r.loss_sum, r.grad_norm) for r in saving] == [(r.loss_sum, r.grad_norm) for r in never]
    return {
        "steps": steps,
        "saves": len(records),
        "deferred": sum(record.deferred > 0 for record in records),
        "most_deferred_steps": max(record.deferred for record in records),
        "blocked_ms": round(1e3 * statistics.median(record.blocked_s for record in records), 2),
        "write_ms": round(1e3 * statistics.median(record.seconds for record in records), 1),
        "no_step_missing": ids,
        "losses_of_a_run_that_never_saves": equal,
        "holds": ids and equal,
    }


def timed(call: Callable[[], object]) -> float:
    """Seconds."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def clear(directory: Path) -> None:
    """What the other ways have written."""
    for path in directory.iterdir():
        if path.suffix == ".pt":
            path.unlink()
        elif path.suffix == ".dcp":
            shutil.rmtree(path)


def milliseconds(seconds: dict[str, float]) -> dict[str, float]:
    """For reading."""
    return {name: round(1e3 * value, 1) for name, value in seconds.items()}


if __name__ == "__main__":
    sys.exit(main())
