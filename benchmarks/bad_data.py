"""Plants bad data one kind at a time, and clean variations, and runs the chain up to where training would start.

    python benchmarks/bad_data.py --seed 0 --json bad_data.json

Each trial is a data set of its own: conversation files, then stages prepare, bucket and check-data by their own code on
a tiny tokenizer. Bad data must stop there, by the expectation that the kind belongs to and with exactly the ids of the
rows that were planted; of the kinds that prepare itself refuses, its message must name the place, and check-data alone
must name the rows as well. Clean variations must not be stopped. Exit status 0 means that this holds for all.
"""

import argparse
import contextlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bad_data_cases import BAD, Case, Trial
from clean_data_cases import CLEAN
from results import leave

from dflash_core.config import Config, parse_config
from dflash_core.errors import DflashError, GateError
from dflash_core.stages import bucket, check_data, layout, prepare
from dflash_core.target.tiny import NUM_ROWS, make_tiny_tokenizer

NUM_CONVERSATIONS = 80
WORDS = [
    "river", "stone", "bread", "winter", "letter", "garden", "window", "silver", "mountain", "kitchen", "candle",
    "forest", "engine", "harbour", "village", "market", "summer", "bottle", "carpet", "pencil", "island", "thunder",
    "orange", "ladder", "mirror", "velvet", "copper", "meadow", "lantern", "bridge", "hammer", "basket", "ticket",
    "saddle", "pepper", "marble", "cotton", "anchor", "needle", "whistle", "blanket", "compass", "feather", "kettle",
    "magnet", "puzzle", "rocket", "shadow",
]  # fmt: skip
TOPICS = ("list", "story", "explain", "code")


def main(arguments: list[str] | None = None) -> int:
    """Run the campaign; see the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, help="cases of each sort; default: all")
    parser.add_argument("--seed", type=int, default=0, help="of the conversations")
    parser.add_argument("--json", type=Path, help="file to write; default: print it")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bad-data-") as directory:
        result = campaign(Path(directory), [*BAD[: options.n], *CLEAN[: options.n]], options.seed)
    return leave(result, options.json, result["holds"])


def campaign(directory: Path, cases: Sequence[Case], seed: int) -> dict[str, Any]:
    """All trials, in directories of their own."""
    target, began = directory / "target", time.perf_counter()
    make_target(target)
    trials = [run_case(directory / f"case-{number}", target, case, seed) for number, case in enumerate(cases)]
    bad, clean = ([t for t, case in zip(trials, cases, strict=True) if bool(case.expectation) is is_bad] for is_bad in (True, False))
    return {
        "seed": seed,
        "bad": len(bad),
        "bad_stopped_rightly": sum(t["right"] for t in bad),
        "clean": len(clean),
        "clean_not_stopped": sum(t["right"] for t in clean),
        "seconds": round(time.perf_counter() - began, 1),
        "trials": trials,
        "holds": all(t["right"] for t in trials),
    }


def make_target(directory: Path) -> None:
    """What the stages look at before training: tokenizer files, a configuration, a weight file."""
    make_tiny_tokenizer().save_pretrained(directory)
    (directory / "config.json").write_text(json.dumps({"model_type": "qwen3", "vocab_size": NUM_ROWS, "max_position_embeddings": 2048}))
    (directory / "model.safetensors").write_bytes(b"weights" * 100)


def run_case(directory: Path, target: Path, case: Case, seed: int) -> dict[str, Any]:
    """One trial; gives what stopped it, with which expectations and rows, and whether that is right."""
    directory.mkdir()
    with contextlib.chdir(directory):
        trial = Trial(conversations(seed))
        planted = case.plant(trial) if case.plant else []
        config = configuration(target, trial)
        trial.write()
        stopped, message = run_chain(config, case, trial)
        planted = planted or trial.planted
        if stopped == "prepare":
            with contextlib.suppress(GateError):
                check_data.run(config)
        verdict, bad_rows = outcome()
    found = sorted({row["row_id"] for row in bad_rows if row["expectation"] == case.expectation})
    failed = set(verdict.get("failed", ()))
    if case.expectation is None:
        right = stopped is None and not failed
    else:
        tolerated = {*case.also, *(("tokens-measured", "plan-measured") if stopped == "prepare" else ())}
        right = stopped in ("prepare", "check-data") and case.expectation in failed <= {case.expectation, *tolerated}
        right = right and found == sorted(set(planted)) and (stopped == "check-data" or "line" in message)
    return {
        "case": case.name, "right": right, "stopped_by": stopped, "failed": sorted(failed), "expected": case.expectation,
        "rows": len(found), "planted": len(set(planted)), "message": message[:300],
    }  # fmt: skip


def run_chain(config: Config, case: Case, trial: Trial) -> tuple[str | None, str]:
    """The stages before training, damaged in between as the case has it; gives the one that stopped, and what it said."""
    with case.patch() if case.patch else contextlib.nullcontext():
        for name, stage in (("prepare", prepare), ("bucket", bucket), ("check-data", check_data)):
            try:
                stage.run(config)
            except DflashError as error:
                return name, str(error)
            if name in case.after:
                case.after[name](trial)
    return None, ""


def outcome() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Verdict and bad rows of the working directory."""
    verdict = layout.DATA_GATE / "verdict.json"
    if not verdict.exists():
        return {}, []
    lines = (layout.DATA_GATE / "bad_rows.jsonl").read_text(encoding="utf-8").splitlines()
    return json.loads(verdict.read_text(encoding="utf-8")), [json.loads(line) for line in lines]


def configuration(target: Path, trial: Trial) -> Config:
    """Limits that fit 80 short conversations, and what the case changes."""
    tree: dict[str, Any] = {
        "target": {"path": str(target)},
        "data": {"conversations": trial.files, "heldout_fraction": 0.2, "max_length": 320},
        "bucket": {"multiple": 32, "tokens_per_step": 2048, "tokens_per_microbatch": 1024},
        "data_gate": {"min_rows": 60},
    }
    for section, values in trial.settings.items():
        tree[section] = tree.get(section, {}) | values
    return parse_config(tree, "bad_data.py")


def conversations(seed: int) -> list[dict[str, Any]]:
    """Random words, so that no two are alike; every eighth is held out."""
    draw = random.Random(seed)
    return [
        {
            "id": f"row-{number:03}",
            "split": "heldout" if number % 8 == 7 else "train",
            "category": TOPICS[number % len(TOPICS)],
            "messages": [
                {"role": "user", "content": f"What of the {' '.join(draw.choices(WORDS, k=5))}?"},
                {"role": "assistant", "content": f"The {' '.join(draw.choices(WORDS, k=draw.randint(24, 40)))}."},
            ],
        }
        for number in range(NUM_CONVERSATIONS)
    ]


if __name__ == "__main__":
    sys.exit(main())
