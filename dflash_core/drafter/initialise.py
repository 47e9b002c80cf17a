"""Initial weights: random, or taken from the target's own layers; both start near a loss of ln(V).

A drafter that borrows a tied embedding as its head starts far off: SmolLM2's mask embedding, normed, is
close to some rows of the head, and the naive start has a loss of 73 where ln(V) is 10.8. So the last
step of each mode scales the final norm until a few rows of the data cost at most ln(V) + EXCESS_NATS.

Dims: R rows of the probe, T tokens, A anchors, K block slots, D hidden, F features width, V vocab, N labels.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from dflash_core.drafter.model import Drafter

if TYPE_CHECKING:
    from dflash_core.target.ends import TargetEnds

FeatureFunction = Callable[[Tensor, Sequence[int]], Tensor]
# Standard deviation of random matrices: `initializer_range` of Qwen3.
MATRIX_STD = 0.02
# Excess of the initial loss over ln(V) on the probe; other rows add to it, and 0.5 is the limit.
EXCESS_NATS = 0.2
# Size of the other captured layers beside the last one, in the context that mode "target" starts from.
PASSED_SHARE = 0.1
# Each row of the probe is cut to a multiple of this many tokens, since every new length costs a CPU a second.
PROBE_MULTIPLE = 64
PROBE_ANCHORS = 8


@dataclass(frozen=True)
class Probe:
    """A little of the run's own data.

    Random text would not do in its place: the mask row's logits favour some words of a language over others, and
    SmolLM2's drafter, scaled by random tokens, began 1.7 nats above ln(V) on answers.
    """

    rows: tuple[Tensor, ...]  # int64 [T] each, prompt and answer
    labels_N: Tensor  # int64, the answers' tokens

    @classmethod
    def of(cls, rows: Sequence[Tensor], masks: Sequence[Tensor]) -> "Probe":
        """Rows with their loss masks (bool [T])."""
        kept = [row[: max(PROBE_MULTIPLE, len(row) // PROBE_MULTIPLE * PROBE_MULTIPLE)] for row in rows]
        labels_N = torch.cat([row[mask] for row, mask in zip(rows, masks, strict=True)])
        return cls(tuple(kept), labels_N)


@torch.no_grad()
def initialise(
    drafter: Drafter,
    target: "TargetEnds",
    mode: Literal["target", "random"],
    seed: int,
    probe: Probe,
    features: FeatureFunction | None = None,
) -> None:
    """Set every weight in place; a function of (target, spec, mode, seed, probe) alone.

    Args:
        drafter: On the target's device.
        target: Lends its ends, and layers to copy.
        mode: Whether the layers start from the target's.
        seed: Of the random weights.
        probe: Rows to scale by.
        features: features_BTF of (input_ids_BT, layer ids), where `target` is only ends and another rank makes them;
            None asks `target` itself. Called once for each row of the probe, in order.
    """
    features = target.features if features is None else features
    features_R1TF = [features(row_T[None].to(target.device), drafter.spec.target_layer_ids).float() for row_T in probe.rows]
    randomise(drafter, torch.Generator().manual_seed(seed))
    if mode == "target":
        pass_last_feature(drafter, features_R1TF[0])
        copy_layers(drafter, target, source_layers(drafter.spec.num_target_layers, drafter.spec.num_layers))
        if target.final_norm is not None:
            drafter.norm.weight.copy_(norm_scale(target.final_norm))
    scale_final_norm(drafter, target, probe, features_R1TF)


def randomise(drafter: Drafter, generator: torch.Generator) -> None:
    """Matrices N(0, 0.02^2), norms 1. Drawn on the CPU, so that a seed means the same on every device."""
    for parameter in drafter.parameters():
        if parameter.dim() == 1:
            parameter.fill_(1.0)
        else:
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * MATRIX_STD)


def source_layers(num_target_layers: int, num_layers: int) -> tuple[int, ...]:
    """Target layers that the drafter's start from: the last ones, in order; where the drafter has more, the first repeats.

    By z-lab's rule the last captured layer is n-3, so the drafter's last two layers read what these layers read in the target.
    """
    return tuple(max(0, num_target_layers - num_layers + i) for i in range(num_layers))


def pass_last_feature(drafter: Drafter, features_1TF: Tensor) -> None:
    """fc starts as the identity on the last captured layer, and weak random on the others.

    The copied keys and values were made for that layer's output. The others enter at PASSED_SHARE of its size, so that
    they can be told apart from the first step on; rows grow with depth, hence the scale. The median over rows ignores
    the first token, whose activations are a thousand times larger in most models.
    """
    features_TLD = features_1TF[0].unflatten(-1, (len(drafter.spec.target_layer_ids), -1))
    sizes_L = features_TLD.square().mean(dim=-1).sqrt().median(dim=0).values.clamp_min(1e-6)
    mixed = drafter.fc.weight.unflatten(1, (len(sizes_L), -1))
    scale_L = PASSED_SHARE / MATRIX_STD / drafter.spec.hidden_size**0.5 * sizes_L[-1] / sizes_L
    mixed.mul_(scale_L[None, :, None])
    mixed[:, -1] = torch.eye(drafter.spec.hidden_size, device=features_1TF.device)


def copy_layers(drafter: Drafter, target: "TargetEnds", sources: tuple[int, ...]) -> None:
    """Start each drafter layer from a target layer, wherever a tensor of the same shape exists there."""
    for layer, source in zip(drafter.layers, target.decoder_layers(sources), strict=True):
        # Phi has one norm for attention and MLP, Gemma 2 and 3 have four.
        named = (getattr(source, f"{name}_layernorm", None) for name in ("pre_feedforward", "post_attention", "input"))
        before_mlp = next(norm for norm in named if norm is not None)
        layer.input_layernorm.weight.copy_(norm_scale(source.input_layernorm))
        layer.post_attention_layernorm.weight.copy_(norm_scale(before_mlp))
        matrices = _matrices(source)
        for name, weight in matrices.items():
            mine = layer.get_submodule(name).weight
            if mine.shape == weight.shape:
                mine.copy_(weight)
        _set_head_norms(layer, source)
    # The context has one norm in place of each layer's own; the first source reads the last captured layer, or a layer near it.
    drafter.hidden_norm.weight.copy_(drafter.layers[0].input_layernorm.weight)


def norm_scale(norm: nn.Module) -> Tensor:
    """What an RMSNorm multiplies by: Gemma stores it less one."""
    weight = norm.weight.float()
    return weight + 1.0 if type(norm).__name__.startswith("Gemma") else weight


def _matrices(source: nn.Module) -> dict[str, Tensor]:
    """The target layer's matrices under the drafter's names; Phi 3 stores some of them joined."""
    attention, mlp = source.self_attn, source.mlp
    matrices = {}
    for owner, prefix, names in ((attention, "self_attn", "qkvo"), (mlp, "mlp", ("gate", "up", "down"))):
        for name in names:
            module = getattr(owner, f"{name}_proj", None)
            if module is not None:
                matrices[f"{prefix}.{name}_proj"] = module.weight
    if hasattr(mlp, "gate_up_proj"):
        matrices["mlp.gate_proj"], matrices["mlp.up_proj"] = mlp.gate_up_proj.weight.chunk(2)
    if hasattr(attention, "qkv_proj"):
        total, width = attention.qkv_proj.weight.shape[0], attention.o_proj.weight.shape[1]
        parts = attention.qkv_proj.weight.split([width, (total - width) // 2, (total - width) // 2])
        matrices |= {f"self_attn.{name}_proj": part for name, part in zip("qkv", parts, strict=True)}
    return matrices


def _set_head_norms(layer: nn.Module, source: nn.Module) -> None:
    """q_norm and k_norm: the target's where it has them, else the size its queries and keys have on average.

    With an input of unit size times g, row i of W gives a value of mean square sum_j (W_ij g_j)^2.
    """
    for name in ("q", "k"):
        mine = getattr(layer.self_attn, f"{name}_norm").weight
        theirs = getattr(source.self_attn, f"{name}_norm", None)
        if theirs is not None and getattr(theirs, "weight", mine[:0]).shape == mine.shape:
            mine.copy_(norm_scale(theirs))
        else:
            projection = getattr(layer.self_attn, f"{name}_proj").weight * layer.input_layernorm.weight
            mine.fill_(projection.square().sum(dim=1).mean().sqrt())


def scale_final_norm(drafter: Drafter, target: "TargetEnds", probe: Probe, features_R1TF: Sequence[Tensor]) -> None:
    """Shrink `norm` to the largest factor with a loss of at most ln(V) + EXCESS_NATS, found by halving an interval.

    Every label counts against every hidden state: at the start, hidden states know nothing of their labels.
    """
    rows = zip(probe.rows, features_R1TF, strict=True)
    hidden_ND = torch.cat([_block_hidden(drafter, target, row_T, features_1TF) for row_T, features_1TF in rows])
    logits_NV = hidden_ND @ target.head_weight_VD.float().T
    labels_N = probe.labels_N.to(logits_NV.device)

    def excess(factor: float) -> float:
        scaled_NV = logits_NV * factor
        if target.logit_softcap is not None:
            scaled_NV = target.logit_softcap * torch.tanh(scaled_NV / target.logit_softcap)
        return float((scaled_NV.logsumexp(dim=-1) - scaled_NV[:, labels_N].mean(dim=-1)).mean()) - math.log(scaled_NV.shape[-1])

    if excess(1.0) <= EXCESS_NATS:
        return
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) <= EXCESS_NATS else (low, middle)
    drafter.norm.weight.mul_(low)


def _block_hidden(drafter: Drafter, target: "TargetEnds", row_T: Tensor, features_1TF: Tensor) -> Tensor:
    """Hidden states [N, D] of all label slots of a few blocks, spread over the row."""
    anchors_A = torch.linspace(1, len(row_T) - 1, PROBE_ANCHORS).long().unique()
    block_ids_AK = torch.full((len(anchors_A), drafter.spec.block_size), drafter.spec.mask_token_id)
    block_ids_AK[:, 0] = row_T[anchors_A]
    embeds_1AKD = target.embed(block_ids_AK.to(target.device)).float()[None]
    hidden_1ASD = drafter(features_1TF, embeds_1AKD, anchors_A[None].to(target.device), label_slots_only=True)
    return hidden_1ASD.flatten(0, 2)
