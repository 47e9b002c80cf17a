"""Trains a tiny drafter, releases it in bfloat16, starts another run from the release: where that begins, and where it ends.

    python benchmarks/imported_start.py [--released-after 100] [--steps 100] [--json results.json]

Exit 0 only if the second run begins nearer to the first one's end than to its beginning, and its last ten losses are below
its first ten on average.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

import torch
from kill_campaign import make_workspace

from dflash_core.config import Config, load_config
from dflash_core.stages.checkpoint_export import export_checkpoint
from dflash_core.stages.train import train
from dflash_core.training.log_reader import read_log
from dflash_core.training.records import StepRecord

AVERAGED = 10  # steps; batches differ by more than a step improves


def losses(config: Config) -> list[float]:
    """Train here to the end; the loss of every step."""
    train(config, Path(), resume=False)
    return [record.loss for record in read_log(config.run_dir / "train_log.jsonl") if isinstance(record, StepRecord)]


def configured(run: str, num_steps: int, init_from: str | None) -> Config:
    """The workspace's configuration with another start."""
    tree = load_config(Path("params.yaml")).model_dump()
    tree["run"] = run
    tree["training"]["max_steps"] = num_steps
    tree["drafter"]["init_from"] = init_from
    return Config.model_validate(tree)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--released-after", type=int, default=100, help="steps of the first run")
    parser.add_argument("--steps", type=int, default=100, help="steps of the run that starts from it")
    parser.add_argument("--json", type=Path, help="write the result here too")
    options = parser.parse_args(arguments)
    out = options.json and options.json.absolute()
    with tempfile.TemporaryDirectory(prefix="imported-start-") as scratch:
        os.chdir(make_workspace(Path(scratch) / "workspace", options.released_after))
        first = configured("first", options.released_after, None)
        before = losses(first)
        export_checkpoint(first, "zlab", Path("released"), dtype=torch.bfloat16)
        after = losses(configured("second", options.steps, "released"))
        os.chdir("/")
    found = {
        "first_begins": statistics.mean(before[:AVERAGED]),
        "first_ends": statistics.mean(before[-AVERAGED:]),
        "second_first_step": after[0],
        "second_begins": statistics.mean(after[:AVERAGED]),
        "second_ends": statistics.mean(after[-AVERAGED:]),
    }
    if out:
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(
        f"first run, {options.released_after} steps: loss {found['first_begins']:.3f} to {found['first_ends']:.3f}\n"
        f"second run from its release, {options.steps} steps: loss {found['second_begins']:.3f} (step 1: {after[0]:.3f}) to {found['second_ends']:.3f}"
    )
    begins_there = abs(after[0] - found["first_ends"]) < abs(after[0] - found["first_begins"])
    return 0 if begins_there and found["second_ends"] < found["second_begins"] else 1


if __name__ == "__main__":
    sys.exit(main())
