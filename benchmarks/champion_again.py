"""Has drafters judged against a champion that was measured otherwise, and holds what the gate compared with a measurement by hand.

    python benchmarks/champion_again.py --json again.json

A tiny target, a champion trained and promoted on it, and a second drafter that is evaluated as the champion was, with
another length limit, on a prompt set, and with another target of the same shape, for which it is trained as well. The gate must
measure the champion again in all of these but the first, before it compares; its rounds must be those of `dflash-core
evaluate` run by hand, prompt by prompt, and nothing that the stages left may change. With a target of another shape the
champion can't be measured: the gate must say no. Exit status 0 means that all of this holds.
"""

import argparse
import dataclasses
import gzip
import json
import logging
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from kill_campaign import PARAMS, PROJECT
from results import leave

from dflash_core.config import load_config
from dflash_core.errors import DflashError
from dflash_core.target.tiny import make_tiny_target
from tasks.champion import measure_in_workspace
from tasks.launch import stage_environment
from tasks.lineage import file_digests, read_json
from tasks.promotion import conclude, judge
from tasks.promotion_settings import PromotionSettings
from tasks.registry import CHAMPION, Registry
from tasks.workspace import Workspace

STEPS = 200
CONVERSATIONS = "conversations.jsonl.gz"
STAGES = ("prepare", "bucket", "check-data", "features", "train", "prove", "evaluate")
SETTINGS = PromotionSettings(model="tiny", bootstrap_samples=500)
EVALUATION = {"num_prompts": 8, "max_new_tokens": 24, "num_generate_prompts": 0, "num_walk_prompts": 2, "bootstrap_samples": 50}
QUESTIONS = "".join(json.dumps({"id": f"q{i}", "prompt": f"Count from {i} to {i + 5}."}) + "\n" for i in range(6))


def main(arguments: list[str] | None = None) -> int:
    """Train, promote, judge; see the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file to write; default: print")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="champion-again-") as directory:
        rows = campaign(Path(directory))
    return leave(rows, options.json, all(row["as_it_must_be"] for row in rows.values()))


def campaign(root: Path) -> dict[str, Any]:
    """A row for each way in which the second drafter was evaluated."""
    inputs = make_inputs(root / "inputs")
    make_tiny_target(root / "other", seed=1)
    (root / "questions.jsonl").write_text(QUESTIONS, encoding="utf-8")
    first, second = trained(root / "first", inputs, seed=0), trained(root / "second", inputs, seed=1)
    registry = Registry(f"sqlite:///{root / 'mlflow.db'}", SETTINGS.model)
    conclude(registry, judge(first, registry, SETTINGS, _never))
    return {
        "as the champion": judged(second, registry, again=False),
        "other length limit": judged(evaluated(second, root / "limit", max_new_tokens=16), registry),
        "other prompts": judged(evaluated(second, root / "prompts", prompt_sets=[str(root / "questions.jsonl")]), registry),
        "other target": judged(trained(root / "retargeted", inputs, seed=2, target=root / "other"), registry),
        "target of another shape": unmeasurable(evaluated(second, root / "shape"), registry),
    }


def make_inputs(directory: Path) -> Path:
    """A target, and its own answers: of others a drafter would learn nothing that it accepts."""
    directory.mkdir()
    make_tiny_target(directory / "target", seed=0)
    prompts = [{"id": f"c{i}", "prompt": f"Count to {i}."} for i in range(2, 130)]
    (directory / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts), encoding="utf-8")
    command(directory, "regenerate", "prompts.jsonl", "--target=target", f"--out={CONVERSATIONS}", "--max-new-tokens=40")
    with gzip.open(directory / CONVERSATIONS, "rt", encoding="utf-8") as file:
        rows = [line for line in file if "\\u0000" not in line]  # a random target says such things, and prepare refuses them
    with gzip.open(directory / CONVERSATIONS, "wt", encoding="utf-8") as file:
        file.writelines(rows)
    return directory


def trained(root: Path, inputs: Path, seed: int, target: Path | None = None) -> Workspace:
    """A workspace with every stage run by its command."""
    root.mkdir()
    params = PARAMS | {
        "target": {"path": str(target or inputs / "target"), "dtype": "float32"},
        "data": PARAMS["data"] | {"conversations": [str(inputs / CONVERSATIONS)]},
        "data_gate": {"min_rows": 1, "max_truncated": 1.0, "max_near_copies": 1.0, "max_garbled": 1.0},
        "training": PARAMS["training"] | {"max_steps": STEPS, "seed": seed},
        "checkpoint": PARAMS["checkpoint"] | {"every": STEPS, "proof_steps": 3},
        "evaluation": EVALUATION,
    }
    (root / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    for stage in STAGES:
        command(root, stage)
    return Workspace(root=root, config=load_config(root / "params.yaml"))


def evaluated(workspace: Workspace, root: Path, **settings: Any) -> Workspace:
    """A copy of a workspace, evaluated with other settings."""
    shutil.copytree(workspace.root, root)
    params = yaml.safe_load((root / "params.yaml").read_text(encoding="utf-8"))
    (root / "params.yaml").write_text(yaml.safe_dump(params | {"evaluation": EVALUATION | settings}), encoding="utf-8")
    command(root, "evaluate")
    return dataclasses.replace(workspace, root=root, config=load_config(root / "params.yaml"))


def judged(place: Workspace, registry: Registry, again: bool = True) -> dict[str, Any]:
    """Judge a workspace's drafter against the champion, and measure that by hand."""
    measured: list[Mapping[str, Any]] = []
    measure, before = measure_in_workspace(logging.getLogger("champion-again")), file_digests(place.root / "build")

    def noting(workspace: Workspace, drafter: Path) -> dict[str, Any]:
        measured.append(measure(workspace, drafter))
        return measured[-1]

    judgement = judge(place, registry, SETTINGS, noting)
    better = next(gate for gate in judgement.gates if gate.name == "better")
    command(place.root, "evaluate", "--any-target", f"--drafter={place.root.parent / 'first/build/drafter'}", "--out=by-hand")
    by_hand = read_json(place.root / "by-hand/evaluation.json")
    compared = better.evidence.get("difference", {})
    row = {
        "measured_again": len(measured),
        "gate": better.reason,
        "failed": [gate.name for gate in judgement.gates if not gate.passed],
        "tau_compared_with": compared.get("first"),
        "tau_by_hand": by_hand["acceptance"]["tau"],
        "same_rounds": all(_rounds(evaluation) == _rounds(by_hand) for evaluation in measured),
        "outputs_unchanged": file_digests(place.root / "build") == before,
        "champion": registry.alias(CHAMPION).number,
    }
    right = row["same_rounds"] and row["outputs_unchanged"] and row["tau_compared_with"] == row["tau_by_hand"]
    return row | {"as_it_must_be": right and row["measured_again"] == again and row["champion"] == "1"}


def unmeasurable(place: Workspace, registry: Registry) -> dict[str, Any]:
    """A target with one layer less, by its configuration: what the champion was made for is no more."""
    shutil.copytree(place.config.target.path, place.root / "shape")
    config = read_json(place.root / "shape/config.json")
    (place.root / "shape/config.json").write_text(json.dumps(config | {"num_hidden_layers": config["num_hidden_layers"] - 1}), encoding="utf-8")
    params = yaml.safe_load((place.root / "params.yaml").read_text(encoding="utf-8"))
    params["target"]["path"], params["evaluation"]["max_new_tokens"] = str(place.root / "shape"), 8
    (place.root / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    evaluation = read_json(place.root / "build/evaluation/evaluation.json")
    evaluation["subjects"] |= {"target_identity": "another", "max_new_tokens": 8}
    (place.root / "build/evaluation/evaluation.json").write_text(json.dumps(evaluation), encoding="utf-8")
    judgement = judge(place, registry, SETTINGS, measure_in_workspace(logging.getLogger("champion-again")))
    better = next(gate for gate in judgement.gates if gate.name == "better")
    try:
        conclude(registry, judgement)
        refused = False
    except DflashError:
        refused = True
    champion = registry.alias(CHAMPION).number
    right = refused and not better.passed and "can't be measured" in better.reason and champion == "1"
    return {"gate": better.reason, "champion": champion, "as_it_must_be": right}


def command(root: Path, *arguments: str) -> None:
    """A stage in a workspace, by its command."""
    environment = stage_environment(PROJECT) | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "dflash_core", *arguments], cwd=root, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{arguments} in {root} ended with {done.returncode}: {done.stdout[-500:]} {done.stderr[-1500:]}")


def _rounds(evaluation: Mapping[str, Any]) -> list[Any]:
    return [(prompt["sample_id"], prompt["rounds"]) for prompt in evaluation["prompts"]]


def _never(workspace: Workspace, drafter: Path) -> dict[str, Any]:
    raise AssertionError("there is no champion to measure")


if __name__ == "__main__":
    sys.exit(main())
