"""Bytes of activations: what the drafter keeps for its backward, and what comes and goes beside it.

Counted from drafter/layers.py, norm_rope.py and attention.py tensor by tensor; a test holds the kept bytes to what
autograd really saves. Dims: N block rows (rows * anchors * slots), T context tokens, D hidden, Q = heads * d,
V = key heads * d here (keys and values have the same width), I width of the MLP, F features width.
"""

from dataclasses import dataclass
from typing import Literal

from dflash_core.drafter.attention import ACCELERATOR_GROUP_ROWS
from dflash_core.drafter.head_loss import CHUNK_ELEMENTS, MIN_CHUNK_ROWS
from dflash_core.drafter.spec import DrafterSpec
from dflash_core.evaluation.chain_walk import ANCHORS_PER_WALK, SLOTS_PER_FORWARD
from dflash_core.plan_estimate.sizes import FLOAT32
from dflash_core.plan_estimate.workload import MicroShape

Device = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Numerics:
    """Widths in bytes: `compute` of a number in the drafter's products, `target` of one of the target's, `features` as they come."""

    device: Device
    compute: int
    target: int
    features: int


def drafter_kept(spec: DrafterSpec, shape: MicroShape, numerics: Numerics) -> float:
    """What a forward leaves for the backward, weights and the head apart."""
    hidden, queries, keys = spec.hidden_size, spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    rows, width = shape.block_rows, numerics.compute
    label_rows = rows * (shape.slots - 1) / shape.slots  # the last layer asks for these alone
    of_all_rows = FLOAT32 * hidden + width * (hidden + 3 * keys)  # residual, its norm, keys before and after rotation, values
    # Queries before and after rotation, attention's output twice (o_proj reads a copy), the second residual and its norm, and
    # the MLP's gate, up, SiLU and product; scales of the norms and log-sum-exps are a number a head.
    of_queries = FLOAT32 * (hidden + 3 * spec.num_heads) + width * (4 * queries + hidden + 4 * spec.intermediate_size)
    layers = spec.num_layers * (rows * of_all_rows + label_rows * of_queries) + (spec.num_layers - 1) * (rows - label_rows) * of_queries
    context = shape.tokens * (_features_copy(spec, numerics) + width * 2 * hidden + spec.num_layers * width * 3 * keys)
    angles = (rows + shape.length) * FLOAT32 * spec.head_dim
    final = label_rows * FLOAT32 * hidden
    return layers + context + angles + final + spec.num_layers * _attention_kept(spec, shape, numerics)


def backward_passing(spec: DrafterSpec, shape: MicroShape, numerics: Numerics) -> float:
    """Most that is beside the kept tensors at once: the head's, or those of the last layer's MLP or attention on the way back."""
    label_rows = shape.block_rows * (shape.slots - 1) / shape.slots
    chunk_rows = max(MIN_CHUNK_ROWS, CHUNK_ELEMENTS // spec.vocab_size)
    chunk = min(chunk_rows, label_rows) * spec.vocab_size * (FLOAT32 if numerics.compute == FLOAT32 else FLOAT32 + numerics.compute)
    head_copy = spec.vocab_size * spec.hidden_size * numerics.compute if numerics.compute != numerics.target else 0
    # Hidden states after the final norm, those with a label, and their gradient.
    head = chunk + head_copy + 3 * label_rows * spec.hidden_size * FLOAT32
    # The gradients of gate, up and product, less the product itself, which is done with; two residual gradients.
    mlp = label_rows * (2 * spec.intermediate_size * numerics.compute + 2 * spec.hidden_size * FLOAT32)
    embeddings = shape.block_rows * spec.hidden_size * numerics.target if numerics.target != FLOAT32 else 0
    return max(head + embeddings, mlp, _attention_passing(spec, shape, numerics) if numerics.device == "cpu" else 0.0)


def target_forward(spec: DrafterSpec, tokens: float, width: int) -> float:
    """The target's own forward without gradients: captured layers, their concatenation's half, and one layer's MLP and residuals."""
    return tokens * width * (spec.features_size + 4 * spec.intermediate_size + 6 * spec.hidden_size)


def target_passing(spec: DrafterSpec, tokens: float, width: int) -> float:
    """What that forward takes beside the features that come of it, which are counted whole: the captured layers while they are
    joined, or before, when their room among the features is still free, one layer's MLP and residuals."""
    return tokens * width * max(spec.features_size, 4 * spec.intermediate_size + 6 * spec.hidden_size)


def walk_forward(spec: DrafterSpec, num_rows: int, row_length: int, anchors: int, numerics: Numerics) -> float:
    """One pass of the chain walk, in float32: hidden states of the rows that walk together, twice while they are joined.

    Args:
        num_rows: walked rows, of `row_length` tokens and `anchors` anchors each.
    """
    slots = spec.block_size
    together = min(num_rows * anchors, ANCHORS_PER_WALK)
    pass_anchors = min(together, max(anchors, SLOTS_PER_FORWARD // slots))
    pass_slots = pass_anchors * slots
    kept = 2 * together * (slots - 1) * spec.hidden_size
    layer = pass_slots * (3 * spec.intermediate_size + 4 * spec.hidden_size + 2 * spec.num_heads * spec.head_dim)
    copies = 1 if numerics.target == FLOAT32 else 1 + numerics.target / FLOAT32  # padded as taken, and in float32
    features = pass_anchors / anchors * row_length * spec.features_size * copies
    head_copy = spec.vocab_size * spec.hidden_size if numerics.target != FLOAT32 else 0
    return FLOAT32 * (kept + layer + features + head_copy)


def _features_copy(spec: DrafterSpec, numerics: Numerics) -> int:
    """Bytes a token of the features that `fc` keeps, where they are not the micro-batch's own tensor."""
    return spec.features_size * numerics.compute if numerics.features != numerics.compute else 0


def _attention_kept(spec: DrafterSpec, shape: MicroShape, numerics: Numerics) -> float:
    """On a GPU each group of anchors keeps its own keys, values and mask: of half the context, on average, and its own slots."""
    if numerics.device == "cpu":
        return 0.0
    query_rows = shape.slots * (spec.num_heads // spec.num_kv_heads)
    group_size = -(-ACCELERATOR_GROUP_ROWS // query_rows)
    groups = -(-shape.anchors // group_size)
    keys_of_group = shape.length / 2 + group_size * shape.slots
    width = 2 * spec.num_kv_heads * spec.head_dim + group_size * query_rows
    return shape.rows * groups * keys_of_group * width * numerics.compute


def _attention_passing(spec: DrafterSpec, shape: MicroShape, numerics: Numerics) -> float:
    """On a CPU, where flash runs backwards in float32 whatever the precision; less what the MLP after it has given back."""
    queries, keys, width = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim, numerics.compute
    label_rows = shape.block_rows * (shape.slots - 1) / shape.slots
    copies = 0 if width == FLOAT32 else FLOAT32  # of what is float32 already there is none
    # The output's gradient as it came and in the blocks' order, the queries' gradient; copies of gradient, queries and output.
    of_queries = 2 * width * queries + FLOAT32 * queries + 3 * copies * queries
    scores = spec.num_heads * shape.slots * (2 * FLOAT32 + width)  # of a block's own slots: scores, weights, gradient
    mlp = FLOAT32 * spec.hidden_size + width * (queries + spec.hidden_size + 4 * spec.intermediate_size)
    own_keys = shape.block_rows * 2 * width * keys
    context = shape.tokens * 2 * (FLOAT32 + copies) * keys  # gradients of keys and values, copies of both
    return label_rows * (FLOAT32 * spec.hidden_size + of_queries + scores - mlp) + own_keys + context
