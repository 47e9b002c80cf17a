"""One prompt through our decoding loop or transformers' own, with the time that target and drafter take in it."""

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import BaseStreamer

from dflash_core.drafter.model import Drafter
from dflash_core.evaluation.decode import speculative_decode
from dflash_core.target.model import Target

# CPU time is all threads': on a machine that others use, and with one thread, it is the steadier measure.
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
clock = "wall"


@dataclass(frozen=True)
class Run:
    """One prompt decoded by one loop: new tokens, tokens committed by each round, and where the seconds went."""

    tokens: tuple[int, ...]
    rounds: tuple[int, ...]
    seconds: float
    target_s: float
    drafter_s: float


class RoundStreamer(BaseStreamer):
    """Notes how many tokens each round of generate() commits: it gets the prompt, the prefill's token, then each round's."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def put(self, value: torch.Tensor) -> None:
        self.counts.append(value.numel())

    def end(self) -> None:
        pass


class Stopwatch:
    """Wall time inside a network's calls."""

    def __init__(self) -> None:
        self.seconds = self._began = 0.0

    def begin(self, *_: object) -> None:
        self._began = now()

    def end(self, *_: object) -> None:
        self.seconds += now() - self._began


def now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return CLOCKS[clock]()


@contextmanager
def forward_time(module: torch.nn.Module) -> Iterator[Stopwatch]:
    """Time of the module's forwards."""
    watch = Stopwatch()
    handles = [module.register_forward_pre_hook(watch.begin), module.register_forward_hook(watch.end)]
    try:
        yield watch
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def propose_time(drafter: Drafter) -> Iterator[Stopwatch]:
    """Time of the drafter's proposals, which aren't its forward."""
    watch, propose = Stopwatch(), drafter.propose

    def timed(*arguments: object) -> torch.Tensor:
        watch.begin()
        hidden_1KD = propose(*arguments)
        watch.end()
        return hidden_1KD

    drafter.propose = timed
    try:
        yield watch
    finally:
        del drafter.propose


def decode_native(
    model: PreTrainedModel, assistant: PreTrainedModel, prompt_ids: Sequence[int], max_new_tokens: int, stop_ids: Collection[int]
) -> Run:
    """By transformers' loop."""
    streamer, ids_1T = RoundStreamer(), torch.tensor([list(prompt_ids)], device=model.device)
    with forward_time(model) as target, forward_time(assistant) as drafter:
        begin = now()
        out_1T = model.generate(
            ids_1T,
            attention_mask=torch.ones_like(ids_1T),
            generation_config=greedy_config(max_new_tokens, stop_ids),
            assistant_model=assistant,
            streamer=streamer,
        )
        seconds = now() - begin
    return Run(tuple(out_1T[0, len(prompt_ids) :].tolist()), tuple(streamer.counts[2:]), seconds, target.seconds, drafter.seconds)


def decode_ours(target: Target, drafter: Drafter, prompt_ids: Sequence[int], max_new_tokens: int, stop_ids: Collection[int]) -> Run:
    """By our loop."""
    with forward_time(target.model) as target_watch, propose_time(drafter) as drafter_watch:
        begin = now()
        decoded = speculative_decode(target, drafter, prompt_ids, max_new_tokens, stop_ids)
        seconds = now() - begin
    return Run(decoded.tokens, decoded.rounds, seconds, target_watch.seconds, drafter_watch.seconds)


def greedy_config(max_new_tokens: int, stop_ids: Collection[int]) -> GenerationConfig:
    """Greedy, by DFlash, with our stop tokens."""
    stops = sorted(stop_ids) or None
    return GenerationConfig(max_new_tokens=max_new_tokens, do_sample=False, eos_token_id=stops, pad_token_id=0, speculation_type="dflash")
