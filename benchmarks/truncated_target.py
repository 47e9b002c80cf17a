"""The target's features by the truncated forward against a full forward with its head: equal to the bit, and how much cheaper.

    python benchmarks/truncated_target.py models/target --n 9 --json truncated.json

Runs the two in turns on the same random tokens, since the load of a machine drifts. The full forward is what
`output_hidden_states=True` gives: all layers, the final norm and logits of every position.
"""

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dflash_core.config import TargetConfig
from dflash_core.target.layers import build_target_layer_ids
from dflash_core.target.model import Target


@torch.no_grad()
def full_features(target: Target, ids_BT: Tensor, layer_ids: tuple[int, ...]) -> Tensor:
    """features_BTF picked from the hidden states of the whole model."""
    states = target.model(input_ids=ids_BT, output_hidden_states=True, use_cache=False).hidden_states
    return torch.cat([states[i + 1] for i in layer_ids], dim=-1)


def timed(compute: Callable[[], Tensor], cpu: bool) -> tuple[Tensor, float]:
    """The result, and milliseconds until it is there: wall clock, or CPU time of all threads."""
    clock = time.process_time if cpu else time.perf_counter
    start = clock()
    result = compute()
    if result.is_cuda:
        torch.cuda.synchronize()
    return result, 1e3 * (clock() - start)


def interval(ratios: list[float]) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[1949]


def measure(target: Target, layer_ids: tuple[int, ...], args: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of n interleaved pairs after one pair to warm up, and whether every pair's features were equal."""
    generator = torch.Generator().manual_seed(args.seed)
    ways = {"truncated": lambda ids: target.features(ids, layer_ids), "full": lambda ids: full_features(target, ids, layer_ids)}
    equal, times = True, {name: [] for name in ways}
    for number in range(args.n + 1):
        ids_BT = torch.randint(0, target.vocab_size, (args.batch, args.seq), generator=generator).to(target.device)
        found = {}
        for name in sorted(ways, reverse=bool(number % 2)):  # each way goes first in every other pair
            found[name], milliseconds = timed(partial(ways[name], ids_BT), args.cpu_time)
            times[name].append(milliseconds)
        equal = equal and torch.equal(*found.values())
    times = {name: values[1:] for name, values in times.items()}
    ratios = [a / b for a, b in zip(times["truncated"], times["full"], strict=True)]
    return {"equal": equal, "ms": times, "ratio": statistics.median(ratios), "interval": interval(ratios)}


def expected_ratio(target: Target, layer_ids: tuple[int, ...]) -> float:
    """Share of the full forward's matrix products that the truncated one needs, attention left out."""
    layers = [sum(p.numel() for p in layer.parameters()) for layer in target.decoder_layers(range(target.num_layers))]
    return sum(layers[: layer_ids[-1] + 1]) / (sum(layers) + target.head_weight_VD.numel())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path, help="directory of the target")
    parser.add_argument("--n", type=int, default=9, help="interleaved pairs")
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--num-features", type=int, default=5, help="captured layers, placed by the z-lab rule")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu-time", action="store_true", help="CPU time, for a busy machine (with --threads 1)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    target = Target.load(TargetConfig(path=str(args.target), dtype=args.dtype))
    layer_ids = build_target_layer_ids(target.num_layers, args.num_features)
    result = measure(target, layer_ids, args)
    result |= {"expected_ratio": expected_ratio(target, layer_ids), "layer_ids": layer_ids, "num_layers": target.num_layers}
    print(
        f"layers {layer_ids} of {target.num_layers}, {args.batch} x {args.seq} tokens, {args.dtype}: features "
        f"{'equal to the bit' if result['equal'] else 'DIFFERENT'}; truncated {statistics.median(result['ms']['truncated']):.0f} ms, "
        f"full {statistics.median(result['ms']['full']):.0f} ms, ratio {result['ratio']:.2f} "
        f"[{result['interval'][0]:.2f}, {result['interval'][1]:.2f}], {result['expected_ratio']:.2f} by matrix products"
    )
    if args.json:
        settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
        args.json.write_text(json.dumps({"settings": settings, "load": os.getloadavg(), **result}, indent=1))
    return 0 if result["equal"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
