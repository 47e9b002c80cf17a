"""What is pulled is what was registered, byte for byte; and nothing that can still be pulled is collected."""

import json
import os
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from promotable import EQUAL, export_drafter, make_promotable, write

from dflash_core.errors import ConfigError, DataError
from tasks import alias_moves, cli, collect, lineage
from tasks import pull as pull_stage
from tasks.pull import find, pull, pull_checkpoint, restore
from tasks.registration import DVC_TAG, register
from tasks.registry import MOVE_TAG, Registry
from tasks.workspace import Workspace


@pytest.fixture
def place(tmp_path: Path) -> Workspace:
    return make_promotable(tmp_path / "workspace", export_drafter(tmp_path / "export", 1), EQUAL, 1)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def cache(directory: Path, into: Path) -> str:
    """Put a directory into a cache as DVC does, and give its digest."""
    import hashlib

    def keep(data: bytes, suffix: str = "") -> str:
        digest = hashlib.md5(data).hexdigest() + suffix
        target = into / "files/md5" / digest[:2] / digest[2:]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        return digest

    entries = [{"md5": keep(data), "relpath": name} for name, data in contents(directory).items()]
    return keep(json.dumps(entries).encode(), ".dir")


def test_pulled_files_are_the_exported_ones_and_load(place: Workspace, uri: str, tmp_path: Path) -> None:
    from dflash_core.checkpoint.exported import load_drafter

    register(place, Registry(uri, "toy"))
    original = contents(place.root / "build/drafter")
    shutil.rmtree(place.root)
    for reference in ("toy@candidate", "toy/1"):
        out = pull(uri, find(uri, reference), tmp_path / "out" / reference.replace("/", "-"))
        assert contents(out) == original
    load_drafter(out)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["toy-1", "toy@candidate"], "and nothing else is left"


def test_by_reference_the_cache_holds_the_files(place: Workspace, uri: str, tmp_path: Path) -> None:
    digest = cache(place.root / "build/drafter", tmp_path / "cache")
    write(place.root / "dvc.lock", {"stages": {"prove": {"outs": [{"path": "build/drafter", "md5": digest}]}}})
    version = register(place, Registry(uri, "toy"), by_reference=True)
    assert urlsplit(version.source)[:3] == ("dvc", "", f"/{digest}"), "a server takes absolute paths only"
    assert contents(pull(uri, version, tmp_path / "out", tmp_path / "cache")) == contents(place.root / "build/drafter")
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(DataError, match="no DVC remote"):
        pull(uri, version, tmp_path / "again", tmp_path / "cache")
    assert not (tmp_path / "again").exists()


def test_a_changed_file_and_a_full_directory_are_refused(place: Workspace, uri: str, tmp_path: Path) -> None:
    version = register(place, Registry(uri, "toy"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").touch()
    with pytest.raises(ConfigError, match="not empty"):
        pull(uri, version, tmp_path / "full")
    (stored,) = (tmp_path / "mlartifacts").rglob("config.json")
    stored.write_text("{}")
    with pytest.raises(DataError, match="config.json"):
        pull(uri, version, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("reference", ["toy@champion", "toy/7", "other/1", "toy", "toy@a/b", "t'oy@champion"])
def test_an_unknown_reference_is_refused(uri: str, reference: str) -> None:
    Registry(uri, "toy").ensure_model()
    with pytest.raises(ConfigError):
        find(uri, reference)


def test_what_can_be_pulled_is_named_in_place_of_what_is_not_there(uri: str) -> None:
    registry = Registry(uri, "toy")
    for number in ("1", "2"):
        registry.create("dvc:///a.dir", "", None, {}, "")
        registry.point("candidate", number)
    with pytest.raises(ConfigError, match="has no toy@champion, but toy@candidate, toy/2, toy/1[.]"):
        find(uri, "toy@champion")
    with pytest.raises(ConfigError, match="has no other/1, but no version of that model"):
        find(uri, "other/1")


def test_what_a_version_or_a_workspace_refers_to_is_kept(place: Workspace, uri: str, tmp_path: Path) -> None:
    kept, gone = tmp_path / "cache", tmp_path / "gone"
    registered, held = cache(place.root / "build/drafter", kept), cache(place.root / "build/evaluation", kept)
    gone.mkdir()
    (gone / "old").write_text("nobody's")
    (gone / "young").write_text("of a flow that goes on")
    garbage = cache(gone, kept)
    write(place.root / "dvc.lock", {"stages": {"prove": {"outs": [{"path": "build/drafter", "md5": registered}]}}})
    register(place, Registry(uri, "toy"), by_reference=True)
    write(place.root / "dvc.lock", {"stages": {"evaluate": {"outs": [{"path": "build/evaluation", "md5": held}]}}})
    for path in (kept / "files/md5").glob("*/*"):
        if path.read_bytes() != b"of a flow that goes on":
            os.utime(path, (0, 0))
    found = collect.garbage(kept, collect.referred([place.root / "dvc.lock"], collect.all_versions(uri)), 1.0)
    assert {path.read_bytes() for path in found.files} == {b"nobody's", (kept / "files/md5" / garbage[:2] / garbage[2:]).read_bytes()}
    for path in found.files:
        path.unlink()
    assert contents(restore(kept, registered, tmp_path / "restored")) == contents(place.root / "build/drafter")


def test_by_a_registry_without_versions_nothing_is_deleted(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files/weights").write_text("of a version in another registry")
    cache(tmp_path / "files", tmp_path / "cache")
    before = contents(tmp_path / "cache")
    monkeypatch.setattr(collect, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(collect, "PROJECT", tmp_path)
    assert cli.cli.main(["gc", "--days", "0", "--uri", uri]) == 0
    assert "2 objects" in (said := capsys.readouterr().out) and f"{uri} has none" in said
    assert cli.cli.main(["gc", "--delete", "--days", "0", "--uri", uri]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert uri in line and "MLFLOW_TRACKING_URI" in line and contents(tmp_path / "cache") == before


@pytest.mark.parametrize("damage", [b"", b'[{"md5": "a', b"{}x", b'["x"]', b'[{"md5": "a"}]', b"\xff"])
def test_a_torn_list_of_a_cached_directory_is_named(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files/weights").write_text("kept")
    digest = cache(tmp_path / "files", tmp_path / "cache")
    listing = pull_stage.cached(tmp_path / "cache", digest)
    listing.write_bytes(damage)
    for act in (
        lambda: collect.garbage(tmp_path / "cache", {digest}, 0),
        lambda: pull_stage.from_cache(digest, tmp_path / "cache", tmp_path / "out"),
    ):
        with pytest.raises(DataError, match=f"{listing} is damaged"):
            act()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"build/checkpoint": []}'])
def test_a_damaged_tag_is_named(uri: str, tmp_path: Path, text: str) -> None:
    registry = Registry(uri, "toy")
    version = registry.create("dvc:///a.dir", "", None, {DVC_TAG: text}, "")
    for act in (lambda: collect.referred([], [version]), lambda: pull_checkpoint(version, tmp_path / "out")):
        with pytest.raises(DataError, match="tag dflash.dvc of version 1 of toy is"):
            act()
    registry.client.set_registered_model_tag("toy", MOVE_TAG, text or "x")
    with pytest.raises(DataError, match="tag dflash.move of model toy is"):
        alias_moves.roll_back(registry)


def test_publications_and_collected_conversations_refer_too(tmp_path: Path) -> None:
    published, collected = tmp_path / "workspaces/.published/demo.json", tmp_path / "collected/demo/conversations.dvc"
    for path in (published, collected, tmp_path / "collected/demo/.dvc/config", tmp_path / "workspaces/w/dvc.lock"):
        path.parent.mkdir(parents=True)
    write(published, {"lock": "stages: {prepare: {outs: [{path: build/prepared, md5: p.dir}]}}"})
    collected.write_text("outs:\n- md5: c.dir\n  path: conversations\n")
    write(tmp_path / "workspaces/w/dvc.lock", {"stages": {"train": {"outs": [{"path": "build/train.json", "md5": "t"}]}}})
    assert collect.referred(collect.naming_files(tmp_path), []) == {"p.dir", "c.dir", "t"}
    published.write_text("{")
    with pytest.raises(DataError, match="demo.json can't be read"):
        collect.referred(collect.naming_files(tmp_path), [])


def test_a_lock_that_cannot_be_read_stops_the_collection(tmp_path: Path) -> None:
    (tmp_path / "dvc.lock").write_text("stages: [")
    with pytest.raises(DataError, match="isn't known"):
        collect.referred([tmp_path / "dvc.lock"], [])


def test_the_commands_are_added_to_the_cores_own(capsys: pytest.CaptureFixture[str], uri: str, tmp_path: Path, place: Workspace) -> None:
    for command in ("ship", "import-log", "pull", "rollback", "gc"):
        assert cli.cli.main([command, "--help"]) == 0
        assert f"dflash-core {command}" in " ".join(capsys.readouterr().out.split())
    register(place, Registry(uri, "toy"))
    assert cli.cli.main(["pull", "toy@candidate", "--out", str(tmp_path / "out"), "--uri", uri]) == 0
    assert lineage.file_digests(tmp_path / "out") == lineage.file_digests(place.root / "build/drafter")
    assert cli.cli.main(["rollback", "toy", "--uri", uri]) == 2
    assert cli.cli.main(["ship", str(place.log_file.parent), "--uri", uri]) == 0


@pytest.mark.parametrize("command", [("pull", "toy@champion", "--out", "out"), ("rollback", "toy"), ("gc",)], ids=lambda command: command[0])
def test_a_registry_that_is_down_is_one_sentence(command: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert cli.cli.main([*command, "--uri", "http://127.0.0.1:9"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("Error: MLflow at http://127.0.0.1:9 refuses, or can't be reached")


def test_no_path_is_a_models_name(capsys: pytest.CaptureFixture[str], uri: str) -> None:
    assert cli.cli.main(["rollback", "../toy", "--uri", uri]) == 2
    assert "model name '../toy'" in capsys.readouterr().err
