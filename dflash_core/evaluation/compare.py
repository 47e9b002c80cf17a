"""Holds fast against true: speculative output against plain output, and chain walk against real decoding.

Verifying a block and decoding token by token round differently, so the better of two nearly equal logits may differ.
A first difference at such a tie is reported as a tie, and ends the comparison of that prompt: what follows is
another text. Any other difference is a fault.
Dims: T tokens, V vocab.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dflash_core.drafter.model import Drafter
from dflash_core.evaluation.acceptance import pooled_tau
from dflash_core.evaluation.chain_walk import Walked, WalkRow, chain_walk
from dflash_core.evaluation.decode import Decoded
from dflash_core.evaluation.prompts import MeasuredPrompt
from dflash_core.evaluation.records import Difference, Outputs, WalkAgreement, WalkDifference
from dflash_core.evaluation.walk_set import walk_rows
from dflash_core.target.model import Target

WALKED_AT_ONCE = 64  # prompts whose features are held together: of 500 tokens each, SmolLM2's take 0.3 GB


@dataclass(frozen=True)
class PromptResult:
    """A prompt and both ways of answering it."""

    prompt: MeasuredPrompt
    plain: Decoded
    speculative: Decoded


def compare_outputs(target: Target, results: Sequence[PromptResult], tie_margin: float) -> Outputs:
    """Hold the speculative outputs to the target's own."""
    found = [
        first_difference(target, r.prompt.sample_id, r.prompt.prompt_ids, r.plain.tokens, r.speculative.tokens, tie_margin)
        for r in results
    ]
    differences = tuple(difference for difference in found if difference is not None)
    num_ties = sum(difference.tie for difference in differences)
    return Outputs(
        num_prompts=len(results),
        num_tokens=sum(len(r.speculative.tokens) for r in results),
        num_equal=len(results) - len(differences),
        num_ties=num_ties,
        num_different=len(differences) - num_ties,
        differences=differences,
    )


def compare_walk(
    target: Target,
    drafter: Drafter,
    results: Sequence[PromptResult],
    outputs: Outputs,
    tie_margin: float,
    block_size: int | None = None,
) -> WalkAgreement:
    """Walk along the target's own answers, hold the rounds to those of real decoding, and time it."""
    parted = {difference.sample_id: difference.index for difference in outputs.differences}
    differences: list[WalkDifference] = []
    all_rounds: list[tuple[int, ...]] = []
    feature_s = walk_s = 0.0
    for first in range(0, len(results), WALKED_AT_ONCE):
        part = results[first : first + WALKED_AT_ONCE]
        begin = time.perf_counter()
        rows = walk_rows(target, [(r.prompt.prompt_ids, r.plain.tokens) for r in part], drafter.spec.target_layer_ids)
        features_end = time.perf_counter()
        walked = chain_walk(target, drafter, rows, block_size)
        feature_s, walk_s = feature_s + features_end - begin, walk_s + time.perf_counter() - features_end
        all_rounds += [walk.rounds for walk in walked]
        for result, row, walk in zip(part, rows, walked, strict=True):
            sample_id, rounds = result.prompt.sample_id, result.speculative.rounds
            num_comparable = parted.get(sample_id)
            difference = first_walk_difference(target, drafter, sample_id, row, walk, rounds, num_comparable, tie_margin, block_size)
            differences += [difference] if difference is not None else []
    decoded_s = sum(r.speculative.seconds.total for r in results)
    return WalkAgreement(
        num_prompts=len(results),
        num_equal=len(results) - len(differences),
        tau=pooled_tau(all_rounds),
        differences=tuple(differences),
        seconds=walk_s,
        feature_seconds=feature_s,
        speedup=decoded_s / walk_s if walk_s else None,
    )


def first_difference(
    target: Target, sample_id: str, prompt_ids: Sequence[int], plain: Sequence[int], speculative: Sequence[int], tie_margin: float
) -> Difference | None:
    """Where two answers first differ, with the target's top-2 margin there; None if they are equal."""
    if tuple(plain) == tuple(speculative):
        return None
    pairs = zip(plain, speculative, strict=False)
    index = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(plain), len(speculative)))
    margin = target_margins(target, [*prompt_ids, *plain[:index]], [len(prompt_ids) + index])[0]
    return Difference(
        sample_id=sample_id,
        index=index,
        expected=plain[index] if index < len(plain) else -1,
        found=speculative[index] if index < len(speculative) else -1,
        margin=margin,
        tie=margin < tie_margin,
    )


def first_walk_difference(
    target: Target,
    drafter: Drafter,
    sample_id: str,
    row: WalkRow,
    walked: Walked,
    decoded_rounds: Sequence[int],
    num_comparable: int | None,
    tie_margin: float,
    block_size: int | None = None,
) -> WalkDifference | None:
    """Where the walk's rounds first differ from real decoding's; None if they agree.

    Args:
        target, drafter: asked for their margins in the differing round only.
        sample_id: names the prompt.
        row: the target's own text that was walked along.
        walked: its rounds.
        decoded_rounds: those of real decoding.
        num_comparable: answer tokens before both texts part; rounds that reach past them aren't compared. None if they don't.
        tie_margin: two best logits nearer than this are a tie.
        block_size: as for `chain_walk`.
    """
    anchor = row.prompt_length
    for index in range(max(len(walked.rounds), len(decoded_rounds))):
        pair = [rounds[index] if index < len(rounds) else None for rounds in (walked.rounds, decoded_rounds)]
        longest = max(count or 0 for count in pair)
        if pair[0] == pair[1]:
            anchor += longest
            continue
        if num_comparable is not None and anchor + longest >= row.prompt_length + num_comparable:
            return None
        margin = _round_margin(target, drafter, row, (anchor, longest), tie_margin, block_size)
        return WalkDifference(
            sample_id=sample_id,
            round=index,
            position=anchor,
            walked=pair[0],
            decoded=pair[1],
            margin=margin,
            tie=margin < tie_margin,
        )
    return None


@torch.inference_mode()
def target_margins(target: Target, tokens: Sequence[int], positions: Sequence[int]) -> list[float]:
    """Gap between the target's two best logits for the tokens at `positions` (>= 1) of a text."""
    ids_1T = torch.tensor([list(tokens)], device=target.device)
    logits_1TV, _, _ = target.forward_cached(ids_1T, None, ())
    best_N2 = logits_1TV[0, [position - 1 for position in positions]].float().topk(2, dim=-1).values
    return (best_N2[:, 0] - best_N2[:, 1]).tolist()


def _round_margin(
    target: Target, drafter: Drafter, row: WalkRow, place: tuple[int, int], tie_margin: float, block_size: int | None
) -> float:
    """Smallest top-2 margin, of drafter or target, over the tokens that the round at `place`, anchor and length, decides on."""
    anchor, length = place
    last = len(row.tokens) - 1
    positions = list(range(anchor + 1, min(anchor + length, last) + 1))
    near = chain_walk(target, drafter, [row], block_size, tie_margin)[0].near_ties
    drafted = [tie.margin for tie in near if positions[0] <= tie.position <= positions[-1]]
    return min([*drafted, *target_margins(target, row.tokens, positions)])
