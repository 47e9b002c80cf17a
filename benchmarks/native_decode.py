"""Holds our decoding loop to transformers' own DFlash loop on the exported drafter: text, rounds, and tokens/s.

    python benchmarks/native_decode.py --target DIR --drafter DIR [--n 12] [--repeats 5] [--json results.json]
    python benchmarks/native_decode.py --tiny

The drafter is exported in transformers' layout, loaded by AutoModel without remote code, and run by
`generate(assistant_model=..., speculation_type="dflash")`. Each prompt is decoded by both loops in turn, in an order that
changes with the repeat. --tiny makes a random target of 6 layers and an untrained drafter: the loops' own cost is most of
the time there. Exit 0 only if every prompt has the target's own greedy text in both loops, the same rounds in both, and
the ratio of tokens/s is at least --at-least.
Dims: T tokens of a prompt.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import timed_loops
import torch
from timed_loops import CLOCKS, Run, decode_native, decode_ours, now
from transformers import AutoModel, PreTrainedModel
from transformers.utils import logging as transformers_logging

from dflash_core.checkpoint.export import export_transformers, export_zlab
from dflash_core.checkpoint.exported import load_drafter
from dflash_core.config import DrafterConfig, TargetConfig
from dflash_core.drafter.initialise import Probe, initialise
from dflash_core.drafter.model import Drafter
from dflash_core.drafter.spec import from_target
from dflash_core.evaluation.decode import target_decode
from dflash_core.target.model import Target
from dflash_core.target.part_files import stop_token_ids
from dflash_core.target.tiny import make_tiny_target

PROMPTS = Path(__file__).parent.parent / "data" / "prompts.jsonl"


@dataclass(frozen=True)
class LoopFigures:
    """One loop over all prompts, the median repeat. Milliseconds are of one round; overhead is outside both networks."""

    tokens_per_s: float
    round_ms: float
    target_ms: float
    drafter_ms: float
    overhead_ms: float


@dataclass(frozen=True)
class Comparison:
    """What both loops did on the same prompts."""

    num_prompts: int
    num_tokens: int
    num_rounds: int
    tau: float
    equal_text: int
    equal_text_native: int
    equal_rounds: int
    ratio: float
    ratios: tuple[float, ...]
    ours: LoopFigures
    native: LoopFigures
    target_alone_tokens_per_s: float


def compare(
    target: Target,
    drafter: Drafter,
    assistant: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    stop_ids: Collection[int],
    repeats: int,
) -> Comparison:
    """Decode every prompt `repeats` times by each loop, in turn, and once by the target alone."""
    loops: dict[str, Callable[[Sequence[int], int], Run]] = {
        "ours": lambda ids, limit: decode_ours(target, drafter, ids, limit, stop_ids),
        "native": lambda ids, limit: decode_native(target.model, assistant, ids, limit, stop_ids),
    }
    for loop in loops.values():
        loop(prompts[0], 8)  # first calls pay for set-up
    begin = now()
    plain = [target_decode(target, ids, max_new_tokens, stop_ids).tokens for ids in prompts]
    alone_s = now() - begin
    runs: dict[str, list[list[Run]]] = {name: [] for name in loops}
    for repeat in range(repeats):
        order = list(loops) if repeat % 2 == 0 else list(loops)[::-1]
        for name in loops:
            runs[name].append([])
        for ids in prompts:
            for name in order:
                runs[name][-1].append(loops[name](ids, max_new_tokens))
    ours, native = runs["ours"][0], runs["native"][0]
    ratios = [_seconds(n) / _seconds(o) for o, n in zip(runs["ours"], runs["native"], strict=True)]
    num_rounds, num_tokens = sum(len(run.rounds) for run in ours), sum(len(run.tokens) for run in ours)
    return Comparison(
        num_prompts=len(prompts),
        num_tokens=num_tokens,
        num_rounds=num_rounds,
        tau=sum(sum(run.rounds) for run in ours) / num_rounds,
        equal_text=sum(run.tokens == tokens for run, tokens in zip(ours, plain, strict=True)),
        equal_text_native=sum(run.tokens == tokens for run, tokens in zip(native, plain, strict=True)),
        equal_rounds=sum(o.rounds == n.rounds for o, n in zip(ours, native, strict=True)),
        ratio=statistics.median(ratios),
        ratios=tuple(ratios),
        ours=_figures(runs["ours"]),
        native=_figures(runs["native"]),
        target_alone_tokens_per_s=sum(map(len, plain)) / alone_s,
    )


def _seconds(runs: Sequence[Run]) -> float:
    return sum(run.seconds for run in runs)


def _figures(repeats: Sequence[Sequence[Run]]) -> LoopFigures:
    """Of the repeat with the median time; the prefill's forward counts among the target's."""
    runs = sorted(repeats, key=_seconds)[len(repeats) // 2]
    num_rounds = sum(len(run.rounds) for run in runs)
    seconds, target_s, drafter_s = _seconds(runs), sum(run.target_s for run in runs), sum(run.drafter_s for run in runs)
    parts = (seconds, target_s, drafter_s, seconds - target_s - drafter_s)
    return LoopFigures(sum(len(run.tokens) for run in runs) / seconds, *(1000 * part / num_rounds for part in parts))


def chat_prompts(target: Target, path: Path, count: int) -> list[list[int]]:
    """`count` prompts, evenly from the whole file, as the target's chat template puts them."""
    rows = [json.loads(line)["prompt"] for line in path.read_text(encoding="utf-8").split("\n") if line]
    chosen = rows[:: max(1, len(rows) // count)][:count]
    messages = [[{"role": "user", "content": text}] for text in chosen]
    return [target.tokenizer.apply_chat_template(m, add_generation_prompt=True, return_dict=False) for m in messages]


def make_tiny(root: Path) -> tuple[Path, Path]:
    """A random target of 6 layers and an untrained drafter of block 8, as directories."""
    make_tiny_target(root / "target", seed=0)
    target = Target.load(TargetConfig(path=str(root / "target"), dtype="float32"))
    drafter = Drafter(from_target(target.config, DrafterConfig(num_layers=2, block_size=8, num_features=3), target.vocab_size - 1))
    row_T = torch.randint(0, 400, (64,), generator=torch.Generator().manual_seed(0))
    initialise(drafter, target, "target", 0, Probe((row_T,), row_T))
    export_zlab(drafter.state_dict(), drafter.spec, str(root / "target"), root / "drafter", {})
    return root / "target", root / "drafter"


def load_native(drafter: Drafter, target_dir: Path, directory: Path) -> PreTrainedModel:
    """The drafter as transformers loads its own layout from `directory`, in the drafter's dtype."""
    export_transformers(drafter.state_dict(), drafter.spec, str(target_dir), directory, {}, dtype=None)
    transformers_logging.disable_progress_bar()
    return AutoModel.from_pretrained(directory, dtype="auto").to(drafter.fc.weight.device).eval()


def print_comparison(found: Comparison) -> None:
    """As a person reads it."""
    print(f"{found.num_prompts} prompts, {found.num_tokens} tokens, {found.num_rounds} rounds, τ {found.tau:.3f}")
    print(f"target's own greedy text: ours {found.equal_text}, native {found.equal_text_native}; equal rounds {found.equal_rounds}")
    for name, loop in (("ours", found.ours), ("native", found.native)):
        print(
            f"{name:>6}: {loop.tokens_per_s:7.1f} tokens/s; a round {loop.round_ms:.2f} ms = target {loop.target_ms:.2f} "
            f"+ drafter {loop.drafter_ms:.2f} + overhead {loop.overhead_ms:.2f}"
        )
    print(f"ratio of tokens/s {found.ratio:.3f} (repeats {', '.join(f'{r:.3f}' for r in found.ratios)})")
    print(f"target alone: {found.target_alone_tokens_per_s:.1f} tokens/s")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, help="directory of the target")
    parser.add_argument("--drafter", type=Path, help="its drafter in z-lab's layout")
    parser.add_argument("--tiny", action="store_true", help="make both")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="JSONL with a field `prompt`")
    parser.add_argument("--n", type=int, default=12, help="prompts")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--max-new-tokens", type=int, default=88)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall", help="what seconds are")
    parser.add_argument("--at-least", type=float, default=0.0, help="smallest ratio of tokens/s for exit 0")
    parser.add_argument("--json", type=Path, help="write the result here too")
    options = parser.parse_args(arguments)
    timed_loops.clock = options.clock
    if options.tiny == (options.target is not None and options.drafter is not None):
        parser.error("give --target and --drafter, or --tiny")
    with tempfile.TemporaryDirectory(prefix="native-decode-") as scratch:
        target_dir, drafter_dir = make_tiny(Path(scratch)) if options.tiny else (options.target, options.drafter)
        target = Target.load(TargetConfig(path=str(target_dir), dtype=options.dtype))
        drafter = load_drafter(drafter_dir, getattr(torch, options.dtype), target.device)
        assistant = load_native(drafter, target_dir, Path(scratch) / "native")
        prompts = chat_prompts(target, options.prompts, options.n)
        stops = stop_token_ids(target.model, target.tokenizer)
        found = compare(target, drafter, assistant, prompts, options.max_new_tokens, stops, options.repeats)
    if options.json:
        options.json.write_text(json.dumps({"threads": torch.get_num_threads(), **asdict(found)}, indent=1) + "\n", encoding="utf-8")
    print_comparison(found)
    same = found.equal_text == found.equal_text_native == found.equal_rounds == found.num_prompts
    return 0 if same and found.ratio >= options.at_least else 1


if __name__ == "__main__":
    sys.exit(main())
