"""Multiply-adds of one optimizer step, the target's and the drafter's, over all ranks together."""

from dataclasses import dataclass

from dflash_core.config import Config
from dflash_core.drafter.spec import DrafterSpec
from dflash_core.plan_estimate.sizes import TargetSizes
from dflash_core.plan_estimate.workload import Workload

# Forward, and the gradients with respect to input and weight.
FORWARD_AND_BACKWARD = 3


@dataclass(frozen=True)
class Products:
    """Multiply-adds of a step."""

    target: float
    drafter: float


def step_products(config: Config, spec: DrafterSpec, target: TargetSizes, workload: Workload) -> Products:
    """From the real number of tokens and anchors of a step, where they are known."""
    tokens, rows = workload.step_tokens, workload.step_anchors * spec.block_size
    online = config.training.feature_source == "online"
    return Products(
        target=target_products(spec, target.used, tokens, workload.mean_length) if online else 0.0,
        drafter=drafter_products(spec, tokens, rows, workload.mean_length),
    )


def target_products(spec: DrafterSpec, used_parameters: int, tokens: float, length: float) -> float:
    """The forward up to the last captured layer: each parameter once a token, and causal attention over half a row."""
    attention = (max(spec.target_layer_ids) + 1) * spec.num_heads * spec.head_dim * length
    return tokens * (used_parameters + attention)


def drafter_products(spec: DrafterSpec, tokens: float, block_rows: float, length: float) -> float:
    """Forward and backward of `block_rows` rows over contexts of half a row of `length` tokens, and the frozen head's."""
    hidden, queries, keys = spec.hidden_size, spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    layer = 2 * hidden * (queries + keys) + 3 * hidden * spec.intermediate_size
    attention = 2 * queries * (length / 2 + spec.block_size)
    blocks = block_rows * spec.num_layers * (layer + attention)
    context = tokens * hidden * (spec.features_size + spec.num_layers * 2 * keys)
    # The head is frozen: its forward and the gradient with respect to its input, no gradient of its own.
    head = 2 * block_rows * (spec.block_size - 1) / spec.block_size * hidden * spec.vocab_size
    return FORWARD_AND_BACKWARD * (blocks + context) + head
