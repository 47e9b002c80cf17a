"""Answers every prompt twice, by the target alone and with the drafter, turn by turn."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from dflash_core.config import EvaluationConfig
from dflash_core.drafter.model import Drafter
from dflash_core.evaluation.batch_decode import batch_decode
from dflash_core.evaluation.compare import PromptResult
from dflash_core.evaluation.decode import speculative_decode, target_decode
from dflash_core.evaluation.progress import DecodingProgress
from dflash_core.evaluation.prompts import MeasuredPrompt
from dflash_core.evaluation.rules import Rule, make_rule
from dflash_core.evaluation.speed import time_generate
from dflash_core.evaluation.turns import Asking
from dflash_core.target.model import Target
from dflash_core.target.part_files import stop_token_ids

WARM_UP_TOKENS = 4


@dataclass(frozen=True)
class Answers:
    """All results in the order of the dialogues, and generate()'s (seconds, new tokens) of the first prompts by sample id."""

    results: list[PromptResult]
    generated: dict[str, tuple[float, int]]


class Answerer:
    """Decodes prompts of one target and drafter; `generated` as in Answers."""

    def __init__(self, target: Target, drafter: Drafter, config: EvaluationConfig) -> None:
        self._target, self._drafter, self._config = target, drafter, config
        self._stops = stop_token_ids(target.model, target.tokenizer)
        self._is_warm = False
        self.generated: dict[str, tuple[float, int]] = {}

    def answer(self, prompts: Sequence[MeasuredPrompt]) -> list[PromptResult]:
        """Both answers of each prompt; several are decoded at once."""
        if not self._is_warm:  # first calls pay for set-up: a short answer by each way, thrown away
            self._is_warm = True
            self._decode(prompts[:1], WARM_UP_TOKENS)
            self._generate(prompts[0], WARM_UP_TOKENS)
        if self._config.batch_size == 1 and len(self.generated) < self._config.num_generate_prompts:
            self.generated[prompts[0].sample_id] = self._generate(prompts[0], self._config.max_new_tokens)
        return self._decode(prompts, self._config.max_new_tokens)

    def _decode(self, prompts: Sequence[MeasuredPrompt], max_new_tokens: int) -> list[PromptResult]:
        decode = self._one if self._config.batch_size == 1 else self._together
        return decode(prompts, max_new_tokens)

    def _one(self, prompts: Sequence[MeasuredPrompt], limit: int) -> list[PromptResult]:
        """By the loop for a single text, which a server's latency is like."""
        (prompt,) = prompts
        plain = target_decode(self._target, prompt.prompt_ids, limit, self._stops, self._rule(prompt))
        rule, block_size = self._rule(prompt), self._config.block_size
        return [PromptResult(prompt, plain, speculative_decode(self._target, self._drafter, prompt.prompt_ids, limit, self._stops, block_size, rule))]

    def _together(self, prompts: Sequence[MeasuredPrompt], limit: int) -> list[PromptResult]:
        ids, rules = [prompt.prompt_ids for prompt in prompts], [[self._rule(prompt) for prompt in prompts] for _ in ("plain", "speculative")]
        plain = batch_decode(self._target, None, ids, limit, self._stops, rules[0])
        speculative = batch_decode(self._target, self._drafter, ids, limit, self._stops, rules[1], self._config.block_size)
        return [PromptResult(*each) for each in zip(prompts, plain, speculative, strict=True)]

    def _rule(self, prompt: MeasuredPrompt) -> Rule:
        """A new one each time: rules that draw have used up their numbers."""
        return make_rule(self._config, prompt.sample_id, self._target.logit_softcap)

    def _generate(self, prompt: MeasuredPrompt, max_new_tokens: int) -> tuple[float, int]:
        """generate()'s seconds and new tokens; nothing is asked of it where it isn't wanted."""
        if not self._config.num_generate_prompts:
            return 0.0, 0
        return time_generate(self._target, prompt.prompt_ids, max_new_tokens, self._stops, self._config)


def decode_prompts(target: Target, drafter: Drafter, askings: Iterable[Asking], num_prompts: int, config: EvaluationConfig) -> Answers:
    """Ask every dialogue to its end, `batch_size` of them at once. The target's own answer is the one that later turns hold."""
    answerer, left, results = Answerer(target, drafter, config), iter(askings), []
    with DecodingProgress(num_prompts) as progress:
        while together := list(islice(left, config.batch_size)):
            dialogues: list[list[PromptResult]] = [[] for _ in together]
            for number, result in _answered(answerer, together):
                dialogues[number].append(result)
                progress.update(result.speculative.rounds, result.plain.seconds.total, result.speculative.seconds.total)
            results += chain(*dialogues)
    return Answers(results, answerer.generated)


def _answered(answerer: Answerer, askings: Sequence[Asking]) -> Iterator[tuple[int, PromptResult]]:
    """Each dialogue's number and next result, turn by turn; dialogues with fewer turns end earlier."""
    asked = [(number, prompt) for number, asking in enumerate(askings) if (prompt := next(asking, None)) is not None]
    while asked:
        results = answerer.answer([prompt for _, prompt in asked])
        answered = [(number, result) for (number, _), result in zip(asked, results, strict=True)]
        yield from answered
        nexts = [(number, _next_prompt(askings[number], result.plain.tokens)) for number, result in answered]
        asked = [(number, prompt) for number, prompt in nexts if prompt is not None]


def _next_prompt(asking: Asking, answer_ids: tuple[int, ...]) -> MeasuredPrompt | None:
    try:
        return asking.send(answer_ids)
    except StopIteration:
        return None
