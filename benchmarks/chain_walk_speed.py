"""How much faster the chain walk finds τ than real speculative decoding of the same prompts, and that it finds the same.

    python benchmarks/chain_walk_speed.py --target DIR [--drafter DIR] [--prepared DIR | --prompts FILE] [--n 16] [--batch-size 16]

Target tokens and features are cached beforehand, as they are between two checkpoints of a run; what that costs once
is printed too, and `all_anchors_s` is what the measure costs at each checkpoint. Prompts are held-out ones where --prepared is
given, those of a JSONL file with --prompts, else random token ids (seeded). With --batch-size, prompts are decoded at once, which is several times faster,
so that the walk's ratio is smaller. Exit 1 where a prompt's rounds differ beyond a near
tie of two logits, or at one in more than 1 % of the prompts. Without --drafter a
random one is used, whose τ is near 1: the best case for the walk's ratio in rounds, the worst in drafted tokens.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from native_decode import chat_prompts

from dflash_core.checkpoint.exported import load_drafter
from dflash_core.config import DrafterConfig, TargetConfig
from dflash_core.data.dataset import Dataset
from dflash_core.drafter.initialise import Probe, initialise
from dflash_core.drafter.model import Drafter
from dflash_core.drafter.spec import from_target
from dflash_core.evaluation.acceptance import pooled_tau
from dflash_core.evaluation.batch_decode import batch_decode
from dflash_core.evaluation.chain_walk import chain_walk
from dflash_core.evaluation.compare import PromptResult, compare_outputs, compare_walk
from dflash_core.evaluation.decode import Decoded, speculative_decode, target_decode
from dflash_core.evaluation.lockstep import lockstep_walk
from dflash_core.evaluation.prompts import MeasuredPrompt, choose_prompts
from dflash_core.evaluation.rules import GREEDY
from dflash_core.evaluation.walk_set import walk_rows
from dflash_core.target.model import Target
from dflash_core.target.part_files import stop_token_ids

REPEATS = 3
TIE_MARGIN = 1e-4
MOST_TIES = 0.01


def timed(function: Callable[[], object]) -> tuple[object, float, float]:
    """Result, wall seconds, and CPU seconds of all threads, which a busy machine doesn't stretch."""
    begin, cpu_begin = time.perf_counter(), time.process_time()
    result = function()
    return result, time.perf_counter() - begin, time.process_time() - cpu_begin


def random_prompts(count: int, vocab_size: int, seed: int) -> list[tuple[int, ...]]:
    """Prompts of 8 to 64 random ids."""
    generator = np.random.default_rng(seed)
    return [tuple(generator.integers(vocab_size, size=generator.integers(8, 65)).tolist()) for _ in range(count)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--drafter", type=Path, help="an export in z-lab's layout; default: a fresh one")
    parser.add_argument("--prepared", type=Path, help="output of stage prepare; default: random prompts")
    parser.add_argument("--prompts", type=Path, help="JSONL with a field `prompt`, in the target's chat template")
    parser.add_argument("--n", type=int, default=16, help="prompts")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--batch-size", type=int, default=1, help="prompts decoded at once")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the results here too")
    options = parser.parse_args()
    target = Target.load(TargetConfig(path=str(options.target), dtype="float32"))
    drafter = load_drafter(options.drafter, device=target.device) if options.drafter else fresh_drafter(target, options.seed)
    if options.prepared:
        chosen = choose_prompts(Dataset.open(options.prepared, "heldout"), options.n)
        prompts = [prompt.prompt_ids for prompt in chosen]
    elif options.prompts:
        prompts = [tuple(ids) for ids in chat_prompts(target, options.prompts, options.n)]
    else:
        prompts = random_prompts(options.n, target.vocab_size, options.seed)
    results = measure(target, drafter, prompts, options.max_new_tokens, options.batch_size) | {"seed": options.seed}
    print(json.dumps(results, indent=1))
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    ties_are_few = results["near_ties"] <= MOST_TIES * results["prompts"]
    return 0 if results["faults"] == 0 and ties_are_few and results["speedup"] >= 6 else 1


def fresh_drafter(target: Target, seed: int) -> Drafter:
    """Two layers, block 8, as the demo's before its first step."""
    spec = from_target(target.config, DrafterConfig(num_layers=2, block_size=8, num_features=4), target.vocab_size - 1)
    drafter = Drafter(spec)
    row_T = torch.randint(0, target.vocab_size, (96,), generator=torch.Generator().manual_seed(seed))
    initialise(drafter, target, "target", seed, Probe((row_T,), row_T))
    return drafter.to(target.device).eval()


def decode(target: Target, drafter: Drafter | None, prompts: list[tuple[int, ...]], limit: int, stops: set[int], at_once: int) -> list[Decoded]:
    """All prompts, one by one or some at once; the longest together, since a batch is padded."""
    if at_once == 1:
        alone = target_decode if drafter is None else partial(speculative_decode, drafter=drafter)
        return [alone(target, prompt_ids=prompt, max_new_tokens=limit, stop_ids=stops) for prompt in prompts]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    found: dict[int, Decoded] = {}
    for first in range(0, len(order), at_once):
        part = order[first : first + at_once]
        answers = batch_decode(target, drafter, [prompts[i] for i in part], limit, stops, [GREEDY] * len(part))
        found |= zip(part, answers, strict=True)
    return [found[i] for i in range(len(prompts))]


def measure(target: Target, drafter: Drafter, prompts: list[tuple[int, ...]], max_new_tokens: int, at_once: int) -> dict[str, object]:
    """Decode for real, then walk: the fastest of some repeats of both walks, after one to warm up."""
    stops = stop_token_ids(target.model, target.tokenizer)
    decode(target, drafter, prompts[:at_once], 8, (), at_once)
    plain, plain_s, _ = timed(lambda: decode(target, None, prompts, max_new_tokens, stops, at_once))
    decoded, decoded_s, decoded_cpu_s = timed(lambda: decode(target, drafter, prompts, max_new_tokens, stops, at_once))
    texts = [(prompt, answer.tokens) for prompt, answer in zip(prompts, plain, strict=True)]
    rows, features_s, _ = timed(lambda: walk_rows(target, texts, drafter.spec.target_layer_ids))
    figures: dict[str, object] = {}
    for name, walk in (("all_anchors", chain_walk), ("lockstep", lockstep_walk)):
        walk(target, drafter, rows)
        runs = [timed(lambda walk=walk: walk(target, drafter, rows)) for _ in range(REPEATS)]
        figures[f"{name}_s"] = min(seconds for _, seconds, _ in runs)
        figures[f"{name}_cpu_s"] = min(seconds for *_, seconds in runs)
        figures[f"{name}_equal"] = sum(w.rounds == d.rounds for w, d in zip(runs[0][0], decoded, strict=True))
    named = [MeasuredPrompt(str(i), "", tuple(prompt)) for i, prompt in enumerate(prompts)]
    answers = [PromptResult(*answered) for answered in zip(named, plain, decoded, strict=True)]
    agreement = compare_walk(target, drafter, answers, compare_outputs(target, answers, TIE_MARGIN), TIE_MARGIN)
    near_ties = sum(difference.tie for difference in agreement.differences)
    return {
        "prompts": len(prompts),
        "decoded_at_once": at_once,
        "tokens": sum(len(answer.tokens) for answer in plain),
        "threads": torch.get_num_threads(),
        "tau": pooled_tau([d.rounds for d in decoded]),
        "tau_by_walk": agreement.tau,
        "prompts_equal": figures["all_anchors_equal"],
        "near_ties": near_ties,
        "faults": len(agreement.differences) - near_ties,
        "plain_s": plain_s,
        "decoded_s": decoded_s,
        "decoded_cpu_s": decoded_cpu_s,
        "features_once_s": features_s,
        "speedup": decoded_s / figures["all_anchors_s"],
        "speedup_cpu": decoded_cpu_s / figures["all_anchors_cpu_s"],
        "speedup_with_features": decoded_s / (figures["all_anchors_s"] + features_s),
    } | figures


if __name__ == "__main__":
    sys.exit(main())
