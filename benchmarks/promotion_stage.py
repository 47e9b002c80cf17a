"""Registries in which promotions are tried and killed: what stands on such a stage, and what is tried on it, in processes.

What a promotion has left is read past MLflow, from the database itself.
"""

import contextlib
import json
import multiprocessing
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promotable import EQUAL, STRONG, make_promotable, promotable, write

from dflash_core.errors import DflashError
from tasks.promotion import conclude, judge, one_at_a_time
from tasks.promotion_settings import PromotionSettings
from tasks.registry import CHAMPION, MOVE_TAG, PREVIOUS, Registry
from tasks.workspace import Workspace

MODEL = "toy"
SETTINGS = PromotionSettings(model=MODEL, bootstrap_samples=200)
CHANGES = ("set_", "delete_", "create_", "log_", "finalize_")  # what a client's method that changes the registry begins with
forked = multiprocessing.get_context("fork")


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


def attempt(place: Stage, workspace: Workspace, settings: PromotionSettings = SETTINGS, measure: Any = None) -> str:
    """One promotion in this process; gives what it said."""
    try:
        conclude(place.registry, judge(workspace, place.registry, settings, measure or not_measured))
    except DflashError as error:
        return str(error)
    return "promoted"


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
        row = row_of(f"{name} killed before change {lives + 1}", place, lambda between=between: f"champion between: {between}", expected)
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


def prepare(root: Path, exports: Path) -> None:
    root.mkdir(exist_ok=True)
    place = Stage(root, exports)
    attempt(place, place.workspace(EQUAL, 1))


def promote(registry: Registry, place: Stage) -> None:
    root = place.root / "workspace2"
    workspace = promotable(root) if root.exists() else place.workspace(STRONG)  # it is there when a killed one is made good
    conclude(registry, judge(workspace, registry, SETTINGS, not_measured))


def promote_second(place: Stage) -> None:
    promote(place.registry, place)


def _mortal(registry: Registry, lives: int) -> Registry:
    registry.client = Mortal(registry.client, lives)
    return registry


def _improve(root: Path) -> None:
    """A little over the champion's, which has EQUAL as well."""
    tree = json.loads((root / "build/evaluation/evaluation.json").read_text(encoding="utf-8"))
    for prompt in tree["prompts"]:
        prompt["rounds"] = [3, *prompt["rounds"][1:]]
    write(root / "build/evaluation/evaluation.json", tree)


def row_of(name: str, place: Stage, act: Callable[[], str], expected: dict[str, str]) -> dict[str, Any]:
    said = act()
    return {"scenario": name, "aliases": place.aliases, "said": said, "right": place.aliases == expected and place.is_at_rest}


def not_measured(workspace: Workspace, drafter: Path) -> dict[str, Any]:
    raise AssertionError("the champion was measured alike, there is no need to do it again")
