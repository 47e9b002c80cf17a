"""What a completed run leaves to the next one, and that a new workspace starts from it."""

import json
import os
import shutil
from pathlib import Path

import pytest
import yaml
from dvc.repo import Repo
from ruamel.yaml import YAML

from dflash_core.errors import ConfigError
from tasks import dvc_stages
from tasks.publication import Publication, begin_own_run, forget_lost_run, line_of, must_start, publish, start_from_published
from tasks.workspace import PROJECT, open_workspace

RUN_DIR = Path("runs/one")
STAGES = {
    "features": {"cmd": "none", "deps": ["../data"], "outs": [{"build/features": {"cache": False}}]},
    "train": {"cmd": "none", "deps": ["build/features"], "params": ["steps"], "outs": ["build/train.json"]},
}


def workspace(tmp_path: Path, name: str, steps: int = 1) -> Path:
    root = tmp_path / "workspaces" / name
    root.mkdir(parents=True)
    dvc_stages.init_repository(root, tmp_path / "cache")
    (tmp_path / "workspaces/data").write_text("d")
    (root / "params.yaml").write_text(f"steps: {steps}\n")
    (root / "dvc.yaml").write_text(yaml.safe_dump({"stages": STAGES}))
    return root


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A workspace whose two stages are done, published for line "demo"."""
    root = workspace(tmp_path, "first")
    (root / "build/features").mkdir(parents=True)
    (root / "build/features/shard").write_text("numbers")
    (root / "build/train.json").write_text('{"run": "one"}')
    (root / RUN_DIR).mkdir(parents=True)
    (root / RUN_DIR / "train_log.jsonl").write_text("{}\n")
    for name in STAGES:
        dvc_stages.commit_outputs(root, name)
    publish(root, RUN_DIR, "demo")
    return root


def test_a_new_workspace_is_up_to_date_and_has_all_there_was(tmp_path: Path, published: Path) -> None:
    root = workspace(tmp_path, "second")
    assert start_from_published(root, RUN_DIR, "demo-other", "demo") == "demo"
    assert all(dvc_stages.is_up_to_date(root, name) for name in STAGES)
    assert (root / "build/train.json").read_text() == '{"run": "one"}'
    assert os.stat(root / "build/features/shard").st_ino == os.stat(published / "build/features/shard").st_ino, "features take no room twice"
    assert (root / RUN_DIR / "train_log.jsonl").read_text() == "{}\n"


def test_a_line_stands_for_its_last_completed_run(published: Path) -> None:
    shutil.copy(PROJECT / "params.yaml", published)
    assert open_workspace("demo", directory=published.parent).root == published
    (published.parent / "demo").mkdir()
    with pytest.raises(ConfigError, match=r"no workspace 'demo' .* one of \['first'\]"):
        open_workspace("demo", directory=published.parent)


def test_a_changed_parameter_leaves_what_comes_before_it(tmp_path: Path, published: Path) -> None:
    root = workspace(tmp_path, "second", steps=2)
    start_from_published(root, RUN_DIR, "demo")
    assert dvc_stages.is_up_to_date(root, "features") and not dvc_stages.is_up_to_date(root, "train")
    assert not (root / RUN_DIR).exists(), "a training that must run finds no finished run in its place"


def test_what_comes_before_train_may_make_it_run_in_a_run_of_its_own(tmp_path: Path, published: Path) -> None:
    root = workspace(tmp_path, "second")
    (tmp_path / "workspaces/data").write_text("other data")
    start_from_published(root, RUN_DIR, "demo")
    begin_own_run(root, RUN_DIR, force=False)
    assert (root / RUN_DIR).is_symlink() and dvc_stages.changed_stages(root) == {"features"}, "as long as train may stay as it is"
    shutil.rmtree(root / "build/features")
    (root / "build/features").mkdir()
    (root / "build/features/shard").write_text("other numbers")
    dvc_stages.commit_outputs(root, "features")
    begin_own_run(root, RUN_DIR, force=False)
    assert not (root / RUN_DIR).exists() and (published / RUN_DIR / "train_log.jsonl").exists()


def test_a_forced_training_is_no_linked_run(tmp_path: Path, published: Path) -> None:
    root = workspace(tmp_path, "second")
    start_from_published(root, RUN_DIR, "demo")
    begin_own_run(root, RUN_DIR, force=True)
    assert not (root / RUN_DIR).exists() and (published / RUN_DIR).is_dir()


def test_a_linked_run_that_is_gone_is_trained_again(tmp_path: Path, published: Path) -> None:
    root = workspace(tmp_path, "second")
    start_from_published(root, RUN_DIR, "demo")
    forget_lost_run(root, RUN_DIR)
    assert not dvc_stages.changed_stages(root) and (root / RUN_DIR).is_dir(), "it is there"
    shutil.rmtree(published)
    forget_lost_run(root, RUN_DIR)
    assert dvc_stages.changed_stages(root) == {"train"} and not (root / RUN_DIR).is_symlink()


def test_what_is_gone_is_done_again(tmp_path: Path, published: Path) -> None:
    (published / "build/features/shard").unlink()
    (published / "build/features").rmdir()
    root = workspace(tmp_path, "second")
    start_from_published(root, RUN_DIR, "demo")
    assert not dvc_stages.is_up_to_date(root, "features")


def test_a_run_whose_directory_is_gone_is_trained_again(tmp_path: Path, published: Path) -> None:
    shutil.rmtree(published / RUN_DIR)
    root = workspace(tmp_path, "second")
    start_from_published(root, RUN_DIR, "demo")
    assert dvc_stages.changed_stages(root) == {"train"}, "else it is up to date for ever, and its drafter can never be promoted"


def test_a_run_of_its_own_is_not_replaced(tmp_path: Path, published: Path) -> None:
    root = workspace(tmp_path, "second")
    (root / RUN_DIR).mkdir(parents=True)
    (root / RUN_DIR / "train_log.jsonl").write_text("its own\n")
    start_from_published(root, RUN_DIR, "demo")
    assert dvc_stages.changed_stages(root) == {"train"}, "train goes on with the run that is there"
    assert (root / RUN_DIR / "train_log.jsonl").read_text() == "its own\n"


@pytest.mark.parametrize("step", ["check_out", "changed_stages"])
def test_who_is_killed_while_it_starts_starts_again(tmp_path: Path, published: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(root: Path) -> None:
        raise KeyboardInterrupt

    root = workspace(tmp_path, "second")
    assert must_start(root)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(dvc_stages, step, killed)
        start_from_published(root, RUN_DIR, "demo")
    assert must_start(root)
    start_from_published(root, RUN_DIR, "demo")
    assert not must_start(root) and not dvc_stages.changed_stages(root) and (root / RUN_DIR / "train_log.jsonl").exists()


def test_who_takes_its_own_publication_for_a_start_keeps_what_it_has(tmp_path: Path, published: Path) -> None:
    other = workspace(tmp_path, "other")
    (other / "dvc.lock").write_text("schema: '2.0'\nstages: {}\n")
    publish(other, RUN_DIR, "profile")
    (published / "dvc.lock").unlink()
    assert start_from_published(published, RUN_DIR, "demo", "profile") is None
    assert (published / "build/features/shard").exists() and (published / RUN_DIR / "train_log.jsonl").exists()


def test_what_goes_from_a_lock_leaves_the_rest_as_it_was() -> None:
    hashes = {"a": "1e5", "b": "1234567890e12345678901234567890a", "c": "no"}
    features = "".join(f"    {name}: '{value}'\n" for name, value in hashes.items())
    lock = f"schema: '2.0'\nstages:\n  features:\n{features}  train:\n    cmd: none\n"
    kept = YAML(typ="safe").load(dvc_stages.lock_without(lock, "train"))  # as DVC reads it
    assert kept == {"schema": "2.0", "stages": {"features": hashes}}


def test_a_repository_that_was_half_made_is_made(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    Repo.init(str(tmp_path / "w"), no_scm=True).close()
    dvc_stages.init_repository(tmp_path / "w", tmp_path / "cache")
    with Repo(str(tmp_path / "w")) as repo:
        assert repo.cache.local.path == str(tmp_path / "cache/files/md5")


def test_a_lock_that_a_full_disk_has_cut_stops_nobody(published: Path) -> None:
    (published / ".dvc/tmp/rwlock").write_text("")
    dvc_stages.commit_outputs(published, "train")
    assert not dvc_stages.changed_stages(published)


def test_nothing_published_is_a_start_from_nothing(tmp_path: Path) -> None:
    root = workspace(tmp_path, "only")
    assert start_from_published(root, RUN_DIR, "demo") is None
    assert not (root / "dvc.lock").exists()


def test_who_takes_over_a_run_publishes_where_it_really_is(tmp_path: Path, published: Path) -> None:
    root = workspace(tmp_path, "second")
    start_from_published(root, RUN_DIR, "demo")
    publish(root, RUN_DIR, "demo")
    found = Publication.read(tmp_path / "workspaces", "demo")
    assert found.workspace == str(root) and found.run_dir == str(published / RUN_DIR)


def test_an_experiment_is_a_line_of_its_own() -> None:
    lines = {line_of("demo", overrides) for overrides in ({}, {"training.epochs": 2}, {"training.epochs": 3})}
    assert len(lines) == 3 and "demo" in lines


def test_a_damaged_publication_is_one_sentence(tmp_path: Path, published: Path) -> None:
    (tmp_path / "workspaces/.published/demo.json").write_text(json.dumps({"workspace": "x"}))
    with pytest.raises(ConfigError, match="Remove it"):
        Publication.read(tmp_path / "workspaces", "demo")
