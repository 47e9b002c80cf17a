"""Judges a workspace's drafter against the champion and, if every gate lets it pass, makes it the champion.

Without Prefect: flows/promote_drafter.py is this, with a person's approval in between. One promotion or rollback of a
model runs at a time; each begins by ending what a killed one left half done.
"""

import contextlib
import fcntl
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dflash_core.errors import GateError
from tasks import alias_moves, gates, mlflow_store
from tasks.champion import champion_evaluation
from tasks.gates import Gate, measured
from tasks.promotion_settings import PromotionSettings
from tasks.pull import pull
from tasks.registration import model_name, register
from tasks.registry import CHAMPION, Registry, Version
from tasks.workspace import PROJECT, Workspace

GATES_TAG = "dflash.gates"
APPROVAL_TAG = "dflash.approval"
Measure = Callable[[Workspace, Path], dict[str, Any]]


@dataclass(frozen=True)
class Judgement:
    """What the gates said of a version, compared with this champion; `ended` is the move of a killed process that was ended first."""

    version: Version
    champion: Version | None
    gates: tuple[Gate, ...]
    ended: Mapping[str, Any] | None = None

    @property
    def is_champion(self) -> bool:
        """The very version is served already: there is nothing to do."""
        return self.champion is not None and self.champion.number == self.version.number

    @property
    def passed(self) -> bool:
        """Every gate."""
        return all(gate.passed for gate in self.gates)

    @property
    def promotable(self) -> bool:
        """There is something to do, and every gate lets it be done."""
        return self.passed and not self.is_champion

    def table(self) -> str:
        """For a person, in Markdown."""
        against = self.champion.number if self.champion else "none"
        if self.is_champion:
            return f"{self.version.name} is the champion already: there is nothing to do, and no gate was measured."
        rows = [f"| {gate.name} | {'passed' if gate.passed else '**failed**'} | {gate.reason.replace('|', '/')} |" for gate in self.gates]
        return "\n".join([f"{self.version.name}, champion: {against}", "", "| gate | | what was found |", "| --- | --- | --- |", *rows])


@contextlib.contextmanager
def one_at_a_time(model: str, directory: Path = PROJECT / "workspaces") -> Iterator[None]:
    """Wait until no other promotion or rollback of this model runs on this machine; the kernel frees the lock of a killed one."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / f".promotion-{model}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def open_registry(workspace: Workspace, settings: PromotionSettings, uri: str | None = None) -> Registry:
    """Of the model that the settings name."""
    uri = uri or mlflow_store.default_uri()
    with mlflow_store.reached(uri):
        return Registry(uri, settings.model or model_name(workspace))


def judge(workspace: Workspace, registry: Registry, settings: PromotionSettings, measure: Measure) -> Judgement:
    """Register the workspace's drafter as the candidate and measure every gate; the evidence goes into MLflow.

    Args:
        measure: evaluates a drafter's directory on the workspace's own prompts, for a champion that was measured otherwise.

    Raises:
        ConfigError: the workspace has no drafter to promote.
    """
    ended = alias_moves.finish_pending(registry)
    version = register(workspace, registry, by_reference=settings.by_reference)
    judgement = Judgement(version, registry.alias(CHAMPION), (), ended)
    if judgement.is_champion:
        return judgement
    with tempfile.TemporaryDirectory() as temporary:
        found = measure_gates(workspace, registry, settings, judgement, measure, Path(temporary))
    judgement = replace(judgement, gates=found)
    _record(registry, judgement, settings)
    return judgement


def conclude(registry: Registry, judgement: Judgement) -> Mapping[str, Any] | None:
    """Move the aliases, if every gate lets the version pass; gives the move, None where there was nothing to do.

    Raises:
        GateError: one doesn't, or another champion came meanwhile.
    """
    if judgement.is_champion:
        return None
    if not judgement.passed:
        failed = "; ".join(f"{gate.name}: {gate.reason}" for gate in judgement.gates if not gate.passed)
        raise GateError(f"{judgement.version.name} is not promoted. {failed}. The evidence is with its promotion run in MLflow.")
    return alias_moves.promote(registry, judgement.version, judgement.champion)


def refuse(registry: Registry, judgement: Judgement, reason: str) -> None:
    """A person said no.

    Raises:
        GateError: always.
    """
    registry.tag(judgement.version.number, {GATES_TAG: f"refused: {reason}"})
    raise GateError(f"{judgement.version.name} is not promoted: approval was refused ({reason}).")


def measure_gates(
    workspace: Workspace, registry: Registry, settings: PromotionSettings, judgement: Judgement, measure: Measure, temporary: Path
) -> tuple[Gate, ...]:
    """Every gate, measured whatever the others said: a person wants to know all that is missing."""
    root, version = workspace.root, judgement.version

    def better() -> Gate:
        other = champion_evaluation(workspace, registry, judgement.champion, measure) if judgement.champion else None
        return gates.better(root, other, settings.margin, settings.tolerance, settings.bootstrap_samples)

    return (
        measured("proven", lambda: gates.proven(root)),
        measured("data", lambda: gates.data_passed(root)),
        measured("healthy", lambda: gates.healthy(workspace.log_file)),
        measured("lossless", lambda: gates.lossless(root)),
        measured("loads", lambda: gates.loads(pull(registry.uri, version, temporary / "drafter"), version)),
        measured("not_rolled_back", lambda: gates.not_rolled_back(version, settings.again)),
        measured("better", better),
    )


def _record(registry: Registry, judgement: Judgement, settings: PromotionSettings) -> None:
    """A run of its own for each judgement, nested in the training's, with each gate's evidence as an artifact."""
    client, version = registry.client, judgement.version
    experiment = mlflow_store.experiment_id(client, registry.uri)
    outcome = "passed" if judgement.passed else "failed: " + ", ".join(gate.name for gate in judgement.gates if not gate.passed)
    tags = {"dflash.kind": "promotion", GATES_TAG: outcome, "dflash.model_version": f"{version.model}/{version.number}"}
    if version.run_id:
        tags[mlflow_store.PARENT_TAG] = version.run_id
    run_id = client.create_run(experiment, run_name=f"promote {version.model}/{version.number}", tags=tags).info.run_id
    mlflow_store.log_params(client, run_id, settings.model_dump())
    for gate in judgement.gates:
        client.log_text(run_id, json.dumps(asdict(gate), indent=1, default=str) + "\n", f"gates/{gate.name}.json")
    client.log_text(run_id, judgement.table() + "\n", "gates.md")
    client.set_terminated(run_id, "FINISHED" if judgement.passed else "FAILED")
    # What a person said of an earlier promotion of the same bytes is no word on this one.
    asked = "asked" if settings.approval and judgement.promotable else "not asked"
    registry.tag(version.number, {APPROVAL_TAG: asked, GATES_TAG: outcome, "dflash.promotion_run": run_id})
