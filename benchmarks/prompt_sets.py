"""A drafter on every prompt set of a directory, the first rows of each: the table of the README.

    python benchmarks/prompt_sets.py DIR --target DIR --drafter DIR [--n 8] [--max-new-tokens 64] [--out results/]

Every file with prompts below DIR is a set; what is none, as a file of reference answers, is named with the reason. One
evaluation over all: τ with its interval, speed against the target alone and against generate(), whole blocks, and
whether each answer is the target's own. Exit 1 where one isn't.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from dflash_core.config import Config, parse_config
from dflash_core.errors import DataError, DflashError, GateError
from dflash_core.evaluation.evaluate import evaluate
from dflash_core.evaluation.prompt_sets import read_prompt_set
from dflash_core.evaluation.record_file import read_record
from dflash_core.evaluation.records import EvaluationRecord
from dflash_core.evaluation.speed import ratio_interval
from dflash_core.evaluation.table import prediction

ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".parquet")
SAMPLES = 2000


def find_sets(directory: Path) -> tuple[list[Path], dict[str, str]]:
    """Files that are prompt sets, and why the others aren't."""
    sets, others = [], {}
    for path in sorted(p for p in directory.rglob("*") if p.name.endswith(ENDINGS)):
        try:
            read_prompt_set(path, 1)
            sets.append(path)
        except DataError as error:
            others[str(path.relative_to(directory))] = str(error)
    return sets, others


def configuration(target: Path, sets: list[Path], options: argparse.Namespace) -> Config:
    """Of the evaluation alone; the other sections are the defaults."""
    settings = {
        "num_prompts": options.n,
        "max_new_tokens": options.max_new_tokens,
        "prompt_sets": [str(path) for path in sets],
        "template": options.template,
        "dtype": options.dtype,
        "num_generate_prompts": options.num_generate_prompts,
        "bootstrap_samples": SAMPLES,
    }
    sampling = {"temperature": options.temperature, "rule": options.rule} if options.temperature else {}
    tree = {"target": {"path": str(target.resolve())}, "data": {"conversations": ["none"]}, "evaluation": settings | sampling}
    return parse_config(tree, "the benchmark's settings")


def table(record: EvaluationRecord) -> str:
    """In Markdown, a set a line."""
    lines = ["| prompts | turns | τ, 95 % | speed-up, 95 % | whole blocks | drafts wasted |", "| --- | --- | --- | --- | --- | --- |"]
    for name, found in record.by_set.items():
        chosen = [p for p in record.prompts if p.set_name == name]
        over = [p.plain_s for p in chosen]
        under = [p.speculative_s for p in chosen]
        low, high = ratio_interval(over, under, SAMPLES)
        speed = f"{sum(over) / sum(under):.2f}" + (f" ({low:.2f} to {high:.2f})" if low is not None else "")
        speed = "-" if record.subjects.temperature else speed  # sampled answers of both ways differ in length
        tau = "-" if found.tau is None else f"{found.tau:.2f}" + (f" ({found.tau_low:.2f} to {found.tau_high:.2f})" if found.tau_low else "")
        whole = "-" if found.full_block_share is None else f"{found.full_block_share:.1%}"
        wasted = f"{found.num_wasted / found.num_drafted:.0%}" if found.num_drafted else "-"
        lines.append(f"| {name} | {found.num_prompts} | {tau} | {speed} | {whole} | {wasted} |")
    return "\n".join(lines)


def notes(record: EvaluationRecord) -> list[str]:
    """What stands below the table."""
    speed, generate = record.speed, record.generate
    shares = {"target": speed.target_s, "drafter": speed.drafter_s, "prefill": speed.prefill_s, "rest": speed.overhead_s}
    lines = [f"{speed.speedup:.2f} × the target alone over all; " + ", ".join(f"{k} {v / speed.speculative_s:.0%}" for k, v in shares.items())]
    if generate is not None:
        lines.append(f"{generate.speedup:.2f} × generate() on {generate.num_prompts} prompts; our loop without a drafter {generate.plain_speedup:.2f} × it")
    if record.outputs is not None:
        lines.append(f"{record.outputs.num_equal} of {record.outputs.num_prompts} outputs equal, {record.outputs.num_ties} part at a tie")
    return [*lines, *prediction(speed), *(f"{d.name}: {d.value:.3f} ({d.used_by})" for d in record.definitions if d.value is not None)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="holds the prompt sets, at any depth")
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--drafter", type=Path, required=True, help="in z-lab's layout")
    parser.add_argument("--n", type=int, default=8, help="rows of each set")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--template", choices=("chat", "raw"), default="chat")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--rule", choices=("rejection", "match"), default="rejection")
    parser.add_argument("--num-generate-prompts", type=int, default=8)
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="sets whose path holds one of these")
    parser.add_argument("--out", type=Path, help="directory for evaluation.json")
    options = parser.parse_args(arguments)
    try:
        return measure(options)
    except DflashError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code


def measure(options: argparse.Namespace) -> int:
    """Evaluate, and print the table."""
    sets, others = find_sets(options.directory)
    chosen = [path for path in sets if not options.only or any(text in str(path) for text in options.only)]
    config, holds = configuration(options.target, chosen, options), True
    with tempfile.TemporaryDirectory(prefix="prompt-sets-") as scratch:
        out = (options.out or Path(scratch)) / "evaluation.json"
        try:
            record = evaluate(config, Path(), Path(), options.drafter, out)
        except GateError as error:
            print(error, file=sys.stderr)
            record, holds = read_record(out), False
    print(table(record), *notes(record), sep="\n")
    print(json.dumps({"no prompt sets": others, "left out": record.subjects.left_out}, indent=1))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
