"""Speculative decoding: same tokens as the target alone, and the right count of what each round commits."""

from types import SimpleNamespace

import pytest
import torch

from dflash_core.evaluation.compare import first_difference
from dflash_core.evaluation.decode import speculative_decode, target_decode, until_stop
from dflash_core.evaluation.rules import matching
from dflash_core.target.model import Target


def plain_greedy(target: Target, prompt: list[int], count: int) -> list[int]:
    """Reference without any cache: the whole text anew for each token."""
    ids = list(prompt)
    for _ in range(count):
        logits_1TV, _, _ = target.forward_cached(torch.tensor([ids]), None, ())
        ids.append(int(logits_1TV[0, -1].argmax()))
    return ids[len(prompt) :]


def oracle_text(target: Target, prompt: list[int], count: int) -> list[int]:
    """Prompt and the target's own continuation."""
    return [*prompt, *target_decode(target, prompt, count, ()).tokens]


def test_spec7_13_greedy_output_equality(target: Target, lab: SimpleNamespace) -> None:
    for sliding in (False, True):
        drafter = lab.random_drafter(sliding=sliding)
        for prompt in lab.prompts(3)[int(sliding) :]:
            plain = target_decode(target, prompt, 20, ())
            decoded = speculative_decode(target, drafter, prompt, 20, ())
            difference = first_difference(target, "x", prompt, plain.tokens, decoded.tokens, 1e-4)
            assert difference is None or difference.tie, difference
            assert 1 + sum(decoded.rounds) == len(decoded.tokens) == 20


def test_target_greedy_equals_decoding_without_a_cache(target: Target, lab: SimpleNamespace) -> None:
    prompt = lab.prompts(3)[2]
    assert list(target_decode(target, prompt, 20, ()).tokens) == plain_greedy(target, prompt, 20)


@pytest.mark.parametrize("block_size", [2, 4, 6])
def test_deep_blocks_commit_what_the_oracle_grants(target: Target, lab: SimpleNamespace, block_size: int) -> None:
    # Slot 1 + anchor % K misses first, so every depth from no draft to the whole block occurs.
    def wrong(anchor: int) -> int:
        return 1 + anchor % block_size

    for prompt in lab.prompts(2):
        text = oracle_text(target, prompt, 60)
        drafter = lab.OracleDrafter(target, text, wrong)
        decoded = speculative_decode(target, drafter, prompt, 40, (), block_size=block_size)
        assert list(decoded.tokens) == text[len(prompt) : len(prompt) + 40]
        anchor, expected = len(prompt), []
        while anchor < len(prompt) + 39:
            expected.append(min(wrong(anchor), len(prompt) + 39 - anchor))
            anchor += expected[-1]
        assert list(decoded.rounds) == expected


def test_perfect_drafts_commit_whole_blocks_and_the_limit_cuts_the_last(llama: Target, lab: SimpleNamespace) -> None:
    prompt = lab.prompts(2)[1]
    drafter = lab.OracleDrafter(llama, oracle_text(llama, prompt, 40), lambda anchor: None)
    assert speculative_decode(llama, drafter, prompt, 1 + 2 * lab.BLOCK + 1, ()).rounds == (lab.BLOCK, lab.BLOCK, 1)
    assert speculative_decode(llama, drafter, prompt, 1, ()).rounds == ()


def test_stop_token_inside_a_block_ends_the_answer_and_counts_what_was_committed(llama: Target, lab: SimpleNamespace) -> None:
    prompt = lab.prompts(2)[1]
    text = oracle_text(llama, prompt, 60)
    answer = text[len(prompt) :]
    drafter = lab.OracleDrafter(llama, text, lambda anchor: None)
    # First occurrences of tokens, two blocks of them: each slot of a block ends an answer.
    ends = [i for i in range(2 * lab.BLOCK + 1) if answer[i] not in answer[:i]]
    for end in ends:
        decoded = speculative_decode(llama, drafter, prompt, 60, {answer[end]})
        assert list(decoded.tokens) == answer[: end + 1] == list(target_decode(llama, prompt, 60, {answer[end]}).tokens)
        assert sum(decoded.rounds) == end
        assert len(decoded.rounds) == -(-end // lab.BLOCK)


def test_a_round_commits_the_longest_matching_prefix_and_one_more() -> None:
    assert matching([5, 6, 7], [5, 6, 7, 8]) == [5, 6, 7, 8]
    assert matching([5, 9, 7], [5, 6, 7, 8]) == [5, 6]  # a match after a miss doesn't count
    assert matching([9, 6, 7], [5, 6, 7, 8]) == [5]
    assert matching([5, 6, 7], [5]) == [5]  # at the limit, none of the drafts is verified
    assert until_stop([5, 6, 7, 8], {6}) == [5, 6] and until_stop([5, 6], {7}) == [5, 6]


def test_a_difference_is_a_tie_only_where_the_two_best_logits_are_near(llama: Target, lab: SimpleNamespace) -> None:
    prompt = lab.prompts(2)[1]
    tokens = target_decode(llama, prompt, 8, ()).tokens
    other = (*tokens[:5], (tokens[5] + 1) % lab.VOCAB, *tokens[6:])
    found = first_difference(llama, "x", prompt, tokens, other, tie_margin=1e-4)
    assert found is not None and found.index == 5 and not found.tie and found.margin > 1e-4
    assert first_difference(llama, "x", prompt, tokens, other, tie_margin=1e9).tie
    assert first_difference(llama, "x", prompt, tokens, tokens, 1e-4) is None


def test_time_split_adds_up(llama: Target, lab: SimpleNamespace) -> None:
    seconds = speculative_decode(llama, lab.random_drafter(), [1, 2, 3], 12, ()).seconds
    assert 0 < seconds.prefill + seconds.target + seconds.drafter <= seconds.total
    assert seconds.overhead == pytest.approx(seconds.total - seconds.prefill - seconds.target - seconds.drafter)
