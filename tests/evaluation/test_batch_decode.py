"""Several prompts at once: each is answered as if it were alone, with the same rounds."""

from pathlib import Path

import pytest
import torch
import transformers
from tiny_families import FAMILIES, random_drafter_for

from dflash_core.config import EvaluationConfig, TargetConfig
from dflash_core.errors import ConfigError
from dflash_core.evaluation import batch_decode as module
from dflash_core.evaluation.batch_decode import batch_decode
from dflash_core.evaluation.decode import speculative_decode, target_decode
from dflash_core.evaluation.rules import make_rule
from dflash_core.target.model import Target

# Few tokens, so that a random drafter is right often enough for rounds of every length.
VOCAB, BLOCK, LIMIT = 6, 4, 40
PROMPTS = [[1], [2, 3, 4], [4] * 37, [1, 4, 2, 0, 3], [3, 1], [0, 0, 1] * 8, [2], [4, 1], [1, 2, 3, 1, 2], [3]]
RULES = {
    "greedy": EvaluationConfig(),
    "match": EvaluationConfig(temperature=0.8, rule="match", seed=1),
    "rejection": EvaluationConfig(temperature=0.8, seed=1),
}


@pytest.fixture(scope="module", params=list(FAMILIES))
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Target:
    """A target of each family with a vocabulary of 6; two have windows of 16, shorter than the texts."""
    directory: Path = tmp_path_factory.mktemp("small")
    config = FAMILIES[request.param]()
    config.vocab_size = VOCAB
    torch.manual_seed(5)
    transformers.AutoModelForCausalLM.from_config(config).float().save_pretrained(directory)
    return Target.load(TargetConfig(path=str(directory), dtype="float32"))


def rules(name: str, softcap: float | None = None) -> list[object]:
    return [make_rule(RULES[name], str(i), softcap) for i in range(len(PROMPTS))]


@pytest.mark.parametrize("rule", RULES)
def test_a_batch_decodes_each_text_as_if_it_were_alone(small: Target, rule: str) -> None:
    drafter, stops = random_drafter_for(small, BLOCK, 3), {5}
    together = batch_decode(small, drafter, PROMPTS, LIMIT, stops, rules(rule))
    for prompt, found, own in zip(PROMPTS, together, rules(rule), strict=True):
        alone = speculative_decode(small, drafter, prompt, LIMIT, stops, None, own)
        assert (found.tokens, found.rounds, found.drafts) == (alone.tokens, alone.rounds, alone.drafts)
    if rule != "greedy":
        assert len({len(found.tokens) for found in together}) > 1, "texts end at stop tokens, each at its own time"
    assert max(max(found.rounds, default=0) for found in together) >= 3
    plain = batch_decode(small, None, PROMPTS, LIMIT, stops, rules(rule))
    for prompt, found, own in zip(PROMPTS, plain, rules(rule), strict=True):
        alone = target_decode(small, prompt, LIMIT, stops, own)
        assert (found.tokens, found.rounds, found.drafts) == (alone.tokens, alone.rounds, ())


def test_a_smaller_block_and_a_limit_of_one_token(small: Target) -> None:
    drafter = random_drafter_for(small, BLOCK, 3)
    for limit, block_size in ((LIMIT, 2), (1, None), (2, None)):
        together = batch_decode(small, drafter, PROMPTS, limit, (), rules("greedy"), block_size)
        alone = [speculative_decode(small, drafter, prompt, limit, (), block_size) for prompt in PROMPTS]
        assert [(f.tokens, f.rounds) for f in together] == [(a.tokens, a.rounds) for a in alone]


def test_texts_that_are_done_leave_the_batch(llama: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    real = module.RaggedTexts.step
    monkeypatch.setattr(module.RaggedTexts, "step", lambda self, ids, keep=True: sizes.append(len(ids)) or real(self, ids, keep))
    prompts = [[i + 1, 2 * i + 1] for i in range(32)]
    answers = [target_decode(llama, prompt, 24, ()).tokens for prompt in prompts]
    stops = {answer[2] for answer in answers[4:]}  # 28 texts or more end within three tokens
    found = batch_decode(llama, None, prompts, 24, stops, [make_rule(EvaluationConfig(), "", None)] * 32)
    assert [f.tokens for f in found] == [target_decode(llama, prompt, 24, stops).tokens for prompt in prompts]
    assert sizes[0] == 32 and sizes[-1] == 8
    drafter = random_drafter_for(llama, BLOCK, 3)
    found = batch_decode(llama, drafter, prompts, 24, stops, [make_rule(EvaluationConfig(), "", None)] * 32)
    assert [f.drafts for f in found] == [speculative_decode(llama, drafter, prompt, 24, stops).drafts for prompt in prompts]


def test_seconds_are_shared_among_the_texts(llama: Target) -> None:
    drafter = random_drafter_for(llama, BLOCK, 3)
    found = batch_decode(llama, drafter, [[1, 2], [3]], 12, (), rules("greedy")[:2])
    for decoded in found:
        parts = decoded.seconds
        assert min(parts.prefill, parts.target, parts.drafter) > 0
        assert 0 <= parts.overhead < parts.total


def test_other_kinds_of_layers_are_refused(llama: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = llama.new_cache()
    cache.layers[1] = type("LinearAttentionLayer", (), {})()
    monkeypatch.setattr(llama, "new_cache", lambda: cache)
    with pytest.raises(ConfigError, match=r"LinearAttentionLayer.*batch_size to 1"):
        batch_decode(llama, None, [[1]], 4, (), rules("greedy")[:1])
