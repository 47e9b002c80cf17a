"""Holds the drafter's serve path to its train path: the two compute the same blocks, or acceptance is of another network.

Training runs all anchors of a text at once, on the target's features of the whole text. Serving runs one block at a time on
kept keys and values, on features that came with verifications of several tokens, some of which were cropped. A drafter
whose training accuracy is 0.98 and whose acceptance is 0.1 has its two paths apart: in positions, features, mask or cache.
Here the serve path goes along a text with rounds of every length, wrong drafts among the verified, and each block's final
hidden states and drafts are compared.

Dims: T tokens, A anchors, K block slots, S = K - 1, D hidden, F features width, N compared slots.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dflash_core.drafter.model import Drafter
from dflash_core.evaluation.chain_walk import WalkRow, block_embeds
from dflash_core.evaluation.decode import head_logits
from dflash_core.evaluation.records import Parity
from dflash_core.target.continuation import Continuation
from dflash_core.target.model import Target

# Largest difference of a hidden state over the root mean square of its row. Sound float32 paths differ by 1e-5 to 1e-4.
TOLERANCE = {torch.float32: 1e-2, torch.bfloat16: 0.5}


@torch.inference_mode()
def check_parity(target: Target, drafter: Drafter, rows: Sequence[WalkRow], tie_margin: float, seed: int = 0) -> Parity:
    """Compare both paths along texts with features of the whole text."""
    largest = largest_feature = 0.0
    num_blocks = num_different = num_ties = 0
    for number, row in enumerate(rows):
        rounds = _rounds_of_every_length(row.num_anchors, drafter.spec.block_size, np.random.default_rng([seed, number]))
        served_ASD, features_TF = serve(target, drafter, row, rounds)
        anchors = row.prompt_length + np.cumsum([0, *rounds[:-1]])
        trained_ASD = _train(target, drafter, row, torch.tensor(anchors, device=target.device))
        largest = max(largest, _difference(served_ASD, trained_ASD))
        largest_feature = max(largest_feature, _difference(features_TF, row.features_TF[: len(features_TF)].to(features_TF)))
        different, ties = _drafts_apart(target, served_ASD, trained_ASD, tie_margin)
        num_blocks, num_different, num_ties = num_blocks + len(rounds), num_different + different, num_ties + ties
    return Parity(
        num_texts=len(rows),
        num_blocks=num_blocks,
        largest_difference=largest,
        largest_feature_difference=largest_feature,
        tolerance=TOLERANCE[drafter.fc.weight.dtype],
        num_different_drafts=num_different,
        num_near_ties=num_ties,
    )


def serve(target: Target, drafter: Drafter, row: WalkRow, rounds: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Hidden states [A, S, D] of the block before each round, and the features that the drafter was given, [T, F].

    The drafts verified are the text's own as far as the round commits them, and other tokens after that.
    """
    num_slots, cache, anchor = drafter.spec.block_size, drafter.new_cache(), row.prompt_length
    blocks, given = [], []
    with Continuation(target, drafter.spec.target_layer_ids) as text:
        _, features_1QF = text.prefill(row.tokens[:anchor])
        for committed in rounds:
            embeds_1KD = block_embeds(target, drafter, torch.tensor([[row.tokens[anchor]]], device=target.device), num_slots, target.dtype)[0]
            blocks.append(drafter.propose(features_1QF, embeds_1KD, cache)[0, 1:])
            given.append(features_1QF[0])
            right = row.tokens[anchor : anchor + committed]
            wrong = [(token + 1) % target.vocab_size for token in right[-1:] * (num_slots - committed)]
            _, features_1QF = text.step([*right, *wrong])
            text.drop(len(wrong))
            features_1QF = features_1QF[:, :committed]
            anchor += committed
    return torch.stack(blocks), torch.cat(given)


def _train(target: Target, drafter: Drafter, row: WalkRow, anchors_A: Tensor) -> Tensor:
    """Hidden states [A, S, D] of the same blocks by Drafter.forward."""
    weight = drafter.fc.weight
    ids_1A = torch.tensor([[row.tokens[anchor] for anchor in anchors_A.tolist()]], device=target.device)
    embeds_1AKD = block_embeds(target, drafter, ids_1A, drafter.spec.block_size, target.dtype)
    features_1TF = row.features_TF[None].to(weight.device, weight.dtype)
    return drafter(features_1TF, embeds_1AKD, anchors_A[None], label_slots_only=True)[0]


def _rounds_of_every_length(num_tokens: int, block_size: int, generator: np.random.Generator) -> list[int]:
    """1 to K in random order, again and again, until the text is at its end."""
    rounds: list[int] = []
    while sum(rounds) < num_tokens:
        rounds += (1 + generator.permutation(block_size)).tolist()
    while sum(rounds) > num_tokens:
        rounds[-1] -= 1
        if not rounds[-1]:
            rounds.pop()
    return rounds


def _difference(one: Tensor, other: Tensor) -> float:
    """Largest difference of an entry over the root mean square of its row; what is no number is as different as can be."""
    size = other.float().square().mean(dim=-1, keepdim=True).sqrt().clamp(min=1e-12)
    apart = (one.float() - other.float()).abs() / size
    return float(apart.nan_to_num(nan=torch.finfo(apart.dtype).max).max())  # no threshold holds for NaN, and JSON has no infinity


def _drafts_apart(target: Target, served_ASD: Tensor, trained_ASD: Tensor, tie_margin: float) -> tuple[int, int]:
    """Slots whose best token differs: beyond a tie, and at one."""
    served_NV, trained_NV = (head_logits(hidden.flatten(0, 1), target.head_weight_VD) for hidden in (served_ASD, trained_ASD))
    apart_N = served_NV.argmax(dim=-1) != trained_NV.argmax(dim=-1)
    best_N2 = trained_NV[apart_N].float().topk(2, dim=-1).values
    ties = int((best_N2[:, 0] - best_N2[:, 1] < tie_margin).sum())
    return int(apart_N.sum()) - ties, ties
