"""The chain walk gives the rounds of real decoding, on every kind of answer."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dflash_core.drafter.model import Drafter
from dflash_core.evaluation.chain_walk import Walked, WalkRow, chain_walk
from dflash_core.evaluation.compare import PromptResult, compare_outputs, compare_walk, first_walk_difference
from dflash_core.evaluation.decode import Decoded, propose_tokens, speculative_decode, target_decode
from dflash_core.evaluation.lockstep import lockstep_walk
from dflash_core.evaluation.prompts import MeasuredPrompt
from dflash_core.evaluation.walk_set import walk_rows
from dflash_core.target.model import Target


def agree(target: Target, drafter: object, prompts: list[list[int]], limit: int, stops: set[int], block_size: int | None) -> int:
    """Hold the walk to real decoding on all prompts; returns the number of rounds."""
    plain = [target_decode(target, prompt, limit, stops).tokens for prompt in prompts]
    decoded = [speculative_decode(target, drafter, prompt, limit, stops, block_size).rounds for prompt in prompts]
    rows = walk_rows(target, list(zip(prompts, plain, strict=True)), drafter.spec.target_layer_ids)
    walked = chain_walk(target, drafter, rows, block_size)
    for row, walk, rounds in zip(rows, walked, decoded, strict=True):
        difference = first_walk_difference(target, drafter, "x", row, walk, rounds, None, 1e-4)
        assert difference is None or difference.tie, difference
    return sum(len(rounds) for rounds in decoded)


@pytest.mark.parametrize("sliding, block_size", [(False, None), (True, 3)])
def test_spec7_12_metric_agreement(target: Target, lab: SimpleNamespace, sliding: bool, block_size: int | None) -> None:
    # Stop tokens end some answers early; prompts of 1 to 24 tokens, padded on the right.
    assert agree(target, lab.random_drafter(sliding=sliding), lab.prompts(4), 14, {7, 30, 31}, block_size) > 10


def test_deep_blocks_agree_with_real_decoding(target: Target, lab: SimpleNamespace) -> None:
    prompt = lab.prompts(3)[2]
    text = [*prompt, *target_decode(target, prompt, 60, ()).tokens]
    for period in (2, 7):
        drafter = lab.OracleDrafter(target, text, lambda anchor, period=period: 1 + anchor % period)
        for limit in (1, 2, 30):
            agree(target, drafter, [prompt], limit, set(), None)
        agree(target, drafter, [prompt], 40, {text[len(prompt) + 9]}, None)


def test_rounds_past_the_place_where_two_texts_part_are_not_compared(llama: Target, lab: SimpleNamespace) -> None:
    prompt = lab.prompts(2)[1]
    plain = target_decode(llama, prompt, 20, ())
    drafter = lab.OracleDrafter(llama, [*prompt, *plain.tokens, *([0] * lab.BLOCK)], lambda anchor: None)
    # Whole blocks, until token 9, in the middle of the second, is another: that round is cut, and all after it differ.
    tokens = (*plain.tokens[:9], (plain.tokens[9] + 1) % lab.VOCAB, *plain.tokens[10:])
    other = Decoded(tokens, (lab.BLOCK, 3, *([1] * 10)), (), plain.seconds)
    results = [PromptResult(MeasuredPrompt("x", "c", tuple(prompt), ()), plain, other)]
    parted = compare_outputs(llama, results, tie_margin=1e9)
    assert (parted.num_ties, parted.differences[0].index) == (1, 9)
    assert compare_walk(llama, drafter, results, parted, 1e-4).num_equal == 1
    equal = parted.model_copy(update={"differences": ()})
    (difference,) = compare_walk(llama, drafter, results, equal, 1e-4).differences
    assert (difference.round, difference.walked, difference.decoded) == (1, lab.BLOCK, 3)


def row_accepted_to(target: Target, drafter: Drafter, depths: list[int], block_size: int, seed: int) -> WalkRow:
    """A text, over random features, of which the drafter's block at each visited anchor has just `depths` tokens right."""
    generator = torch.Generator().manual_seed(seed)
    features_TF = torch.randn(80, drafter.spec.features_size, generator=generator)
    tokens = [3 + seed] * (1 + seed)
    start = len(tokens) - 1
    with torch.inference_mode():
        for depth in depths:
            features_1TF = features_TF[None, : len(tokens) - 1]
            drafts = propose_tokens(target, drafter, features_1TF, tokens[-1], drafter.new_cache(), block_size).tokens
            tokens += drafts[:depth]
            tokens.append((drafts[depth] + 1) % 90 if depth < len(drafts) else 7)
    return WalkRow(tuple(tokens), start, features_TF)


@pytest.mark.parametrize("sliding", [False, True])
@pytest.mark.parametrize("block_size", [6, 3])
def test_both_walks_find_the_depths_that_a_text_was_made_for(
    llama: Target, lab: SimpleNamespace, sliding: bool, block_size: int
) -> None:
    drafter = lab.random_drafter(sliding=sliding)
    generator = np.random.default_rng(0)
    depths = [generator.integers(0, block_size, size=count).tolist() for count in (12, 1, 5, 9)]
    rows = [row_accepted_to(llama, drafter, row, block_size, seed) for seed, row in enumerate(depths, start=1)]
    expected = tuple(Walked(tuple(depth + 1 for depth in row)) for row in depths)
    assert chain_walk(llama, drafter, rows, block_size) == expected
    assert lockstep_walk(llama, drafter, rows, block_size) == expected


def test_the_head_runs_once_a_token_and_only_where_the_prefix_matches(
    llama: Target, lab: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dflash_core.evaluation.chain_walk as module

    seen: list[int] = []
    head = module.head_logits
    monkeypatch.setattr(module, "head_logits", lambda hidden_ND, weight: seen.append(len(hidden_ND)) or head(hidden_ND, weight))
    drafter = lab.random_drafter()
    prompts = lab.prompts(5)
    rows = walk_rows(llama, [(p, target_decode(llama, p, 20, ()).tokens) for p in prompts], drafter.spec.target_layer_ids)
    walked = chain_walk(llama, drafter, rows)
    assert sum(seen) <= sum(sum(walk.rounds) for walk in walked)


def test_rows_are_independent_of_their_batch(llama: Target, lab: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    import dflash_core.evaluation.chain_walk as module

    drafter = lab.random_drafter()
    rows = walk_rows(llama, [(p, target_decode(llama, p, 16, {7, 30}).tokens) for p in lab.prompts(7)], (0, 1))
    together = chain_walk(llama, drafter, rows)
    assert together == tuple(chain_walk(llama, drafter, [row])[0] for row in rows)
    monkeypatch.setattr(module, "SLOTS_PER_FORWARD", 150)
    monkeypatch.setattr(module, "ANCHORS_PER_WALK", 40)
    assert together == chain_walk(llama, drafter, rows)


def test_padding_is_never_seen(llama: Target, lab: SimpleNamespace) -> None:
    drafter = lab.random_drafter()
    prompt = lab.prompts(3)[2]
    (row,) = walk_rows(llama, [(prompt, target_decode(llama, prompt, 12, ()).tokens)], (0, 1))
    longer = WalkRow(row.tokens, row.prompt_length, torch.cat([row.features_TF, torch.full((9, row.features_TF.shape[1]), 1e4)]))
    assert chain_walk(llama, drafter, [row]) == chain_walk(llama, drafter, [longer])


def test_near_ties_are_listed_with_their_positions(llama: Target, lab: SimpleNamespace) -> None:
    drafter = lab.random_drafter()
    with torch.no_grad():
        drafter.norm.weight.zero_()  # all logits are 0: every slot is a tie
    prompt = lab.prompts(2)[1]
    (row,) = walk_rows(llama, [(prompt, target_decode(llama, prompt, 8, ()).tokens)], (0, 1))
    (walk,) = chain_walk(llama, drafter, [row], tie_margin=1e-4)
    assert walk.near_ties[0].position == row.prompt_length + 1 and walk.near_ties[0].margin == 0
    assert chain_walk(llama, lab.random_drafter(), [row], tie_margin=1e-9)[0].near_ties == ()
