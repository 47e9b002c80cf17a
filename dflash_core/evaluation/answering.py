"""Answers every prompt twice, by the target alone and with the drafter, turn by turn."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from dflash_core.config import EvaluationConfig
from dflash_core.drafter.model import Drafter
from dflash_core.evaluation.compare import PromptResult
from dflash_core.evaluation.decode import speculative_decode, target_decode
from dflash_core.evaluation.progress import DecodingProgress
from dflash_core.evaluation.prompts import MeasuredPrompt
from dflash_core.evaluation.rules import make_rule
from dflash_core.evaluation.speed import time_generate
from dflash_core.evaluation.turns import Asking
from dflash_core.target.model import Target
from dflash_core.target.part_files import stop_token_ids

WARM_UP_TOKENS = 4


@dataclass(frozen=True)
class Answers:
    """All results in order, and generate()'s (seconds, new tokens) of the first prompts by sample id."""

    results: list[PromptResult] = field(default_factory=list)
    generated: dict[str, tuple[float, int]] = field(default_factory=dict)


class Answerer:
    """Decodes prompts of one target and drafter."""

    def __init__(self, target: Target, drafter: Drafter, config: EvaluationConfig) -> None:
        self._target, self._drafter, self._config = target, drafter, config
        self._stops = stop_token_ids(target.model, target.tokenizer)

    def answer(self, prompt: MeasuredPrompt, max_new_tokens: int) -> PromptResult:
        """Both answers. Each rule is a new one: rules that draw have used up their numbers."""
        plain, speculative = (make_rule(self._config, prompt.sample_id, self._target.logit_softcap) for _ in ("plain", "speculative"))
        ids, stops, block_size = prompt.prompt_ids, self._stops, self._config.block_size
        return PromptResult(
            prompt,
            target_decode(self._target, ids, max_new_tokens, stops, plain),
            speculative_decode(self._target, self._drafter, ids, max_new_tokens, stops, block_size, speculative),
        )

    def generate(self, prompt: MeasuredPrompt, max_new_tokens: int) -> tuple[float, int]:
        """generate()'s seconds and new tokens for the same prompt."""
        return time_generate(self._target, prompt.prompt_ids, max_new_tokens, self._stops, self._config)

    def warm_up(self, prompt: MeasuredPrompt) -> None:
        """First calls pay for set-up: a short answer by each way, thrown away."""
        self.answer(prompt, WARM_UP_TOKENS)
        if self._config.num_generate_prompts:
            self.generate(prompt, WARM_UP_TOKENS)


def decode_prompts(target: Target, drafter: Drafter, askings: Iterable[Asking], num_prompts: int, config: EvaluationConfig) -> Answers:
    """Ask every dialogue to its end. The target's own answer is the one that later turns hold."""
    answers, answerer = Answers(), Answerer(target, drafter, config)
    with DecodingProgress(num_prompts) as progress:
        for asking in askings:
            prompt = next(asking, None)
            while prompt is not None:
                result = _answered(answers, answerer, prompt, config)
                progress.update(result.speculative.rounds, result.plain.seconds.total, result.speculative.seconds.total)
                prompt = _next_prompt(asking, result.plain.tokens)
    return answers


def _answered(answers: Answers, answerer: Answerer, prompt: MeasuredPrompt, config: EvaluationConfig) -> PromptResult:
    """The result, which `answers` now holds as well."""
    if not answers.results:
        answerer.warm_up(prompt)
    if len(answers.results) < config.num_generate_prompts:
        answers.generated[prompt.sample_id] = answerer.generate(prompt, config.max_new_tokens)
    answers.results.append(answerer.answer(prompt, config.max_new_tokens))
    return answers.results[-1]


def _next_prompt(asking: Asking, answer_ids: tuple[int, ...]) -> MeasuredPrompt | None:
    try:
        return asking.send(answer_ids)
    except StopIteration:
        return None
