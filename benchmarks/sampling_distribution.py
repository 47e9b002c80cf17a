"""Whether decoding at a temperature is lossless: the distribution of what it commits, against the target's own.

    python benchmarks/sampling_distribution.py [--n 100000] [--loop-n 20000] [--batch-n 20000] [--json results.json]

Answers of three tokens over a vocabulary of 6, a chi-square test over all 216 of them against their exact probabilities, at alpha
0.001, for every rule at every temperature: `--n` answers where tables stand for the two networks (a minute a rule for 100,000), and
`--loop-n` by the whole decoding loop with a target and a drafter of this vocabulary (two minutes a rule for 20,000), and `--batch-n` by
the loop for several texts at once.

The same test must find three wrong rules: a refused draft replaced by a draw from p in place of the residual, q taken at another
temperature than the drafts were drawn at, and ratios that are 1.2 times too large.
Dims: S drafted slots, Q tokens of one forward, V vocab.
"""

import argparse
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch
from results import leave
from tiny_families import FAMILIES, random_drafter_for
from torch import Tensor
from transformers import AutoModelForCausalLM

from dflash_core.config import EvaluationConfig, TargetConfig
from dflash_core.evaluation.batch_decode import batch_decode
from dflash_core.evaluation.decode import speculative_decode
from dflash_core.evaluation.rules import Draft, Rejection, Rule, make_rule, probabilities
from dflash_core.target.model import Target

ALPHA = 0.001
VOCAB, LENGTH, SLOTS = 6, 3, 3
LEAST_EXPECTED = 5.0  # answers a cell; rarer cells are counted together, else chi-square isn't chi-square
LogitsByPrefix = dict[tuple[int, ...], Tensor]
Text = tuple[int, ...]
Answers = Callable[[Sequence[Rule]], Iterator[Text]]
AT_ONCE = 250  # texts of a batch


@dataclass(frozen=True)
class Source:
    """What gives answers under a rule, and the target's logits after all that may stand before a token of one."""

    own: LogitsByPrefix
    answers: Answers
    samples: int


class DrawsFromTheWhole(Rejection):
    """Wrong: a refused draft's place is drawn from p, so that what the drafter likes comes too often."""

    @staticmethod
    def _residual(p_V: Tensor, q_V: Tensor) -> Tensor:
        return p_V


class ForgetsTheTemperature(Rejection):
    """Wrong: the drafter's probabilities are taken at another temperature than its tokens were drawn at."""

    def draft(self, logits_SV: Tensor) -> Draft:
        return Draft(super().draft(logits_SV).tokens, probabilities(logits_SV, 1.6))


class AcceptsTooMuch(Rejection):
    """Wrong: passes with min(1, 1.2 p/q), as a clamp of q or a threshold does."""

    def _num_accepted(self, draft: Draft, p_QV: Tensor) -> int:
        return super()._num_accepted(draft, 1.2 * p_QV)


WRONG = (DrawsFromTheWhole, ForgetsTheTemperature, AcceptsTooMuch)


def campaign(sources: dict[str, Source], temperatures: Sequence[float], seed: int) -> dict[str, object]:
    """Every rule at every temperature by every source."""
    rows: list[dict[str, object]] = []
    for (name, source), temperature in product(sources.items(), temperatures):
        for rule, make, lossless in rules(temperature, seed):
            p_value = answers_p_value(source, make, temperature)
            row = {"by": name, "answers": source.samples, "temperature": temperature, "rule": rule, "lossless": lossless}
            rows.append(row | {"p_value": p_value, "found_different": p_value < ALPHA})
    return {"seed": seed, "alpha": ALPHA, "holds": all(row["found_different"] != row["lossless"] for row in rows), "rows": rows}


def rules(temperature: float, seed: int) -> Iterator[tuple[str, Callable[[int], Rule], bool]]:
    """Name, maker of the rule for answer i, and whether it is lossless."""
    for name in ("rejection", "match"):
        config = EvaluationConfig(temperature=temperature, seed=seed, rule=name)
        yield name, lambda i, config=config: make_rule(config, str(i), None), True
    for wrong in WRONG:
        yield wrong.__name__, lambda i, wrong=wrong: wrong(temperature, np.random.default_rng([seed, i])), False


def answers_p_value(source: Source, make: Callable[[int], Rule], temperature: float) -> float:
    """Chi-square over all possible answers."""
    counts = dict.fromkeys(product(range(VOCAB), repeat=LENGTH), 0)
    for first in range(0, source.samples, AT_ONCE):
        for answer in source.answers([make(i) for i in range(first, min(first + AT_ONCE, source.samples))]):
            counts[answer] += 1
    shares = {prefix: probabilities(logits_V, temperature).tolist() for prefix, logits_V in source.own.items()}
    due = {answer: source.samples * math.prod(shares[answer[:i]][token] for i, token in enumerate(answer)) for answer in counts}
    often = [(counts[answer], due[answer]) for answer in counts if due[answer] >= LEAST_EXPECTED]
    rare = [(counts[answer], due[answer]) for answer in counts if due[answer] < LEAST_EXPECTED]
    if rare:
        often.append((sum(found for found, _ in rare), sum(expected for _, expected in rare)))
    return chi_square_p_value(*map(np.asarray, zip(*often, strict=True)))


def chi_square_p_value(found: np.ndarray, expected: np.ndarray) -> float:
    """By Wilson and Hilferty's normal approximation, within 1e-4 of the exact value from 10 degrees of freedom on."""
    statistic, freedom = float(((found - expected) ** 2 / expected).sum()), len(found) - 1
    spread = 2 / (9 * freedom)
    z = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(z / math.sqrt(2))


def tables(samples: int, seed: int) -> Source:
    """Random logits of a target by all that came before, and of a drafter's slots by the anchor and what came before it."""
    generator = torch.Generator().manual_seed(seed)
    own = {prefix: 1.5 * torch.randn(VOCAB, generator=generator) for prefix in prefixes()}
    # The first slot is near the target, as a trained drafter's; the others know less of what came before them.
    drafts = {prefix: 1.5 * torch.randn(SLOTS, VOCAB, generator=generator) for prefix in own if prefix}
    for prefix, logits_SV in drafts.items():
        logits_SV[0] = own[prefix] + 0.7 * torch.randn(VOCAB, generator=generator)
    return Source(own, lambda rules: (answer_by_tables(own, drafts, rule) for rule in rules), samples)


def answer_by_tables(own: LogitsByPrefix, drafts: LogitsByPrefix, rule: Rule) -> Text:
    """The decoding loop over tables: as in decode.py, a round near the limit verifies only what can still be committed."""
    tokens = [rule.choose(own[()])]
    while len(tokens) < LENGTH:
        draft, count = rule.draft(drafts[tuple(tokens)]), LENGTH - len(tokens)
        texts = [(*tokens, *draft.tokens[:accepted]) for accepted in range(count)]
        tokens += rule.verify(draft, torch.stack([own[text] for text in texts]))
    return tuple(tokens)


@torch.inference_mode()
def networks(samples: int, seed: int, together: bool) -> Source:
    """A target and a drafter of random weights, after one prompt, by the real loop for one text or for several."""
    target = small_target(seed)
    drafter, prompt = random_drafter_for(target, SLOTS + 1, seed), [1, 4, 2]
    own = {prefix: target.forward_cached(torch.tensor([[*prompt, *prefix]]), None, ())[0][0, -1] for prefix in prefixes()}

    def alone(rules: Sequence[Rule]) -> Iterator[Text]:
        return (speculative_decode(target, drafter, prompt, LENGTH, (), rule=rule).tokens for rule in rules)

    def at_once(rules: Sequence[Rule]) -> Iterator[Text]:
        return (decoded.tokens for decoded in batch_decode(target, drafter, [prompt] * len(rules), LENGTH, (), rules))

    return Source(own, at_once if together else alone, samples)


def small_target(seed: int) -> Target:
    """A Llama of four layers with a vocabulary of 6."""
    config = FAMILIES["llama"]()
    config.vocab_size = VOCAB
    with tempfile.TemporaryDirectory(prefix="sampling-") as scratch, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        AutoModelForCausalLM.from_config(config).float().save_pretrained(scratch)
        return Target.load(TargetConfig(path=scratch, dtype="float32"))


def prefixes() -> list[tuple[int, ...]]:
    """All that may stand before a token of an answer."""
    return [prefix for length in range(LENGTH) for prefix in product(range(VOCAB), repeat=length)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=100_000, help="answers by tables")
    parser.add_argument("--loop-n", type=int, default=20_000, help="answers by the whole loop")
    parser.add_argument("--batch-n", type=int, default=20_000, help="answers by the loop for several texts")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.7, 1.0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the result here instead of printing it")
    options = parser.parse_args(arguments)
    sources = {"tables": tables(options.n, options.seed)} if options.n else {}
    sources |= {"networks": networks(options.loop_n, options.seed, together=False)} if options.loop_n else {}
    sources |= {"networks, at once": networks(options.batch_n, options.seed, together=True)} if options.batch_n else {}
    found = campaign(sources, options.temperatures, options.seed)
    return leave(found, options.json, bool(found["holds"]))


if __name__ == "__main__":
    sys.exit(main())
