"""dvc.yaml and params.yaml agree: every key and every code path that a stage names exists."""

from pathlib import Path

import yaml

from dflash_core.config import load_config

from .test_layering import imported

PROJECT = Path(__file__).parent.parent
STAGES = yaml.safe_load((PROJECT / "dvc.yaml").read_text())["stages"]
PARAMS = yaml.safe_load((PROJECT / "params.yaml").read_text())


def has_key(tree: object, dotted: str) -> bool:
    for part in dotted.split("."):
        if not isinstance(tree, dict) or part not in tree:
            return False
        tree = tree[part]
    return True


def test_every_declared_parameter_stands_in_params() -> None:
    named = {key for stage in STAGES.values() for key in stage.get("params", [])}
    assert "training.seed" in named
    assert [key for key in sorted(named) if not has_key(PARAMS, key)] == []


def test_every_code_dependency_exists() -> None:
    code = {dep for stage in STAGES.values() for dep in stage["deps"] if dep.startswith("${project}/")}
    assert len(code) > 5
    assert [dep for dep in sorted(code) if not (PROJECT / dep.removeprefix("${project}/")).exists()] == []


def test_nothing_is_made_of_data_that_the_gate_has_not_passed() -> None:
    assert STAGES["check-data"]["outs"] == ["build/data_gate"]
    assert {name for name, stage in STAGES.items() if "build/data_gate/passed.json" in stage["deps"]} == {"features", "train"}


def test_an_evaluation_follows_the_code_that_decodes() -> None:
    """A finished run gives the same build/drafter again, so a change of Drafter.propose would not reach evaluate by way of train."""
    assert {f"${{project}}/dflash_core/{part}" for part in ("evaluation", "drafter", "target")} <= set(STAGES["evaluate"]["deps"])


def test_training_follows_the_code_that_trains() -> None:
    """All but what only starts and watches processes, or the log: the weights don't depend on these."""
    files = {path.name for path in (PROJECT / "dflash_core/stages").glob("train*.py")} - {"train_launch.py"}
    named = {Path(dep).name for dep in STAGES["train"]["deps"]}
    assert files | {"data", "target", "drafter", "training", "checkpoint", "distributed"} <= named


def test_a_proof_follows_the_code_that_it_replays_and_exports_by() -> None:
    """Everything of the core that the stage's own files import, but constants and the error hierarchy."""
    deps = [dep.removeprefix("${project}/") for dep in STAGES["prove"]["deps"] if dep.startswith("${project}/")]
    files = [PROJECT / dep for dep in deps if dep.endswith(".py")]
    names = {name for file in files for name in imported(file) if name.startswith("dflash_core.")}
    places = {name.replace(".", "/") for name in names if name.split(".")[1] not in ("config", "errors") and "stages.layout" not in name}
    assert sorted(place for place in places if not place.startswith(tuple(dep.removesuffix(".py") for dep in deps))) == []


def test_every_conversation_file_is_a_dependency() -> None:
    """DVC can't list them, so the file at the root names the first one only; a workspace's copy names all."""
    assert len(PARAMS["data"]["conversations"]) == 1, "dvc.yaml watches the first file only; name the others there, too"


def test_the_shipped_configurations_are_valid() -> None:
    for path in (PROJECT / "profiles").glob("*.yaml"):
        load_config(path)
    for path in (PROJECT / "params.yaml", PROJECT / "profiles/smoke.yaml"):
        assert load_config(path).training.max_steps is not None  # both end in minutes
