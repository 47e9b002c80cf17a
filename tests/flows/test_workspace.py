"""Workspaces, and what DVC says about their stages."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_core.config import load_config
from dflash_core.errors import ConfigError
from tasks import dvc_stages
from tasks.workspace import PROJECT, Workspace, make_workspace

PARAMS = "target: {path: target}\ndata: {conversations: [a.jsonl, sub/b.jsonl]}\n"


def make(tmp_path: Path, **settings: object) -> Workspace:
    source = tmp_path / "mine.yaml"
    source.write_text(PARAMS)
    return make_workspace(str(source), directory=tmp_path / "workspaces", cache=tmp_path / "cache", **settings)


def test_paths_are_absolute_and_every_key_is_there(tmp_path: Path) -> None:
    place = make(tmp_path)
    assert place.root == tmp_path / "workspaces/mine"
    config = load_config(place.root / "params.yaml")
    assert config == place.config
    assert config.target.path == str(tmp_path / "target")
    assert config.data.conversations == (str(tmp_path / "a.jsonl"), str(tmp_path / "sub/b.jsonl"))
    assert config.project == str(PROJECT)
    assert yaml.safe_load((place.root / "params.yaml").read_text())["drafter"]["target_layer_ids"] is None


def test_a_released_drafter_is_a_dependency_of_what_follows_it(tmp_path: Path) -> None:
    place = make(tmp_path, overrides={"drafter.init_from": "released"})
    assert place.config.drafter.init_from == str(tmp_path / "released")
    stages = yaml.safe_load((place.root / "dvc.yaml").read_text())["stages"]
    assert {name for name, stage in stages.items() if str(tmp_path / "released") in stage["deps"]} == {"features", "train"}


def test_the_gates_reference_is_a_dependency_of_the_gate(tmp_path: Path) -> None:
    place = make(tmp_path, overrides={"data_gate.reference": "promoted/profile.json"})
    stages = yaml.safe_load((place.root / "dvc.yaml").read_text())["stages"]
    assert {name for name, stage in stages.items() if str(tmp_path / "promoted/profile.json") in stage["deps"]} == {"check-data"}


def test_overrides_reach_the_configuration(tmp_path: Path) -> None:
    place = make(tmp_path, name="other", overrides={"training.epochs": 2, "training.feature_noise.std": 0.1, "run": "x"})
    assert place.root.name == "other"
    assert (place.config.training.epochs, place.config.training.feature_noise.std, place.config.run) == (2, 0.1, "x")


@pytest.mark.parametrize("overrides", [{"training.epocs": 2}, {"training.epochs": -1}, {"run": "y", "run.x": 1}, {"nothing": 1}])
def test_a_bad_override_is_refused(tmp_path: Path, overrides: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        make(tmp_path, overrides=overrides)


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "a b", "x" * 101])
def test_a_name_stays_below_the_directory(tmp_path: Path, name: str) -> None:
    if name:
        with pytest.raises(ConfigError, match="letters"):
            make(tmp_path, name=name)


def test_an_unknown_profile_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="smoke"):
        make_workspace("nope", directory=tmp_path)


@pytest.mark.parametrize("profile", ["demo", "smoke"])
def test_the_shipped_profiles_are_valid(tmp_path: Path, profile: str) -> None:
    place = make_workspace(profile, directory=tmp_path, cache=tmp_path / "cache")
    assert place.root == tmp_path / profile
    assert Path(place.config.data.conversations[0]).parent == PROJECT / "data"


def test_the_declaration_names_files_and_every_conversation(tmp_path: Path) -> None:
    stages = yaml.safe_load((make(tmp_path).root / "dvc.yaml").read_text())["stages"]
    assert str(tmp_path / "sub/b.jsonl") in stages["prepare"]["deps"]
    assert str(PROJECT / "dflash_core/data/prepare.py") in stages["prepare"]["deps"]
    assert not [d for stage in stages.values() for d in stage["deps"] if d.startswith("${project}") or "__pycache__" in d]
    assert dvc_stages.declared_stage(make(tmp_path).root, "prepare").command == ("python", "-m", "dflash_core", "prepare")


def test_the_projects_own_declaration_is_one_that_dvc_reads() -> None:
    tree = yaml.safe_load((PROJECT / "dvc.yaml").read_text())
    assert list(tree["stages"]) == ["prepare", "bucket", "check-data", "features", "train", "prove", "evaluate", "report"]
    params = yaml.safe_load((PROJECT / "params.yaml").read_text())
    for stage in tree["stages"].values():
        for key in stage["params"]:
            section = params
            for part in key.split("."):
                assert part in section, f"DVC refuses a parameter that params.yaml lacks: {key}"
                section = section[part]


def _copying_workspace(tmp_path: Path) -> Path:
    """A repository with one stage that copies a file."""
    root = tmp_path / "copying"
    root.mkdir()
    dvc_stages.init_repository(root, tmp_path / "cache")
    (root / "params.yaml").write_text("suffix: {text: x}\n")
    (root / "dvc.yaml").write_text(
        yaml.safe_dump({"stages": {"copy": {"cmd": "cp in out", "deps": ["in"], "outs": ["out"], "params": ["suffix"]}}})
    )
    (root / "in").write_text("1")
    return root


def test_a_stage_is_up_to_date_after_commit_until_something_changes(tmp_path: Path) -> None:
    root = _copying_workspace(tmp_path)
    assert not dvc_stages.is_up_to_date(root, "copy")
    (root / "out").write_text("1")
    hashes = dvc_stages.commit_outputs(root, "copy")
    assert list(hashes) == ["out"] and dvc_stages.is_up_to_date(root, "copy")
    for name, text in (("in", "2"), ("params.yaml", "suffix: {text: y}\n"), ("out", "3")):
        before = (root / name).read_text()
        (root / name).write_text(text)
        assert not dvc_stages.is_up_to_date(root, "copy"), name
        (root / name).write_text(before)
        assert dvc_stages.is_up_to_date(root, "copy"), name


@pytest.mark.parametrize("value", ["12e34", "yes", "null", "0o17", "1_000", "2026-01-01", "a: b # c", "é\n", None, 1e-5, [1, {"x": None}]])
def test_what_the_lock_says_is_what_dvc_reads(tmp_path: Path, value: Any) -> None:
    root = _copying_workspace(tmp_path)
    (root / "params.yaml").write_text(json.dumps({"suffix": {"text": value}}))
    (root / "out").write_text("1")
    dvc_stages.commit_outputs(root, "copy")
    assert dvc_stages.is_up_to_date(root, "copy")
    declared = yaml.safe_load((root / "dvc.yaml").read_text())
    other = declared["stages"]["copy"] | {"cmd": "cp in two", "outs": ["two"]}
    (root / "dvc.yaml").write_text(yaml.safe_dump({"stages": declared["stages"] | {"other": other}}))
    (root / "two").write_text("1")
    dvc_stages.commit_outputs(root, "other")
    assert not dvc_stages.changed_stages(root), "another stage's entry stays"
    (root / "params.yaml").write_text(json.dumps({"suffix": {"text": "another"}}))
    assert dvc_stages.changed_stages(root) == {"copy", "other"}


def test_an_output_that_is_not_to_be_cached_is_hashed_only(tmp_path: Path) -> None:
    root, stages = _copying_workspace(tmp_path), {"cmd": "make", "deps": ["in"], "outs": ["out", {"big": {"cache": False}}]}
    (root / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"make": stages}}))
    (root / "out").write_text("small")
    (root / "big").mkdir()
    (root / "big/shard").write_text("features")
    hashes = dvc_stages.commit_outputs(root, "make")
    assert hashes["big"].endswith(".dir") and hashes["big"] in (root / "dvc.lock").read_text()
    objects = [path.read_text() for path in (tmp_path / "cache/files").rglob("*") if path.is_file()]
    assert objects == ["small"]
    assert dvc_stages.is_up_to_date(root, "make")
    (root / "big/shard").write_text("FEATURES")
    assert not dvc_stages.is_up_to_date(root, "make")


def test_writing_into_an_output_leaves_the_cache_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text("[cache]\n    type = hardlink\n")  # a user's own setting, for all of their repositories
    monkeypatch.setenv("DVC_GLOBAL_CONFIG_DIR", str(tmp_path))
    root = _copying_workspace(tmp_path)
    (root / "out").write_text("1")
    dvc_stages.commit_outputs(root, "copy")
    (root / "out").chmod(0o644)
    (root / "out").write_text("2")
    assert [path.read_text() for path in (tmp_path / "cache/files").rglob("*") if path.is_file()] == ["1"]


def test_a_plain_command_is_read_without_dvc_and_a_variable_is_resolved_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = _copying_workspace(tmp_path)
    declared = yaml.safe_load((root / "dvc.yaml").read_text())["stages"]
    (root / "dvc.yaml").write_text(yaml.safe_dump({"stages": declared | {"say": {"cmd": "echo ${suffix.text}"}}}))
    assert dvc_stages.declared_stage(root, "say").command == ("echo", "x")
    monkeypatch.setattr(dvc_stages, "Repo", None)
    assert dvc_stages.declared_stage(root, "copy").command == ("cp", "in", "out")


def test_faults_of_dvc_are_one_sentence(tmp_path: Path) -> None:
    root = _copying_workspace(tmp_path)
    with pytest.raises(ConfigError, match="no-such-stage"):
        dvc_stages.declared_stage(root, "no-such-stage")
    with pytest.raises(ConfigError) as caught:
        dvc_stages.commit_outputs(root, "copy")
    assert "\n" not in str(caught.value)
