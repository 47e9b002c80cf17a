"""What a rank holds in memory, item by item: on a CPU, on a GPU, and in the memory of a GPU's host.

Weights on a CPU are resident twice over or hardly at all, depending on dtype: a safetensors file is memory-mapped, and
where its dtype is the run's the mapping *is* the weights (pages become resident as they are first read, and count in RSS
although the kernel may drop them); else the mapped file and the converted copy are resident together until the load
ends. Every page of the layers and the head is read by the self-check, and of the embedding the rows that occur.
"""

from typing import Literal

from dflash_core.distributed.transport import CREDITS
from dflash_core.drafter.initialise import PROBE_ANCHORS
from dflash_core.evaluation.walk_set import TOKENS_PER_FORWARD
from dflash_core.plan_estimate.activations import (
    Device,
    backward_passing,
    drafter_kept,
    target_forward,
    target_passing,
    walk_forward,
)
from dflash_core.plan_estimate.items import Item, held, since
from dflash_core.plan_estimate.sizes import BFLOAT16, FLOAT32
from dflash_core.plan_estimate.sizing import Sizing
from dflash_core.target.feature_cache import SHARD_BYTES
from dflash_core.target.feature_store import MAPPED_SHARDS

Place = Literal["cpu", "cuda", "host"]
# Resident after all imports (measured), and what Arrow, kernels and the heap add at run time (measured).
IMPORTED_BYTES, RUNTIME_BYTES = 0.43e9, 0.12e9
# Taken as usual, not measured here: the CUDA context of a process, and its libraries in the host's memory.
CUDA_CONTEXT_BYTES, CUDA_HOST_BYTES = 0.6e9, 3e9
# glibc returns freed blocks of less than 32 MB only from the heap's end. What it keeps beside live activations was measured
# at 36 % of them in float32, where most blocks are larger, and in bfloat16 at 43 % with micro-batches of one shape and 137 %
# with eight, which is reached in two rounds and stays. A GPU's allocator has no such part.
HEAP_SHARES = {FLOAT32: 0.4, BFLOAT16: 1.4}
# On a CPU oneDNN compiles each bfloat16 product for its shape and keeps 1,024 of them: 0.67 MB each as measured, 34 for a
# micro-batch of a new shape whatever the number of layers, and the head's last chunk, which is forward and backward of a new one always.
COMPILED_BYTES, COMPILED_MOST, COMPILED_PER_SHAPE, COMPILED_PER_MICRO_BATCH = 0.67e6, 1024, 34, 2
BYTES_PER_ARROW_TOKEN = 33 / 8
PROBE_ROWS = 6


def memory_items(sizing: Sizing, place: Place) -> tuple[Item, ...]:
    """Every item of this role's memory at `place`, zero ones included where a setting or a later version may change them."""
    if place == "host":
        return (_libraries(place), *_host_items(sizing))
    items = [_libraries(place), *_target_items(sizing, place)]
    if sizing.role.runs_drafter:
        items += [*_state_items(sizing), *_activation_items(sizing, place), *_start_items(sizing, place), *_evaluation_items(sizing, place)]
    items += _feature_items(sizing, place)
    if place == "cpu":
        items += _host_data_items(sizing)
    return tuple(items)


def _device(place: Place) -> Device:
    return "cpu" if place == "cpu" else "cuda"


def _libraries(place: Place) -> Item:
    if place == "cpu":
        return held("interpreter and libraries", IMPORTED_BYTES + RUNTIME_BYTES, "as measured on a CPU")
    if place == "cuda":
        return held("CUDA context", CUDA_CONTEXT_BYTES, "assumed; fragmentation comes on top")
    return held("interpreter and libraries", CUDA_HOST_BYTES, "assumed, with CUDA's")


def _target_items(sizing: Sizing, place: Place) -> list[Item]:
    target, width = sizing.target, sizing.target_width
    ends = target.embedding + target.head
    if not sizing.role.runs_target:
        return [held("target's embedding and head", ends * width, f"{ends / 1e6:,.0f} M x {width} B")]
    shards = sizing.role.target_shards
    formula = f"{target.total / 1e6:,.0f} M x {width} B" + (f", layers over {shards} ranks" if shards > 1 else "")
    items = [held("target weights", (ends + (target.total - ends) / shards) * width, formula)]
    if place == "cpu" and target.stored_width != width:
        mapped = target.total * target.stored_width
        items.append(held("target's file, mapped", mapped, f"x {target.stored_width} B until all is converted", ["load"]))
    if sizing.online:
        tokens = max(shape.tokens for shape in sizing.workload.shapes)
        passing = target_passing(sizing.spec, tokens, width)
        # In a thread of its own: it runs beside whatever the loop does.
        items.append(held("target's forward", passing, f"{tokens:,} tokens x (captured layers, or one MLP)", since("features")))
    return items


def _state_items(sizing: Sizing) -> list[Item]:
    """Weights, gradients and moments; under fsdp2 a shard of each, beside what is gathered from time to time."""
    total, shards = sizing.drafter.total, sizing.role.drafter_shards
    of = f"{total / 1e6:,.1f} M x " + "{} B" + (f" / {shards} ranks" if shards > 1 else "")
    items = [
        held("drafter weights", FLOAT32 * total / shards, of.format(FLOAT32), since("start")),
        held("AdamW moments", 2 * FLOAT32 * total / shards, of.format(2 * FLOAT32), since("features")),
    ]
    if shards == 1:
        items.append(held("gradients", FLOAT32 * total, of.format(FLOAT32), ["drafter", "update"] if sizing.accumulates else ["update"]))
        if sizing.role.count > 1:
            items.append(held("gradients' buckets", FLOAT32 * total, "kept for the sum over ranks", since("features")))
        return items
    whole = total if sizing.accumulates else sizing.drafter.layer
    gathered = FLOAT32 * (total - (sizing.spec.num_layers - 2) * sizing.drafter.layer)
    return [
        *items,
        held("gradients", FLOAT32 * total / shards, of.format(FLOAT32), ["update"]),
        held("gradients, not yet sharded", FLOAT32 * whole, "whole until the last micro-batch", ["drafter"]),
        held("gathered weights", gathered, "two layers, and what is outside of layers", ["drafter"]),
        held("gathered drafter", 2 * FLOAT32 * total, "a whole copy for the walk, on the first rank", ["evaluate"]),
    ]


def _activation_items(sizing: Sizing, place: Place) -> list[Item]:
    spec, numerics = sizing.spec, sizing.numerics(_device(place))
    shape = max(sizing.workload.shapes, key=lambda s: drafter_kept(spec, s, numerics))
    of = f"{shape.rows} x {shape.length} tokens, {shape.anchors} anchors each, {shape.block_rows:,} block rows"
    items = [
        held("drafter's activations", drafter_kept(spec, shape, numerics), of, ["drafter"]),
        held("head chunk, passing gradients", backward_passing(spec, shape, numerics), of, ["drafter"]),
    ]
    if place == "cpu":
        share = HEAP_SHARES[numerics.compute]
        kept = share * sum(item.bytes for item in items)
        items.append(held("freed blocks in the heap", kept, f"{share:.0%} of activations, as measured", ["drafter"]))
    if numerics.compute != FLOAT32:
        if place == "cpu":
            items.append(_compiled_products(sizing))
        weights = sizing.drafter.total if sizing.role.drafter_shards == 1 else 2 * sizing.drafter.layer
        items.append(held("weights in bfloat16", numerics.compute * weights, "autocast's copies", ["drafter"]))
    return items


def _compiled_products(sizing: Sizing) -> Item:
    workload = sizing.workload
    count = COMPILED_MOST
    if workload.steps is not None:
        micro_batches = workload.steps * workload.micro_batches * sizing.role.share
        count = min(count, round(COMPILED_PER_SHAPE * len(workload.shapes) + COMPILED_PER_MICRO_BATCH * micro_batches))
    return held("compiled products", count * COMPILED_BYTES, f"{count:,} of oneDNN's, {COMPILED_BYTES / 1e6} MB each as measured", since("drafter"))


def _start_items(sizing: Sizing, place: Place) -> list[Item]:
    """Random weights are drawn a tensor at a time; the first loss is probed with logits of all of the probe's slots, three at a time."""
    spec = sizing.spec
    rows = PROBE_ROWS * PROBE_ANCHORS * (spec.block_size - 1)
    head = spec.vocab_size * spec.hidden_size * FLOAT32 if sizing.target_width != FLOAT32 else 0
    probe = 3 * rows * spec.vocab_size * FLOAT32 + head
    walk = target_forward(spec, min(TOKENS_PER_FORWARD, sizing.workload.walk_rows * sizing.workload.walk_length), sizing.target_width)
    drawn = 2 * FLOAT32 * sizing.drafter.tensor if place == "cpu" else 0
    return [held("initial weights and rows", max(drawn, probe, walk), f"{rows} slots x vocabulary, or the walk's features", ["start"])]


def _evaluation_items(sizing: Sizing, place: Place) -> list[Item]:
    if not sizing.config.checkpoint.evaluate:
        return []
    workload, evaluation = sizing.workload, sizing.config.evaluation
    anchors = min(evaluation.max_new_tokens, workload.walk_length)
    length = min(workload.walk_length, sizing.config.data.max_length)
    passing = walk_forward(sizing.spec, workload.walk_rows, length, anchors, sizing.numerics(_device(place))) if workload.walk_rows else 0.0
    return [held("walk at a checkpoint", passing, f"{workload.walk_rows} rows x {anchors} anchors", ["evaluate"])]


def _feature_items(sizing: Sizing, place: Place) -> list[Item]:
    """Features of whole steps wait where they were made: a cached step in the host's memory, one from the loop on its device."""
    here = sizing.online or place != "cuda"
    if not here:
        shape = max(sizing.workload.shapes, key=lambda s: s.tokens)
        size = shape.tokens * sizing.spec.features_size * sizing.features_width
        return [held("features of a micro-batch", size, f"{shape.tokens:,} tokens", ["drafter"])]
    return _step_features(sizing)


def _step_features(sizing: Sizing) -> list[Item]:
    """Steps wait in a queue, one more is in the making, one in the drafter's work; a target rank sends micro-batches on."""
    spec, width = sizing.spec, sizing.features_width
    if not sizing.role.runs_drafter:
        tokens = max(shape.tokens for shape in sizing.workload.shapes)
        count = CREDITS * sizing.num_drafter_ranks + 1
        of = f"{count} micro-batches of {tokens:,} tokens x {spec.features_size:,} x {width} B"
        return [held("features on their way", count * tokens * spec.features_size * width, of, since("features"))]
    tokens = sizing.workload.step_tokens * sizing.role.share
    steps = sizing.config.distributed.queue_depth + 2
    steps = min(steps, sizing.workload.steps or steps)
    of = f"{steps} steps x {tokens:,.0f} tokens x {spec.features_size:,} x {width} B; 2 where the drafter waits for them"
    return [held("features", steps * tokens * spec.features_size * width, of, since("features"))]


def _host_data_items(sizing: Sizing) -> list[Item]:
    workload = sizing.workload
    tokens = workload.train_tokens or 0
    known = f"{tokens:,} tokens x 33 bits" if workload.train_tokens else "not known before prepare"
    items = [held("dataset", tokens * BYTES_PER_ARROW_TOKEN, known)]
    if sizing.role.runs_target and not sizing.online:
        mapped = min(tokens * sizing.spec.features_size * BFLOAT16, MAPPED_SHARDS * SHARD_BYTES)
        items.append(held("cached features, mapped", mapped, f"shards as read, {MAPPED_SHARDS} at most; the kernel may drop them", since("features")))
    if sizing.role.runs_drafter and sizing.config.checkpoint.evaluate:
        walked = workload.walk_rows * workload.walk_length * sizing.spec.features_size * sizing.target_width
        items.append(held("held-out features", walked, f"{workload.walk_rows} rows of the walk", since("features")))
    if sizing.role.runs_drafter:
        staged = 3 * FLOAT32 * sizing.drafter.total / sizing.role.drafter_shards
        items.append(held("checkpoint's staging copy", staged, "weights and moments, kept from save to save", since("features")))
    return items


def _host_items(sizing: Sizing) -> list[Item]:
    """Beside a GPU: the mapped file until the target is on the device, and the data."""
    items = _host_data_items(sizing)
    if sizing.role.runs_target:
        items.append(held("target's file, mapped", sizing.target.total * sizing.target.stored_width, "until it is on the GPU", ["load"]))
    if sizing.role.runs_drafter:
        items += [held("drafter weights", FLOAT32 * sizing.drafter.total, "built here, then moved", ["start"])]
        if not sizing.online:
            items += _step_features(sizing)
    return items
