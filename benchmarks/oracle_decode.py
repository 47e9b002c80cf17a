"""Greedy speculative decoding against the target alone: the same text whatever the drafter, and the acceptance that it was given.

    python benchmarks/oracle_decode.py [--n 200] [--target DIR] [--prompts FILE] [--max-new-tokens 25] [--json results.json]

Targets: tiny ones of four families (Llama, Qwen3, Mistral and Gemma 3, the last two with sliding windows), and --target, for
which the prompts are those of --prompts in its chat template, and single tokens. Drafters: two of random weights; oracles that
accept just d drafts in every round, whose τ is d + 1; and one that accepts each draft with probability a, whose rounds
are foreseen one by one, and whose τ is (1 - a^K) / (1 - a) within four standard errors. There, the round that the limit cuts counts with
all that it was granted: cut, it would take a tenth of a token from the τ of short answers. Every prompt is also decoded
with stop tokens, with a smaller block, and to odd limits. Exit 1 where one text differs beyond a tie, or one round.
"""

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from native_decode import PROMPTS, chat_prompts
from oracle_drafter import FirstMiss, OracleDrafter, planned_rounds
from results import leave
from tiny_families import FAMILIES, random_drafter_for, save_target

from dflash_core.config import TargetConfig
from dflash_core.evaluation.compare import first_difference
from dflash_core.evaluation.decode import speculative_decode, target_decode
from dflash_core.target.model import Target

TIE_MARGIN = 1e-4
BLOCK = 4
ACCEPTANCE = 0.7
SINGLE_TOKENS = 4  # one prompt in so many is a single token


@dataclass
class Tally:
    """One drafter on all prompts of a target. `expected_tau` is what the oracle was made for, `num_granted` what its rounds
    would have committed without a limit."""

    target: str
    drafter: str
    expected_tau: float | None
    num_prompts: int = 0
    num_equal: int = 0
    num_ties: int = 0
    num_rounds: int = 0
    num_tokens: int = 0
    rounds_as_planned: int = 0
    num_granted: int = 0
    sum_of_squares: int = 0

    @property
    def tau(self) -> float:
        return self.num_tokens / self.num_rounds

    @property
    def holds(self) -> bool:
        """Texts equal but for ties; the oracle's rounds all as planned, and τ the analytic one within 4 standard errors."""
        same = self.num_equal + self.num_ties == self.num_prompts
        if self.expected_tau is None:
            return same
        granted = self.num_granted / self.num_rounds
        spread = math.sqrt(max(0.0, self.sum_of_squares / self.num_rounds - granted**2) / self.num_rounds)
        near = abs(granted - self.expected_tau) <= 4 * spread + 1e-9
        return same and near and self.rounds_as_planned + self.num_ties >= self.num_prompts

    def add(self, rounds: Sequence[int], planned: Sequence[int] | None, difference: object) -> None:
        self.num_prompts += 1
        self.num_equal += difference is None
        self.num_ties += difference is not None and difference.tie
        self.num_rounds, self.num_tokens = self.num_rounds + len(rounds), self.num_tokens + sum(rounds)
        if planned is not None:
            cut = sum(planned) - sum(rounds)
            self.rounds_as_planned += cut < planned[-1] and list(rounds) == [*planned[:-1], planned[-1] - cut]
            self.num_granted += sum(planned)
            self.sum_of_squares += sum(count**2 for count in planned)


def campaign(name: str, target: Target, prompts: Sequence[Sequence[int]], limit: int, seed: int) -> list[Tally]:
    """Every drafter on every prompt; `limit` - 1 shall be a multiple of 1, 2, ... K, so that no oracle's last round is cut."""
    tallies: dict[str, Tally] = {}
    drafters = {f"random {i}": random_drafter_for(target, BLOCK, seed + i) for i in range(2)}
    for number, prompt in enumerate(prompts):
        plain = target_decode(target, prompt, limit, ())
        for label, drafter in drafters.items():
            decoded = speculative_decode(target, drafter, prompt, limit, ())
            _note(tallies, name, label, None, target, prompt, plain.tokens, decoded, None)
        oracle = OracleDrafter(target, [*prompt, *plain.tokens], lambda anchor: None, BLOCK)
        for label, expected, wrong in oracles(number, seed):
            decoded = speculative_decode(target, oracle.missing(wrong), prompt, limit, ())
            planned = planned_rounds(wrong, len(prompt), limit - 1, BLOCK)
            _note(tallies, name, label, expected, target, prompt, plain.tokens, decoded, planned)
        _odd_ends(tallies, name, target, oracle, prompt, plain.tokens, number, seed)
    return list(tallies.values())


def oracles(number: int, seed: int) -> Iterator[tuple[str, float, FirstMiss]]:
    """Label, τ and misses of each oracle; the last draws its misses by prompt and anchor."""
    for depth in range(BLOCK):
        yield f"oracle of {depth} drafts", depth + 1.0, lambda anchor, depth=depth: depth + 1
    expected = (1 - ACCEPTANCE**BLOCK) / (1 - ACCEPTANCE)
    yield f"oracle of acceptance {ACCEPTANCE}", expected, lambda anchor: int(np.random.default_rng([seed, number, anchor]).geometric(1 - ACCEPTANCE))


def _odd_ends(
    tallies: dict[str, Tally], name: str, target: Target, oracle: OracleDrafter, prompt: Sequence[int], plain: Sequence[int], number: int, seed: int
) -> None:
    """A stop token in a block, a limit in a block, and a block smaller than trained."""
    generator = np.random.default_rng([seed, number, 1])
    end = int(generator.integers(1, len(plain)))
    stops, limit, block = {plain[end]}, int(generator.integers(1, len(plain))), int(generator.integers(2, BLOCK))
    stopped = target_decode(target, prompt, len(plain), stops).tokens
    oracle.missing(lambda anchor: 1 + anchor % BLOCK)
    for label, short, decoded in (
        ("stop token in a block", stopped, speculative_decode(target, oracle, prompt, len(plain), stops)),
        ("limit in a block", plain[:limit], speculative_decode(target, oracle, prompt, limit, ())),
        ("smaller block", plain, speculative_decode(target, oracle, prompt, len(plain), (), block)),
    ):
        _note(tallies, name, label, None, target, prompt, short, decoded, None)


def _note(
    tallies: dict[str, Tally],
    name: str,
    label: str,
    expected_tau: float | None,
    target: Target,
    prompt: Sequence[int],
    plain: Sequence[int],
    decoded: object,
    planned: Sequence[int] | None,
) -> None:
    difference = first_difference(target, label, prompt, plain, decoded.tokens, TIE_MARGIN)
    tallies.setdefault(label, Tally(name, label, expected_tau)).add(decoded.rounds, planned, difference)


def random_prompts(count: int, vocab_size: int, seed: int) -> list[list[int]]:
    """Random ids, 2 to 40 of them; every fourth prompt is one token."""
    generator = np.random.default_rng(seed)
    lengths = [1 if i % SINGLE_TOKENS == 0 else int(generator.integers(2, 41)) for i in range(count)]
    return [generator.integers(vocab_size - 2, size=length).tolist() for length in lengths]


def load(directory: Path) -> Target:
    return Target.load(TargetConfig(path=str(directory), dtype="float32"))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=200, help="prompts of each target")
    parser.add_argument("--target", type=Path, help="a target more, such as SmolLM2")
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), choices=list(FAMILIES), help="tiny targets; none: only --target")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="of --target: JSONL with a field `prompt`")
    parser.add_argument("--max-new-tokens", type=int, default=25, help="one more than a multiple of 12: no oracle's last round is cut")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the result here instead of printing it")
    options = parser.parse_args(arguments)
    tallies: list[Tally] = []
    with tempfile.TemporaryDirectory(prefix="oracle-") as scratch:
        for family in options.families:
            target = load(save_target(Path(scratch) / family, family))
            tallies += campaign(family, target, random_prompts(options.n, target.vocab_size, options.seed), options.max_new_tokens, options.seed)
    if options.target:
        target = load(options.target)
        singles = random_prompts(-(-options.n // SINGLE_TOKENS), 1000, options.seed)[::SINGLE_TOKENS]
        prompts = [*singles, *chat_prompts(target, options.prompts, options.n - len(singles))]
        tallies += campaign(options.target.name, target, prompts, options.max_new_tokens, options.seed)
    rows = [asdict(tally) | {"tau": tally.tau if tally.num_rounds else None, "holds": tally.holds} for tally in tallies]
    found = {"n": options.n, "seed": options.seed, "threads": torch.get_num_threads(), "targets": rows}
    return leave(found, options.json, all(tally.holds for tally in tallies))


if __name__ == "__main__":
    sys.exit(main())
