"""Times one training step, draft part, against speculators 0.9.0 on the same machine.

A step = draw anchors, forward, head and loss, backward, clip, AdamW; features are precomputed on both
sides. Steps of the two alternate in one process, so a busy neighbour slows both; the figure is the
median of the pairwise ratios with a bootstrap interval. Their step is the one of
bench_speculators_step.py, whose own functions are called.

    python benchmarks/step_speed.py --theirs PATH/bench_speculators_step.py --n 15 --json speed.json
"""

import argparse
import contextlib
import io
import json
import os
import random
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Shape:
    """seq x batch, block size, anchors per sequence."""

    seq: int
    batch: int
    block: int
    anchors: int


SHAPES = (Shape(512, 2, 8, 32), Shape(1024, 1, 16, 64), Shape(2048, 1, 16, 128), Shape(2048, 1, 16, 256))
HIDDEN, INTER, HEADS, KV_HEADS, HEAD_DIM, VOCAB, LAYERS, CAPTURED = 256, 768, 4, 2, 64, 8192, 2, 4


def our_step(shape: Shape, bf16: bool) -> Callable[[], float]:
    """One optimizer step of ours at the shape; returns the loss when called."""
    import torch

    from dflash_core.config import ObjectiveConfig
    from dflash_core.drafter.head_loss import head_cross_entropy
    from dflash_core.drafter.model import Drafter
    from dflash_core.drafter.objectives import make_objective
    from dflash_core.drafter.spec import DrafterSpec

    torch.manual_seed(0)
    spec = DrafterSpec(
        hidden_size=HIDDEN, intermediate_size=INTER, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, num_layers=LAYERS,
        block_size=shape.block, mask_token_id=VOCAB - 1, target_layer_ids=tuple(range(1, CAPTURED + 1)), num_target_layers=8,
        vocab_size=VOCAB,
    )  # fmt: skip
    drafter = Drafter(spec)
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=1e-3, fused=True)
    objective = make_objective(ObjectiveConfig(), shape.block)
    ids_BT = torch.randint(0, VOCAB - 1, (shape.batch, shape.seq))
    features_BTF = torch.randn(shape.batch, shape.seq, spec.features_size)
    embed_VD, head_VD = torch.randn(VOCAB, HIDDEN) * 0.02, torch.randn(VOCAB, HIDDEN) * 0.02
    slots = torch.arange(shape.block)

    def step() -> float:
        choice = torch.rand(shape.batch, shape.seq - shape.block).argsort(dim=1)[:, : shape.anchors]
        anchors_BA = choice.sort(dim=1).values
        labels_BAK = ids_BT.gather(1, (anchors_BA[..., None] + slots).flatten(1)).view(shape.batch, shape.anchors, shape.block)
        block_ids_BAK = torch.full_like(labels_BAK, spec.mask_token_id)
        block_ids_BAK[..., 0] = labels_BAK[..., 0]
        mask_BAS = torch.ones(labels_BAK[..., 1:].shape, dtype=torch.bool)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            hidden_BASD = drafter(features_BTF, embed_VD[block_ids_BAK], anchors_BA, label_slots_only=True)
            head = head_cross_entropy(hidden_BASD[mask_BAS], head_VD, labels_BAK[..., 1:][mask_BAS])
        ce_BAS = torch.zeros(mask_BAS.shape).masked_scatter(mask_BAS, head.ce_N)
        loss = objective.loss_sum(ce_BAS, mask_BAS) / objective.denominator(mask_BAS)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


def their_step(shape: Shape, script: Path, threads: int) -> Callable[[], float]:
    """One optimizer step of speculators at the shape, by the functions of its own benchmark script."""
    with tempfile.TemporaryDirectory() as work:
        flags = f"--seq {shape.seq} --batch {shape.batch} --block {shape.block} --anchors {shape.anchors} --threads {threads}"
        once = f"--attn sdpa --loss ce --optim adamw --warmup 0 --steps 1 --workdir {work}"
        sys.argv = [str(script), *flags.split(), *once.split()]
        with contextlib.redirect_stdout(io.StringIO()):
            theirs = runpy.run_path(str(script))
        return lambda: theirs["one"](theirs["model"], theirs["opts"], theirs["kw"])[0]


def timed(step: Callable[[], float], cpu: bool) -> float:
    """Milliseconds of one call: wall clock, or CPU time of all threads."""
    clock = time.process_time if cpu else time.perf_counter
    start = clock()
    step()
    return 1e3 * (clock() - start)


def measure(shape: Shape, n: int, threads: int, script: Path | None, cpu: bool) -> dict[str, list[float]]:
    """Milliseconds of n interleaved steps of each contestant."""
    import torch

    steps: dict[str, Callable[[], float]] = {"theirs": their_step(shape, script, threads)} if script else {}
    torch.set_num_threads(threads)
    steps |= {"fp32": our_step(shape, bf16=False), "bf16": our_step(shape, bf16=True)}
    for step in steps.values():
        step(), step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(n):
        for name, step in steps.items():
            times[name].append(timed(step, cpu))
    return times


def ratio(above: list[float], below: list[float]) -> tuple[float, float, float]:
    """Median of the pairwise ratios with its 95 % bootstrap interval."""
    pairs = [a / b for a, b in zip(above, below, strict=True)]
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(pairs, k=len(pairs))) for _ in range(2000))
    return statistics.median(pairs), medians[50], medians[1949]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--theirs", type=Path, help="bench_speculators_step.py, with speculators 0.9.0 installed; none: ours only"
    )
    parser.add_argument("--n", type=int, default=15, help="interleaved pairs per shape")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="CPU time, for a busy machine (with --threads 1)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--shapes", type=int, nargs="+", default=list(range(len(SHAPES))), help="which of the four shapes")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is not None:
        print(json.dumps(measure(SHAPES[args.child], args.n, args.threads, args.theirs, args.cpu_time)))
        return
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads), "PYTHONPATH": path}
    results = []
    for index in args.shapes:
        # A process a shape: the script's globals and the allocator start afresh.
        child = [sys.executable, __file__, *sys.argv[1:], "--child", str(index)]
        output = subprocess.run(child, env=environment, check=True, capture_output=True, text=True).stdout
        results.append({"shape": asdict(SHAPES[index]), "ms": json.loads(output.splitlines()[-1])})
        print(row(results[-1]), flush=True)
    by_anchors = {r["shape"]["anchors"]: statistics.median(r["ms"]["fp32"]) for r in results}
    if {128, 256} <= by_anchors.keys():
        print(f"doubling the anchors (128 to 256 at 2048) costs x{by_anchors[256] / by_anchors[128]:.2f}")
    if args.json:
        environment = {"threads": args.threads, "cpu_time": args.cpu_time, "load": os.getloadavg()}
        args.json.write_text(json.dumps({**environment, "results": results}, indent=1))


def row(result: dict) -> str:
    """One line of the table."""
    shape, ms = result["shape"], result["ms"]
    cells = [f"{shape['seq']:>4} x {shape['batch']}, B {shape['block']:>2}, {shape['anchors']:>3} anchors"]
    cells += [f"{name} {statistics.median(values):7.1f} ms (min {min(values):.1f})" for name, values in ms.items()]
    pairs = [("fp32/theirs", "fp32", "theirs"), ("bf16/fp32", "bf16", "fp32")]
    cells += ["{} {:.2f} [{:.2f}, {:.2f}]".format(name, *ratio(ms[a], ms[b])) for name, a, b in pairs if a in ms and b in ms]
    return " | ".join(cells)


if __name__ == "__main__":
    main()
