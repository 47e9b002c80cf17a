"""Puts promotions into every situation that must not end with the wrong champion, and says which version is one afterwards.

    python benchmarks/promotion_scenarios.py --n 10 --json promotions.json

Workspaces as a finished training leaves them, a registry of its own for each scenario. Each gate fails alone; there is no
champion yet; the candidate ties, is better, worse, better by less than the margin; it, or the champion, can't be measured;
a person refuses; another champion came meanwhile; a rollback, and one more. A process is killed by SIGKILL before each single
change that a promotion makes in the registry, and the next one must make it good; likewise a rollback. Two processes promote at
once, n times. Exit status 0 means that champion, previous and candidate are the right ones in all of these.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from promotable import EQUAL, STRONG, WEAK, change, evaluation, export_drafter, write
from promotion_stage import (
    SETTINGS,
    Stage,
    at_once,
    attempt,
    in_a_process,
    killed,
    not_measured,
    prepare,
    promote,
    promote_second,
    row_of,
)
from results import leave

from dflash_core.errors import DflashError
from tasks import alias_moves
from tasks.promotion import conclude, judge, refuse
from tasks.registration import register
from tasks.registry import CANDIDATE, CHAMPION, PREVIOUS
from tasks.workspace import Workspace

FIRST, SECOND = {CHAMPION: "1"}, {CHAMPION: "2", PREVIOUS: "1"}  # right aliases: the first version stays, the second took its place
KEPT_OUT = {CANDIDATE: "2", CHAMPION: "1"}


def main(arguments: list[str] | None = None) -> int:
    """Every scenario; see the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=10, help="times that two promote at once")
    parser.add_argument("--seed", type=int, default=0, help="of their delays")
    parser.add_argument("--json", type=Path, help="file to write; default: print")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="promotions-") as directory:
        rows = scenarios(Path(directory), options.n, random.Random(options.seed))
    return leave({"scenarios": rows}, options.json, all(row["right"] for row in rows))


def scenarios(root: Path, times: int, moments: random.Random) -> list[dict[str, Any]]:
    """A row for each."""
    for seed in (1, 2, 3):
        export_drafter(root / "exports" / str(seed), seed)
    prepared = root / "one-champion"
    in_a_process(lambda: prepare(prepared, root / "exports"))  # no connection to its database may be in our memory when it is copied
    count = iter(range(10_000))

    def stage() -> Stage:
        place = root / f"scenario{next(count)}"
        shutil.copytree(prepared, place)
        return Stage(place, root / "exports")

    empty = Stage(root / "empty", root / "exports")
    empty.root.mkdir(exist_ok=True)
    rows = [row_of("no champion yet", empty, lambda: attempt(empty, empty.workspace(EQUAL, 1)), FIRST)]
    for name, act, expected in SITUATIONS:
        place = stage()
        rows.append(row_of(name, place, lambda act=act, place=place: act(place), expected))
    rows += killed(stage, "promotion", lambda registry, place: promote(registry, place), SECOND)
    rows += killed(stage, "rollback", lambda registry, place: alias_moves.roll_back(registry), FIRST, before=promote_second)
    rows += [at_once(stage(), moments) for _ in range(times)]
    return rows


def spoilt(spoil: Callable[[Path], None]) -> Callable[[Stage], str]:
    """A better drafter whose workspace was spoilt."""

    def act(place: Stage) -> str:
        workspace = place.workspace(STRONG)
        spoil(workspace.root)
        return attempt(place, workspace)

    return act


def unproven(root: Path) -> None:
    tree = json.loads((root / "build/proof.json").read_text(encoding="utf-8"))
    tree["checkpoints"][0] |= {"outcome": "unproven", "sound": False}
    write(root / "build/proof.json", tree)


def unhealthy(root: Path) -> None:
    log = root / "runs/mine/train_log.jsonl"
    records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    for record in records[30:-1]:
        record["loss"] += 50.0 * (record["step"] - 29)
    log.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def damaged(place: Stage) -> str:
    """Its files changed in the registry after it was registered."""
    workspace = place.workspace(STRONG)
    version = register(workspace, place.registry)
    stored = Path(version.source.removeprefix("file://")) / "model.safetensors"
    stored.write_bytes(stored.read_bytes()[:-4] + b"abcd")
    return attempt(place, workspace)


def rolled_back(place: Stage) -> str:
    workspace = place.workspace(STRONG)
    attempt(place, workspace)
    alias_moves.roll_back(place.registry)
    return attempt(place, workspace)


def rolled_back_only(place: Stage) -> str:
    attempt(place, place.workspace(STRONG))
    move = alias_moves.roll_back(place.registry)
    return f"version {move['to']} after {move['from']}"


def rolled_back_too_far(place: Stage) -> str:
    rolled_back_only(place)
    try:
        alias_moves.roll_back(place.registry)
    except DflashError as error:
        return str(error)
    return "rolled back"


def otherwise_and_unmeasurable(place: Stage) -> str:
    workspace = place.workspace(STRONG)
    write(workspace.root / "build/evaluation/evaluation.json", evaluation(STRONG, 2, settings=128))

    def measure(workspace: Workspace, drafter: Path) -> dict[str, Any]:
        raise DflashError("it can't be decoded.")

    return attempt(place, workspace, measure=measure)


def refused(place: Stage) -> str:
    workspace = place.workspace(STRONG)
    judgement = judge(workspace, place.registry, SETTINGS, not_measured)
    try:
        refuse(place.registry, judgement, "not on a Friday")
    except DflashError as error:
        return str(error)
    return "promoted"


def meanwhile(place: Stage) -> str:
    """It was compared with the first, and by the time a person approves, another one is champion."""
    judgement = judge(place.workspace(STRONG), place.registry, SETTINGS, not_measured)
    third = register(place.workspace(STRONG, 3), place.registry)
    alias_moves.promote(place.registry, third, place.registry.alias(CHAMPION))
    try:
        conclude(place.registry, judgement)
    except DflashError as error:
        return str(error)
    return "promoted"


def _by_less_than(margin: float) -> Callable[[Stage], str]:
    return lambda place: attempt(place, place.workspace(STRONG), SETTINGS.model_copy(update={"margin": margin}))


SITUATIONS: list[tuple[str, Callable[[Stage], str], dict[str, str]]] = [
    ("gate proven alone", spoilt(unproven), KEPT_OUT),
    ("gate data alone", spoilt(lambda root: change(root / "build/data_gate/verdict.json", passed=False)), KEPT_OUT),
    ("gate healthy alone", spoilt(unhealthy), KEPT_OUT),
    ("gate lossless alone", spoilt(lambda root: change(root / "build/evaluation/evaluation.json", outputs={"num_prompts": 40, "num_different": 1})), KEPT_OUT),
    ("gate loads alone", damaged, KEPT_OUT),
    ("gate not_rolled_back alone", rolled_back, KEPT_OUT),
    ("tie", lambda place: attempt(place, place.workspace(EQUAL)), KEPT_OUT),
    ("better", lambda place: attempt(place, place.workspace(STRONG)), SECOND),
    ("better by less than the margin", _by_less_than(2.0), KEPT_OUT),
    ("worse", lambda place: attempt(place, place.workspace(WEAK)), KEPT_OUT),
    ("unmeasurable candidate", spoilt(lambda root: (root / "build/evaluation/evaluation.json").unlink()), KEPT_OUT),
    ("unmeasurable champion", otherwise_and_unmeasurable, KEPT_OUT),
    ("approval refused", refused, KEPT_OUT),
    ("another champion meanwhile", meanwhile, {CHAMPION: "3", PREVIOUS: "1"}),
    ("rollback", rolled_back_only, FIRST),
    ("rollback with nothing before", rolled_back_too_far, FIRST),
]


if __name__ == "__main__":
    sys.exit(main())
