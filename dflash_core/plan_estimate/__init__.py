"""`train --plan`: the resolved configuration, and what the run will take, without loading weights or starting anything.

Counts of parameters, bytes and multiplications follow from the target's config.json and the manifests. The rate of
this machine is measured with one matrix product of half a second; a step reaches only a share of it.
Dims: P parameters, N block rows (anchors times slots), V vocab, D hidden, F features width.
"""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dflash_core.checkpoint.exported import zlab_shapes
from dflash_core.config import Config
from dflash_core.data.dataset import DatasetManifest, read_manifest
from dflash_core.data.plan_manifest import PlanManifest, read_plan_manifest
from dflash_core.drafter.spec import DrafterSpec, from_target
from dflash_core.errors import ConfigError, DataError
from dflash_core.stages import layout

FLOAT32_BYTES = 4
BFLOAT16_BYTES = 2
# Weights, gradients and two moments in float32.
BYTES_PER_TRAINED_PARAMETER = 4 * FLOAT32_BYTES
# Weights and two moments: what a checkpoint holds.
BYTES_PER_SAVED_PARAMETER = 3 * FLOAT32_BYTES
# Interpreter, torch, transformers and their buffers, as resident before the first weight is read.
PROCESS_BYTES = 0.7e9
# Tensors of the width D, and of the MLP's width, that a layer keeps for its backward, a block row.
KEPT_OF_HIDDEN = 12
KEPT_OF_MLP = 3
# Share of a plain matrix product's rate that a whole step reaches: small products, norms, softmax, optimizer.
REACHED_SHARE = 0.5
PROBE_SIZE = 1024
PROBE_SECONDS = 0.5


@dataclass(frozen=True)
class Estimate:
    """What a run will take; None where a manifest that says it is not there yet."""

    parameters: int
    memory_bytes: float
    checkpoint_bytes: float
    features_bytes: float | None
    steps: int | None
    step_seconds: float | None

    @property
    def disk_bytes(self) -> float:
        """Checkpoints, features where they are known, and the exported drafter twice (build/ and DVC's cache)."""
        return self.checkpoint_bytes + (self.features_bytes or 0.0) + 2 * FLOAT32_BYTES * self.parameters

    @property
    def seconds(self) -> float | None:
        """Of all steps; checkpoints and evaluations come on top."""
        return None if self.steps is None or self.step_seconds is None else self.steps * self.step_seconds


def print_plan(config: Config) -> None:
    """Print configuration and estimates. Raises ConfigError where the target's directory has no config.json."""
    spec = planned_spec(config)
    found = estimate(config, spec, products_per_second(config))
    console = Console()
    console.print("[bold]Configuration, every key[/bold]")
    console.print(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, default_flow_style=None), highlight=False, markup=False, soft_wrap=True)
    table = Table("what it takes", "estimate", "from")
    for row in _rows(config, spec, found):
        table.add_row(*map(escape, row))
    console.print(table)
    console.print("Nothing was started.")


def planned_spec(config: Config) -> DrafterSpec:
    """The drafter's shape. Its mask row is looked for when the run starts and changes no size; row 0 stands for it here."""
    from transformers import AutoConfig

    target = Path(config.target.path)
    if not (target / "config.json").is_file():
        raise ConfigError(f"{target} has no config.json, expected the target's directory. Convert the target, or correct target.path.")
    text_config = AutoConfig.from_pretrained(target, trust_remote_code=config.target.trust_remote_code).get_text_config()
    return from_target(text_config, config.drafter, config.drafter.mask_token_id or 0)


def estimate(config: Config, spec: DrafterSpec, rate: float) -> Estimate:
    """Work out an Estimate.

    Args:
        config: the run; manifests are read from build/ where they are.
        spec: the drafter's shape.
        rate: multiply-adds a second of this machine.
    """
    parameters = sum(math.prod(shape) for shape in zlab_shapes(spec).values())
    dataset, plan = _manifests()
    steps = None
    if plan is not None:
        full = plan.steps_per_epoch * config.training.epochs
        steps = min(full, config.training.max_steps or full)
    step_seconds = None
    if plan is not None and dataset is not None:
        step_seconds = _products_of_step(config, spec, plan, dataset) / (rate * REACHED_SHARE)
    kept = config.checkpoint.keep_last + 1  # one more while the next is written
    if config.checkpoint.keep_every and steps:
        kept += steps // config.checkpoint.keep_every
    features = None
    if config.training.feature_source == "online":
        features = 0.0
    elif dataset is not None:
        features = float(sum(s.tokens for s in dataset.splits.values()) * spec.features_size * BFLOAT16_BYTES)
    return Estimate(
        parameters=parameters,
        memory_bytes=_memory(config, spec, parameters),
        checkpoint_bytes=float(kept * BYTES_PER_SAVED_PARAMETER * parameters),
        features_bytes=features,
        steps=steps,
        step_seconds=step_seconds,
    )


def products_per_second(config: Config) -> float:
    """Multiply-adds a second of a square product on the device and in the precision of the run."""
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    matrix = torch.ones(PROBE_SIZE, PROBE_SIZE, dtype=getattr(torch, config.training.precision), device=device)
    (matrix @ matrix).sum().item()
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < PROBE_SECONDS:
        (matrix @ matrix)[0, 0].item()  # waits for the device
        count += 1
    return count * PROBE_SIZE**3 / (time.perf_counter() - start)


def _manifests() -> tuple[DatasetManifest | None, PlanManifest | None]:
    try:
        return read_manifest(layout.PREPARED), read_plan_manifest(layout.PLAN)
    except DataError:
        return None, None


def _memory(config: Config, spec: DrafterSpec, parameters: int) -> float:
    """Peak resident bytes of training: process, target, drafter with its state, and one micro-batch's activations."""
    target = sum(path.stat().st_size for path in Path(config.target.path).glob("*.safetensors"))
    widen = 2 if config.target.dtype == "float32" else 1  # targets are stored in bfloat16
    rows = _block_rows(config, config.bucket.tokens_per_microbatch)
    kept = KEPT_OF_HIDDEN * spec.hidden_size + KEPT_OF_MLP * spec.intermediate_size
    width = BFLOAT16_BYTES if config.training.precision == "bfloat16" else FLOAT32_BYTES
    features = config.bucket.tokens_per_microbatch * spec.features_size * FLOAT32_BYTES
    return PROCESS_BYTES + widen * target + BYTES_PER_TRAINED_PARAMETER * parameters + rows * kept * spec.num_layers * width + 2 * features


def _block_rows(config: Config, padded_tokens: float) -> float:
    """Block rows of so many padded tokens: a row of one bucket has at most `num_anchors` anchors, and at most its tokens."""
    typical = config.data.max_length / 2
    return padded_tokens / typical * min(config.training.num_anchors, typical) * config.drafter.block_size


def _products_of_step(config: Config, spec: DrafterSpec, plan: PlanManifest, dataset: DatasetManifest) -> float:
    """Multiply-adds of one optimizer step, from the real number of samples and tokens in it."""
    train = dataset.splits["train"]
    samples = plan.num_samples / plan.steps_per_epoch
    tokens = plan.padded_tokens / plan.steps_per_epoch
    rows = samples * min(config.training.num_anchors, train.supervised_tokens / train.rows) * spec.block_size
    kv = spec.num_kv_heads * spec.head_dim
    heads = spec.num_heads * spec.head_dim
    layer = 2 * spec.hidden_size * (heads + kv) + 3 * spec.hidden_size * spec.intermediate_size
    attention = 2 * heads * (tokens / samples / 2 + spec.block_size)
    blocks = rows * spec.num_layers * (layer + attention)
    context = tokens * (spec.features_size * spec.hidden_size + spec.num_layers * 2 * spec.hidden_size * kv)
    # The head is frozen: its forward and the gradient with respect to its input, no gradient of its own.
    head = 2 * rows * (spec.block_size - 1) / spec.block_size * spec.hidden_size * spec.vocab_size
    return 3 * (blocks + context) + head + _target_products(config, spec, tokens)


def _target_products(config: Config, spec: DrafterSpec, tokens: float) -> float:
    """The target's forward in the loop, up to the last captured layer; its layers have the drafter's own shape."""
    if config.training.feature_source == "cached":
        return 0.0
    heads, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    layer = 2 * spec.hidden_size * (heads + kv) + 3 * spec.hidden_size * spec.intermediate_size
    return tokens * layer * (max(spec.target_layer_ids) + 1)


def _rows(config: Config, spec: DrafterSpec, found: Estimate) -> list[tuple[str, str, str]]:
    unknown = "run prepare and bucket first"
    known_time = found.seconds is not None and found.step_seconds is not None
    return [
        ("drafter", f"{found.parameters / 1e6:,.1f} M parameters", f"layers {spec.num_layers}, width {spec.hidden_size}"),
        ("captured layers", str(list(spec.target_layer_ids)), f"of the target's {spec.num_target_layers}"),
        ("optimizer steps", f"{found.steps:,}" if found.steps else unknown, "build/plan, training.epochs, training.max_steps"),
        ("memory", f"about {found.memory_bytes / 1e9:.1f} GB", "target, drafter with its moments, one micro-batch"),
        ("time", f"about {_minutes(found)}" if known_time else unknown, f"a measured matrix product, of which a step reaches {REACHED_SHARE:.0%}"),
        ("disk", f"about {found.disk_bytes / 1e9:.1f} GB", _disk_parts(found)),
        ("objective", config.objective.kind, f"block {spec.block_size}"),
    ]


def _minutes(found: Estimate) -> str:
    seconds: Any = found.seconds
    return f"{seconds / 60:,.0f} min, {found.step_seconds:.2f} s a step"


def _disk_parts(found: Estimate) -> str:
    features = "features not known before prepare" if found.features_bytes is None else f"features {found.features_bytes / 1e9:.1f} GB"
    return f"checkpoints {found.checkpoint_bytes / 1e9:.1f} GB, {features}"
