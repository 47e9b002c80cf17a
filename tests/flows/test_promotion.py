"""Promotion: whatever happens, the right version is the champion afterwards."""

import dataclasses
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from promotable import EQUAL, STRONG, WEAK, change, evaluation, export_drafter, make_promotable, write

from dflash_core.errors import GateError
from tasks import alias_moves, gates
from tasks.promotion import Judgement, conclude, judge, measure_gates, one_at_a_time
from tasks.promotion_settings import PromotionSettings
from tasks.registration import register
from tasks.registry import CANDIDATE, CHAMPION, PREVIOUS, Registry, Version
from tasks.workspace import Workspace

from .toy_registry import MODEL, aliases, killed_at

SETTINGS = PromotionSettings(model=MODEL, bootstrap_samples=200)


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    place = tmp_path_factory.mktemp("exports")
    return {seed: export_drafter(place / str(seed), seed) for seed in (1, 2, 3)}


@pytest.fixture
def make(tmp_path: Path, exports: dict[int, Path]) -> Callable[[int, int], Workspace]:
    return lambda tokens, seed: make_promotable(tmp_path / f"workspace{seed}", exports[seed], tokens, seed)


@pytest.fixture
def registry(uri: str) -> Registry:
    return Registry(uri, MODEL)


@pytest.fixture(scope="module")
def one_champion(exports: dict[int, Path], empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with one champion, made once: a promotion is some hundred statements."""
    place = tmp_path_factory.mktemp("champion")
    shutil.copy(empty_database, place / "mlflow.db")
    run(make_promotable(place / "workspace", exports[1], EQUAL, 1), Registry(f"sqlite:///{place / 'mlflow.db'}", MODEL))
    return place / "mlflow.db"


@pytest.fixture
def served(one_champion: Path, tmp_path: Path) -> Registry:
    """A registry whose version 1 is the champion, of EQUAL tokens a round."""
    shutil.copy(one_champion, tmp_path / "served.db")
    return Registry(f"sqlite:///{tmp_path / 'served.db'}", MODEL)


def not_measured(workspace: Workspace, drafter: Path) -> dict[str, Any]:
    raise AssertionError("the champion was measured alike, there is no need to do it again")


def run(place: Workspace, registry: Registry, settings: PromotionSettings = SETTINGS, measure: Any = not_measured) -> None:
    conclude(registry, judge(place, registry, settings, measure))


def test_without_a_champion_the_first_that_gains_is_one(make: Any, registry: Registry) -> None:
    run(make(EQUAL, 1), registry)
    assert aliases(registry) == {CHAMPION: "1"}
    tags = registry.alias(CHAMPION).tags
    assert tags["dflash.proof"] == "proven" and tags["dflash.data_version"] == "d" * 64 and float(tags["dflash.tau"]) > 1.5
    assert json.loads(tags["dflash.dvc"]) == {"build/drafter": f"{1:032d}.dir"} and tags["dflash.gates"] == "passed"
    said = registry.client.get_model_version(MODEL, "1").description
    assert said.startswith("τ 2.08 (95 %: 1.00 to 4.00) by speculative decoding") and "\n\n# DFlash drafter" in said


def test_a_drafter_that_gains_nothing_is_no_first_champion(make: Any, registry: Registry) -> None:
    place = make(WEAK, 1)
    change(place.root / "build/evaluation/evaluation.json", acceptance={"tau": 1.0})
    with pytest.raises(GateError, match="better"):
        run(place, registry)
    assert aliases(registry) == {CANDIDATE: "1"}


def test_a_better_one_replaces_the_champion_which_is_kept(make: Any, served: Registry) -> None:
    run(make(STRONG, 2), served)
    assert aliases(served) == {CHAMPION: "2", PREVIOUS: "1"}
    assert served.version("1").tags["dflash.state"].startswith("replaced by 2")


@pytest.mark.parametrize("tokens", [EQUAL, WEAK], ids=["tie", "worse"])
def test_one_that_is_not_better_changes_nothing(make: Any, served: Registry, tokens: int) -> None:
    with pytest.raises(GateError, match="better: τ"):
        run(make(tokens, 2), served)
    assert aliases(served) == {CANDIDATE: "2", CHAMPION: "1"}
    assert served.version("2").tags["dflash.gates"] == "failed: better"


def test_it_must_be_better_by_the_margin(make: Any, served: Registry) -> None:
    with pytest.raises(GateError, match=r"more than \+2"):
        run(make(STRONG, 2), served, SETTINGS.model_copy(update={"margin": 2.0}))
    assert aliases(served) == {CANDIDATE: "2", CHAMPION: "1"}


def spoil_proof(root: Path) -> None:
    tree = json.loads((root / "build/proof.json").read_text())
    tree["checkpoints"][0] |= {"outcome": "unproven", "sound": False}
    write(root / "build/proof.json", tree)


def spoil_log(root: Path) -> None:
    log = root / "runs/mine/train_log.jsonl"
    records = [json.loads(line) for line in log.read_text().splitlines()]
    for record in records[30:-1]:
        record["loss"] += 50.0 * (record["step"] - 29)
    log.write_text("".join(json.dumps(record) + "\n" for record in records))


def spoil_weights(root: Path, registry: Registry) -> None:
    (stored,) = (Path(registry.uri.removeprefix("sqlite:///")).parent / "mlartifacts").rglob("model.safetensors")
    stored.write_bytes(stored.read_bytes()[:-4] + b"abcd")

OUTPUTS = {"num_prompts": 40, "num_different": 1}

SPOILT = {
    "proven": spoil_proof,
    "proven, of another checkpoint": lambda root: change(root / "build/drafter/lineage.json", checkpoint_digest="other"),
    "data": lambda root: change(root / "build/data_gate/verdict.json", passed=False),
    "data, never looked at": lambda root: (root / "build/data_gate/verdict.json").unlink(),
    "data, in words": lambda root: change(root / "build/data_gate/verdict.json", passed="false"),
    "data, of another day": lambda root: change(root / "build/data_gate/verdict.json", dataset="e" * 64),
    "healthy": spoil_log,
    "lossless": lambda root: change(root / "build/evaluation/evaluation.json", outputs=OUTPUTS),
    "lossless, measured in bfloat16": lambda root: write(root / "build/evaluation/evaluation.json", evaluation(STRONG, 1, "bfloat16")),
    "better, never measured": lambda root: (root / "build/evaluation/evaluation.json").unlink(),
    "better, of another drafter": lambda root: write(root / "build/evaluation/evaluation.json", evaluation(STRONG, 2)),
}


@pytest.fixture(scope="module")
def registered(exports: dict[int, Path], empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, Registry, Version]:
    """A version that every gate lets pass, registered once; its tests spoil copies of its workspace."""
    place = tmp_path_factory.mktemp("registered")
    shutil.copy(empty_database, place / "mlflow.db")
    workspace, registry = make_promotable(place / "workspace", exports[1], STRONG, 1), Registry(f"sqlite:///{place / 'mlflow.db'}", MODEL)
    return workspace, registry, register(workspace, registry)


@pytest.mark.parametrize("fault", [None, *SPOILT])
def test_each_gate_alone_keeps_it_out(registered: tuple[Workspace, Registry, Version], tmp_path: Path, fault: str | None) -> None:
    workspace, registry, version = registered
    place = dataclasses.replace(workspace, root=tmp_path / "copy")
    shutil.copytree(workspace.root, place.root)
    if fault:
        SPOILT[fault](place.root)
    blank = Judgement(version, None, ())
    judgement = dataclasses.replace(blank, gates=measure_gates(place, registry, SETTINGS, blank, not_measured, tmp_path))
    failed = {gate.name for gate in judgement.gates if not gate.passed}
    if fault is None:
        assert judgement.passed and len(judgement.gates) == 7
        return
    also = {"better", "lossless"} if "measured" in fault or "other" in fault else set()
    assert fault.split(",")[0] in failed and failed <= {fault.split(",")[0], *also}
    with pytest.raises(GateError, match=fault.split(",")[0]):
        conclude(registry, judgement)
    assert aliases(registry) == {CANDIDATE: "1"}


def test_the_evidence_of_every_gate_is_an_artifact(make: Any, registry: Registry) -> None:
    place = make(STRONG, 1)
    spoil_proof(place.root)
    judgement = judge(place, registry, SETTINGS, not_measured)
    client, run_id = registry.client, registry.version("1").tags["dflash.promotion_run"]
    assert {Path(f.path).stem for f in client.list_artifacts(run_id, "gates")} == {gate.name for gate in judgement.gates}
    assert client.get_run(run_id).data.tags["dflash.gates"] == "failed: proven"


def test_files_that_changed_in_the_registry_keep_it_out(make: Any, registry: Registry) -> None:
    place = make(STRONG, 1)
    judge(place, registry, SETTINGS, not_measured)
    spoil_weights(place.root, registry)
    with pytest.raises(GateError, match="loads: it can't be measured"):
        run(place, registry)
    assert aliases(registry) == {CANDIDATE: "1"}


def test_a_champion_measured_otherwise_is_measured_again_first(make: Any, served: Registry) -> None:
    place, measured = make(STRONG, 2), []
    write(place.root / "build/evaluation/evaluation.json", evaluation(EQUAL, 2, settings=128))

    def measure(workspace: Workspace, drafter: Path) -> dict[str, Any]:
        measured.append(sorted(path.name for path in drafter.iterdir()))
        return evaluation(STRONG, 1, settings=128)

    with pytest.raises(GateError, match="may be worse"):
        run(place, served, measure=measure)
    assert measured == [["README.md", "config.json", "lineage.json", "model.safetensors"]]
    assert aliases(served) == {CANDIDATE: "2", CHAMPION: "1"}


@pytest.mark.parametrize("answer", [GateError("it decodes wrongly."), evaluation(WEAK, 1, settings=32)], ids=["fails", "still otherwise"])
def test_a_champion_that_cannot_be_measured_stays(make: Any, served: Registry, answer: Any) -> None:
    place = make(STRONG, 2)
    write(place.root / "build/evaluation/evaluation.json", evaluation(STRONG, 2, settings=128))

    def measure(workspace: Workspace, drafter: Path) -> dict[str, Any]:
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(GateError, match="better: it can't be measured"):
        run(place, served, measure=measure)
    assert aliases(served) == {CANDIDATE: "2", CHAMPION: "1"}


def test_the_same_drafter_again_is_nothing_to_do(make: Any, served: Registry) -> None:
    place = make(EQUAL, 1)
    run(place, served)
    assert aliases(served) == {CHAMPION: "1"} and len(served.versions()) == 1
    assert "is the champion already" in judge(place, served, SETTINGS, not_measured).table(), "in place of a table without rows"


def test_a_registration_killed_between_any_two_steps_makes_one_version(make: Any, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    place, step = make(EQUAL, 1), 0
    while killed_at(step, lambda mortal: run(place, mortal), registry.uri, monkeypatch):
        step += 5  # some dozen changes
    run(place, registry)
    assert step > 9 and len(registry.versions()) == 1 and aliases(registry)[CHAMPION] == "1"


def test_what_was_rolled_back_does_not_come_back_by_itself(make: Any, served: Registry) -> None:
    place = make(STRONG, 2)
    run(place, served)
    alias_moves.roll_back(served)
    served.tag("2", {"dflash.approval": "yes: by a person, of the first promotion"})
    with pytest.raises(GateError, match="not_rolled_back: rolled back at .*; with again it may come back"):
        run(place, served)
    assert served.version("2").tags["dflash.approval"] == "not asked", "an earlier answer is none to this promotion"
    assert aliases(served)[CHAMPION] == "1"
    assert gates.not_rolled_back(served.version("2"), again=True).passed and not gates.not_rolled_back(served.version("2"), again=False).passed


def test_of_two_promotions_at_once_the_better_one_wins(make: Any, registry: Registry, tmp_path: Path) -> None:
    outcomes: dict[int, str] = {}

    def promote(place: Workspace, seed: int) -> None:
        try:
            with one_at_a_time(MODEL, tmp_path / "locks"):
                run(place, Registry(registry.uri, MODEL))
            outcomes[seed] = "promoted"
        except GateError as error:
            outcomes[seed] = str(error)

    threads = [threading.Thread(target=promote, args=(make(tokens, seed), seed)) for tokens, seed in ((EQUAL, 1), (STRONG, 2))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes[2] == "promoted" and float(registry.alias(CHAMPION).tags["dflash.tau"]) > 2.5
    assert outcomes[1] == "promoted" or "may be worse" in outcomes[1]
