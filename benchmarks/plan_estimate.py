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
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import chdir
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import yaml

PROJECT = Path(__file__).resolve().parents[1]
TOLERANCE = 0.15
POLL_S = 0.01
WORDS = ("the", "people", "of", "that", "village", "walked", "along", "a", "river", "every", "morning", "with", "bread", "water")
RUN = "measured"


@dataclass(frozen=True)
class Preset:
    """A random target, conversations of `words` words, and settings of the run; `stored` is the dtype of the weight file."""

    family: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    stored: str
    conversations: int
    words: tuple[int, int]
    settings: Mapping[str, Mapping[str, Any]]


def settings(
    dtype: str, precision: str, step: int, micro: int, anchors: int, layers: int, block: int, features: int,
    queue_depth: int = 2, **training: Any,
) -> dict[str, dict[str, Any]]:
    """The sections of a params.yaml that differ between presets."""
    return {
        "target": {"dtype": dtype},
        "bucket": {"multiple": 64, "tokens_per_step": step, "tokens_per_microbatch": micro},
        "drafter": {"num_layers": layers, "block_size": block, "num_features": features},
        "training": {"num_anchors": anchors, "precision": precision, **training},
        "distributed": {"queue_depth": queue_depth},
    }


# Shapes are chosen so that memory is large and the products few, for a machine without a GPU.
PRESETS = {
    # 443 M parameters in float32: the mapped file is the weights.
    "target": Preset(
        "qwen3", 1024, 4096, 28, 16, 4, 64, 8192, "float32", 20, (60, 120),
        settings("float32", "float32", 768, 384, 32, 1, 4, 3),
    ),
    # Stored in bfloat16 and run in float32: file and copy are resident together at the load.
    "target-converted": Preset(
        "llama", 1024, 4096, 20, 16, 4, 64, 8192, "bfloat16", 20, (60, 120),
        settings("float32", "float32", 768, 384, 32, 1, 4, 3),
    ),
    # 111 M trained parameters: 1.8 GB of weights, gradients and moments.
    "drafter": Preset(
        "qwen3", 1536, 6144, 6, 24, 8, 64, 4096, "bfloat16", 20, (60, 120),
        settings("bfloat16", "float32", 768, 384, 16, 3, 4, 3),
    ),
    "activations": Preset(
        "llama", 128, 384, 8, 8, 4, 16, 1024, "float32", 44, (200, 400),
        settings("float32", "float32", 16384, 9216, 512, 2, 16, 4),
    ),
    "activations-bf16": Preset(
        "qwen3", 192, 512, 8, 8, 4, 24, 1024, "bfloat16", 44, (200, 400),
        settings("bfloat16", "bfloat16", 16384, 9216, 512, 2, 16, 4),
    ),
    # Wide features of a cheap target: the drafter is the slower side, so that as many steps wait as the queue holds, which is
    # what the plan counts. Where the target is slower, one step is trained on and one in the making, whatever the depth.
    "features": Preset(
        "qwen3", 1024, 64, 11, 2, 1, 32, 1024, "float32", 32, (150, 250),
        settings("float32", "float32", 8192, 2048, 4, 1, 4, 8, queue_depth=1),
    ),
    "features-cached": Preset(
        "qwen3", 256, 256, 35, 8, 4, 32, 1024, "bfloat16", 128, (150, 250),
        settings("bfloat16", "float32", 32768, 2048, 4, 1, 4, 32, feature_source="cached"),
    ),
}  # fmt: skip


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
    text = json.dumps({"n": options.n, "seed": options.seed, "results": results}, indent=1) + "\n"
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    ratios = [result[what]["ratio"] for result in results.values() for what in ("memory", "disk")]
    return 0 if all(abs(ratio - 1) <= TOLERANCE for ratio in ratios) else 1


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


def make_workspace(preset: Preset, directory: Path, num_steps: int, seed: int) -> None:
    """Target, conversations, params.yaml, prepared data and plan."""
    from dflash_core.config import load_config
    from dflash_core.data.plan_manifest import write_plan
    from dflash_core.data.prepare import prepare
    from dflash_core.stages import layout

    make_target(preset, directory / "target", seed)
    draw = random.Random(seed)
    rows = [conversation(number, draw.choices(WORDS, k=draw.randint(*preset.words))) for number in range(preset.conversations)]
    (directory / "conversations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    tree: dict[str, Any] = {
        "run": RUN,
        "data": {"conversations": ["conversations.jsonl"], "heldout_fraction": 0.1, "max_length": 1024},
        "checkpoint": {"every": 1, "keep_last": 2},
        "evaluation": {"num_walk_prompts": 4, "max_new_tokens": 64},
    } | {name: dict(section) for name, section in preset.settings.items()}
    tree["target"]["path"] = "target"
    tree["training"] |= {"epochs": num_steps, "max_steps": num_steps}
    (directory / "params.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    with chdir(directory):  # the stages take their paths from the working directory
        config = load_config(Path("params.yaml"))
        prepare(config, layout.PREPARED)
        write_plan(config, layout.PREPARED, layout.PLAN)


def conversation(number: int, words: list[str]) -> dict[str, Any]:
    """One question and its answer."""
    turns = [{"role": "user", "content": f"Tell {number}."}, {"role": "assistant", "content": " ".join(words)}]
    return {"id": f"c{number}", "messages": turns}


def make_target(preset: Preset, directory: Path, seed: int) -> None:
    """Random weights in safetensors, with a tokenizer of 500 tokens; its other rows are spare."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from dflash_core.target.tiny import make_tiny_tokenizer

    tokenizer = make_tiny_tokenizer()
    config = AutoConfig.for_model(
        preset.family, vocab_size=preset.vocab, hidden_size=preset.hidden, intermediate_size=preset.intermediate,
        num_hidden_layers=preset.layers, num_attention_heads=preset.heads, num_key_value_heads=preset.kv_heads,
        head_dim=preset.head_dim, max_position_embeddings=4096, tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, preset.stored))
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


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
