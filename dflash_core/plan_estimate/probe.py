"""How fast this machine is at the run's own work: a step of one real-size drafter layer, measured in a few seconds.

A plain matrix product would not do: a step of small products, norms, attention and softmax reaches anything from a
tenth to most of its rate. So the probe runs what training runs, with random numbers: a drafter of one layer at the
target's width, its head over a part of the vocabulary, backward, and AdamW; and the products of one target layer.
Dims: B batch rows, T tokens, A anchors, K block slots, D hidden, F features width, V words of the probe's head, N labels.
"""

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dflash_core.config import Config
from dflash_core.drafter.head_loss import head_cross_entropy
from dflash_core.drafter.model import Drafter
from dflash_core.drafter.spec import DrafterSpec
from dflash_core.plan_estimate.products import drafter_products
from dflash_core.plan_estimate.workload import MicroShape, Workload
from dflash_core.training.optimizer import make_optimizer

REPEATS = 3
# Multiply-adds of a repeat on a CPU, about half a second of a core; a GPU gets a whole micro-batch.
CPU_PRODUCTS = 1e10
MIN_LENGTH = 32
PROBE_VOCABULARY = 8192
TARGET_TOKENS = 512


@dataclass(frozen=True)
class Rates:
    """Multiply-adds a second of target and drafter, and parameters that AdamW updates a second; slowest and fastest of the repeats."""

    target: tuple[float, float]
    drafter: tuple[float, float]
    update: tuple[float, float]


def measure_rates(config: Config, spec: DrafterSpec, workload: Workload) -> Rates:
    """Run the probe on this machine's GPU, or on its CPU with the threads that torch would train with."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        small = one_layer(spec)
        shape = probe_shape(small, workload, device)
        drafter = Drafter(small).to(device)
        step = _drafter_step(config, drafter, shape, device)
        products = drafter_products(small, shape.tokens, shape.block_rows, shape.length)
        drafter_rates = _rates(step, products, device)
        update_rates = _rates(_update(config, drafter), sum(p.numel() for p in drafter.parameters()), device)
    return Rates(_target_rates(config, spec, device), drafter_rates, update_rates)


def one_layer(spec: DrafterSpec) -> DrafterSpec:
    """The same drafter with its first layer only, and a part of the vocabulary."""
    kind = spec.layer_types[0]
    return dataclasses.replace(
        spec,
        num_layers=1,
        layer_types=(kind,),
        sliding_window=spec.sliding_window if kind == "sliding_attention" else None,
        vocab_size=min(spec.vocab_size, PROBE_VOCABULARY),
        mask_token_id=0,
    )


def probe_shape(spec: DrafterSpec, workload: Workload, device: torch.device) -> MicroShape:
    """A micro-batch of about the run's mean length; on a CPU one row of it, shortened together with its anchors to the budget."""
    usual = min(workload.shapes, key=lambda shape: abs(shape.length - workload.mean_length))
    if device.type == "cuda":
        return usual
    spent = drafter_products(spec, usual.length, usual.anchors * usual.slots, usual.length)
    scale = min(1.0, CPU_PRODUCTS / spent)
    length = max(MIN_LENGTH, int(usual.length * scale))
    return MicroShape(1, length, max(1, min(length - 1, int(usual.anchors * scale))), usual.slots)


def _drafter_step(config: Config, drafter: Drafter, shape: MicroShape, device: torch.device) -> Callable[[], object]:
    spec, B, A = drafter.spec, shape.rows, shape.anchors
    features_BTF = torch.randn(B, shape.length, spec.features_size, device=device, dtype=getattr(torch, config.target.dtype))
    embeds_BAKD = torch.randn(B, A, spec.block_size, spec.hidden_size, device=device)
    head_VD = torch.randn(spec.vocab_size, spec.hidden_size, device=device, dtype=getattr(torch, config.training.precision))
    anchors_BA = torch.linspace(1, shape.length - 1, A, device=device).long().expand(B, A)
    labels_N = torch.zeros(B * A * (spec.block_size - 1), dtype=torch.int64, device=device)

    def step() -> Tensor:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=config.training.precision == "bfloat16"):
            hidden_BASD = drafter(features_BTF, embeds_BAKD, anchors_BA, label_slots_only=True)
            loss = head_cross_entropy(hidden_BASD.flatten(0, 2), head_VD, labels_N).ce_N.mean()
        loss.backward()
        return loss.detach()

    return step


def _update(config: Config, drafter: Drafter) -> Callable[[], object]:
    optimizer = make_optimizer(drafter, config.training)

    def update() -> Tensor:
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimizer.step()
        return drafter.norm.weight.detach()

    return update


def _target_rates(config: Config, spec: DrafterSpec, device: torch.device) -> tuple[float, float]:
    """Products of one target layer, which has the drafter's own width."""
    hidden, queries, keys = spec.hidden_size, spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    inner = spec.intermediate_size
    shapes = [(hidden, queries), (hidden, keys), (hidden, keys), (queries, hidden), (hidden, inner), (hidden, inner), (inner, hidden)]
    dtype, layer = getattr(torch, config.target.dtype), sum(n * m for n, m in shapes)
    tokens = TARGET_TOKENS if device.type == "cuda" else min(TARGET_TOKENS, max(MIN_LENGTH, int(CPU_PRODUCTS / layer)))
    pairs = [(torch.ones(tokens, n, dtype=dtype, device=device), torch.ones(n, m, dtype=dtype, device=device)) for n, m in shapes]
    return _rates(lambda: [a @ b for a, b in pairs][-1], tokens * layer, device)


def _rates(run: Callable[[], object], amount: float, device: torch.device) -> tuple[float, float]:
    """Slowest and fastest amount a second; a first run, which generates kernels, doesn't count."""
    run()
    seconds = []
    for _ in range(REPEATS):
        _wait(device)
        began = time.perf_counter()
        run()
        _wait(device)
        seconds.append(time.perf_counter() - began)
    return amount / max(seconds), amount / min(seconds)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
