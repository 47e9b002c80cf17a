"""Puts promotions into every situation that must not end with the wrong champion, and says which version is one afterwards.

    python benchmarks/promotion_scenarios.py --n 10 --json promotions.json

Workspaces as a finished training leaves them, a registry of its own for each scenario. Each gate fails alone; there is no
champion yet; the candidate ties, is better, worse, better by less than the margin; it, or the champion, can't be measured;
a person refuses; another champion came meanwhile; a rollback, and one more. A process is killed by SIGKILL before each single
change that a promotion makes in the registry, and the next one must make it good; likewise a rollback. Two processes promote at
once, n times. Exit status 0 means that champion, previous and candidate are the right ones in all of these.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promotable import EQUAL, STRONG, WEAK, change, evaluation, export_drafter, make_promotable, promotable, write
from results import leave

from dflash_core.errors import DflashError
from tasks import alias_moves
from tasks.promotion import conclude, judge, one_at_a_time, refuse
from tasks.promotion_settings import PromotionSettings
from tasks.registration import register
from tasks.registry import CANDIDATE, CHAMPION, MOVE_TAG, PREVIOUS, Registry
from tasks.workspace import Workspace

MODEL = "toy"
SETTINGS = PromotionSettings(model=MODEL, bootstrap_samples=200)
CHANGES = ("set_", "delete_", "create_", "log_", "finalize_")  # what a client's method that changes the registry begins with
forked = multiprocessing.get_context("fork")
FIRST, SECOND = {CHAMPION: "1"}, {CHAMPION: "2", PREVIOUS: "1"}  # right aliases: the first version stays, the second took its place
KEPT_OUT = {CANDIDATE: "2", CHAMPION: "1"}


@dataclass(frozen=True)
class Stage:
    """A registry with its workspaces: the first is the champion's, of EQUAL tokens a round."""

    root: Path
    exports: Path

    @property
    def registry(self) -> Registry:
        """Of the process that asks: no connection to a database may be taken over a fork."""
        return Registry(f"sqlite:///{self.root / 'mlflow.db'}", MODEL)

    def read(self, question: str) -> dict[str, str]:
        """What its database holds, read past MLflow."""
        with contextlib.closing(sqlite3.connect(self.root / "mlflow.db")) as database:
            return {name: str(value) for name, value in database.execute(question)}

    @property
    def aliases(self) -> dict[str, str]:
        """Which version each names."""
        return self.read("select alias, version from registered_model_aliases")

    @property
    def is_at_rest(self) -> bool:
        """No move is under way."""
        return MOVE_TAG not in self.read("select key, value from registered_model_tags")

    def workspace(self, tokens: int, seed: int = 2) -> Workspace:
        """Another one, whose drafter commits so many tokens a round."""
        return make_promotable(self.root / f"workspace{seed}", self.exports / str(seed), tokens, seed)


class Mortal:
    """A client whose process dies by SIGKILL before its n-th change of the registry."""

    def __init__(self, client: Any, lives: int) -> None:
        self._client, self._lives = client, lives

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if not name.startswith(CHANGES):
            return method

        def mortal(*arguments: Any, **named: Any) -> Any:
            if self._lives == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self._lives -= 1
            return method(*arguments, **named)

        return mortal


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
    in_a_process(lambda: _prepare(prepared, root / "exports"))  # no connection to its database may be in our memory when it is copied
    count = iter(range(10_000))

    def stage() -> Stage:
        place = root / f"scenario{next(count)}"
        shutil.copytree(prepared, place)
        return Stage(place, root / "exports")

    empty = Stage(root / "empty", root / "exports")
    empty.root.mkdir(exist_ok=True)
    rows = [_row("no champion yet", empty, lambda: attempt(empty, empty.workspace(EQUAL, 1)), FIRST)]
    for name, act, expected in SITUATIONS:
        place = stage()
        rows.append(_row(name, place, lambda act=act, place=place: act(place), expected))
    rows += killed(stage, "promotion", lambda registry, place: _promote(registry, place), SECOND)
    rows += killed(stage, "rollback", lambda registry, place: alias_moves.roll_back(registry), FIRST, before=_promote_second)
    rows += [at_once(stage(), moments) for _ in range(times)]
    return rows


def attempt(place: Stage, workspace: Workspace, settings: PromotionSettings = SETTINGS, measure: Any = None) -> str:
    """One promotion in this process; gives what it said."""
    try:
        conclude(place.registry, judge(workspace, place.registry, settings, measure or _not_measured))
    except DflashError as error:
        return str(error)
    return "promoted"


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
    gone, back = alias_moves.roll_back(place.registry)
    return f"version {back.number} after {gone.number}"


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
    judgement = judge(workspace, place.registry, SETTINGS, _not_measured)
    try:
        refuse(place.registry, judgement, "not on a Friday")
    except DflashError as error:
        return str(error)
    return "promoted"


def meanwhile(place: Stage) -> str:
    """It was compared with the first, and by the time a person approves, another one is champion."""
    judgement = judge(place.workspace(STRONG), place.registry, SETTINGS, _not_measured)
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


def killed(
    stage: Callable[[], Stage],
    name: str,
    act: Callable[[Registry, Stage], Any],
    expected: dict[str, str],
    before: Callable[[Stage], None] | None = None,
) -> list[dict[str, Any]]:
    """A row for each change before which the process is killed, until it has one life too many."""
    rows: list[dict[str, Any]] = []
    while True:
        place, lives = stage(), len(rows)
        if before:
            in_a_process(lambda place=place: before(place))
        code = in_a_process(lambda place=place, lives=lives: act(_mortal(place.registry, lives), place))
        if code != -signal.SIGKILL:
            return rows if code == 0 else [*rows, {"scenario": f"{name} ended with {code}", "right": False}]
        between = place.aliases.get(CHAMPION)
        in_a_process(lambda place=place: act(place.registry, place))
        row = _row(f"{name} killed before change {lives + 1}", place, lambda between=between: f"champion between: {between}", expected)
        rows.append(row | {"right": row["right"] and between in ("1", "2")})


def at_once(place: Stage, moments: random.Random) -> dict[str, Any]:
    """Two processes promote a better and a still better drafter at about the same time."""
    workspaces = [place.workspace(EQUAL, 2), place.workspace(STRONG, 3)]
    _improve(workspaces[0].root)
    processes = [forked.Process(target=lambda w=w: attempt_locked(place, w)) for w in workspaces]
    moments.shuffle(processes)
    for process in processes:
        process.start()
        time.sleep(moments.uniform(0, 0.3))
    for process in processes:
        process.join()
    found = place.aliases
    tau = float(place.read("select key, value from model_version_tags where key = 'dflash.tau' and version = " + found[CHAMPION])["dflash.tau"])
    right = tau > 2.5 and place.is_at_rest and found[PREVIOUS] != found[CHAMPION]
    return {"scenario": "two at once", "aliases": found, "said": f"τ of the champion {tau:.2f}", "right": right}


def attempt_locked(place: Stage, workspace: Workspace) -> None:
    """As the flow does it."""
    with one_at_a_time(MODEL, place.root / "locks"):
        attempt(place, workspace)


def in_a_process(act: Callable[[], Any]) -> int:
    """Run it in a fork; gives its exit code, negative for the signal that ended it."""
    process = forked.Process(target=act)
    process.start()
    process.join()
    return process.exitcode if process.exitcode is not None else 1


def _prepare(root: Path, exports: Path) -> None:
    root.mkdir(exist_ok=True)
    place = Stage(root, exports)
    attempt(place, place.workspace(EQUAL, 1))


def _promote(registry: Registry, place: Stage) -> None:
    root = place.root / "workspace2"
    workspace = promotable(root) if root.exists() else place.workspace(STRONG)  # it is there when a killed one is made good
    conclude(registry, judge(workspace, registry, SETTINGS, _not_measured))


def _promote_second(place: Stage) -> None:
    _promote(place.registry, place)


def _mortal(registry: Registry, lives: int) -> Registry:
    registry.client = Mortal(registry.client, lives)
    return registry


def _improve(root: Path) -> None:
    """A little over the champion's, which has EQUAL as well."""
    tree = json.loads((root / "build/evaluation/evaluation.json").read_text(encoding="utf-8"))
    for prompt in tree["prompts"]:
        prompt["rounds"] = [3, *prompt["rounds"][1:]]
    write(root / "build/evaluation/evaluation.json", tree)


def _row(name: str, place: Stage, act: Callable[[], str], expected: dict[str, str]) -> dict[str, Any]:
    said = act()
    return {"scenario": name, "aliases": place.aliases, "said": said, "right": place.aliases == expected and place.is_at_rest}


def _not_measured(workspace: Workspace, drafter: Path) -> dict[str, Any]:
    raise AssertionError("the champion was measured alike, there is no need to do it again")


if __name__ == "__main__":
    sys.exit(main())
