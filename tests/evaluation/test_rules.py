"""Lossless rules: what they commit follows the target's own distribution, and a wrong rule is found."""

from types import SimpleNamespace

import numpy as np
import pytest
import sampling_distribution
import torch

from dflash_core.config import EvaluationConfig, parse_config
from dflash_core.errors import ConfigError
from dflash_core.evaluation.decode import speculative_decode, target_decode
from dflash_core.evaluation.rules import GREEDY, Draft, Rejection, SampleAndMatch, draw, make_rule, probabilities
from dflash_core.target.model import Target

SAMPLED = EvaluationConfig(temperature=0.8, seed=3)
MATCH = EvaluationConfig(temperature=0.8, seed=3, rule="match")


def test_both_rules_give_the_target_s_distribution_and_wrong_ones_do_not() -> None:
    source = sampling_distribution.tables(samples=500, seed=0)
    for name, make, lossless in sampling_distribution.rules(0.7, seed=0):
        if name != "AcceptsTooMuch":  # shows from some 1500 answers on
            assert (sampling_distribution.answers_p_value(source, make, 0.7) > 0.001) == lossless, name


@pytest.mark.parametrize("block_size", [None, 3])
def test_rejection_without_warmth_is_greedy_at_every_depth(llama: Target, lab: SimpleNamespace, block_size: int | None) -> None:
    """Near temperature 0 all distributions are single tokens, so each slot's q must have met its own p in the loop."""
    cold = EvaluationConfig(temperature=1e-5)
    for number, prompt in enumerate(lab.prompts(2)):
        plain = target_decode(llama, prompt, 24, ()).tokens
        oracle = lab.OracleDrafter(llama, [*prompt, *plain], lambda anchor: 1 + anchor % 6)
        greedy = speculative_decode(llama, oracle, prompt, 24, (), block_size)
        decoded = speculative_decode(llama, oracle, prompt, 24, (), block_size, make_rule(cold, str(number), None))
        assert (decoded.tokens, decoded.rounds) == (plain, greedy.rounds)


def test_sample_and_match_gives_the_text_that_the_target_draws_alone(target: Target, lab: SimpleNamespace) -> None:
    oracle = None
    for number, prompt in enumerate(lab.prompts(3)):
        plain = target_decode(target, prompt, 24, (), make_rule(MATCH, str(number), None))
        text = [*prompt, *plain.tokens]
        oracle = lab.OracleDrafter(target, text, lambda anchor: 1 + anchor % 5)
        for drafter in (lab.random_drafter(), oracle):
            decoded = speculative_decode(target, drafter, prompt, 24, (), rule=make_rule(MATCH, str(number), None))
            assert decoded.tokens == plain.tokens
    assert max(decoded.rounds) > 2  # drafts were accepted, and their numbers used once


def test_an_answer_depends_on_seed_and_sample_alone(llama: Target, lab: SimpleNamespace) -> None:
    def answer(config: EvaluationConfig, sample_id: str) -> tuple[int, ...]:
        return speculative_decode(llama, lab.random_drafter(), [5, 9], 12, (), rule=make_rule(config, sample_id, None)).tokens

    first = answer(SAMPLED, "a")
    assert first == answer(SAMPLED, "a") != answer(SAMPLED, "b")
    assert first != answer(SAMPLED.model_copy(update={"seed": 4}), "a")
    assert make_rule(EvaluationConfig(), "a", None) is GREEDY


def test_sampled_answers_stop_and_end_at_the_limit(llama: Target, lab: SimpleNamespace) -> None:
    for config in (SAMPLED, MATCH):
        for limit in (1, 2, 9):
            decoded = speculative_decode(llama, lab.random_drafter(), [5], limit, (), rule=make_rule(config, "a", None))
            assert len(decoded.tokens) == limit == 1 + sum(decoded.rounds)
        stops = set(range(0, lab.VOCAB, 4))
        decoded = speculative_decode(llama, lab.random_drafter(), [5], 60, stops, rule=make_rule(config, "a", None))
        assert decoded.tokens[-1] in stops and not stops & set(decoded.tokens[:-1])


def test_a_drafter_equal_to_the_target_is_never_refused_and_an_opposite_one_always() -> None:
    logits_QV = torch.randn(5, 11, generator=torch.Generator().manual_seed(0))
    rule = Rejection(0.9, np.random.default_rng(0))
    for _ in range(50):
        draft = rule.draft(logits_QV[:-1])
        assert rule.verify(draft, logits_QV)[:-1] == list(draft.tokens)
    far_SV = torch.full((4, 11), -1e9)
    far_SV[:, 3] = 0.0
    apart_QV = logits_QV.clone()
    apart_QV[:, 3] = -1e9
    for _ in range(50):
        committed = rule.verify(rule.draft(far_SV), apart_QV)
        assert len(committed) == 1 and committed != [3]


def test_a_cap_on_the_target_s_logits_is_the_drafter_s_too() -> None:
    logits_SV = 40 * torch.randn(2, 9, generator=torch.Generator().manual_seed(0))
    capped = Rejection(1.0, np.random.default_rng(0), softcap=5.0).draft(logits_SV)
    torch.testing.assert_close(capped.q_SV, probabilities(5.0 * torch.tanh(logits_SV / 5.0), 1.0))
    assert isinstance(capped, Draft) and Rejection(1.0, np.random.default_rng(0)).draft(logits_SV).q_SV.max() > capped.q_SV.max()


def test_a_draw_takes_no_token_of_weight_0_and_is_exact_at_the_edges() -> None:
    weights_NV = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]], dtype=torch.float64)
    for uniform, token in ((0.0, 1), (0.4999, 1), (0.5, 3), (1 - 2**-53, 3)):
        assert draw(weights_NV, [uniform]) == [token]


@pytest.mark.parametrize("key, value", [("rule", "match"), ("seed", 5)])
def test_a_setting_of_sampling_is_refused_at_temperature_0(key: str, value: object) -> None:
    tree = {"target": {"path": "x"}, "data": {"conversations": ["x"]}, "evaluation": {key: value}}
    with pytest.raises(ConfigError, match=f"{key} {value} has no effect at temperature 0"):
        parse_config(tree, "test")


def test_numbers_of_refused_drafts_are_used_for_the_next_tokens() -> None:
    rule = SampleAndMatch(1.0, np.random.default_rng(1))
    numbers = np.random.default_rng(1).random(4).tolist()
    logits_QV = torch.zeros(3, 1000)
    own = [int(number * 1000) for number in numbers]
    assert rule.verify(Draft((own[0], 0)), logits_QV) == own[:2]
    assert rule.verify(Draft((0, 0)), logits_QV) == own[2:3]
    assert rule.choose(logits_QV[0]) == own[3]
