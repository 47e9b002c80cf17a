"""The project's DVC remote holds what a workspace has made, and gives it back by its digest alone."""

import shutil
from pathlib import Path

import pytest

from dflash_core.errors import ConfigError, DataError
from tasks import dvc_stages
from tasks.pull import restore
from tasks.this_run import TimeLimitReached


def test_what_is_pushed_comes_back_by_its_digest(tmp_path: Path) -> None:
    project, root, cache = tmp_path / "project", tmp_path / "workspace", tmp_path / "cache"
    (root / "files").mkdir(parents=True)
    (root / "files/a").write_text("a")
    dvc_stages.init_repository(root, cache)
    digest = dvc_stages.add_output(root, "files")
    assert dvc_stages.push(root, project) is None and dvc_stages.fetch(digest, cache, project) is False, "there is no remote"
    (project / ".dvc").mkdir(parents=True)
    (project / ".dvc/config").write_text(f"[core]\n remote = store\n['remote \"store\"']\n url = {tmp_path / 'remote'}\n")
    assert dvc_stages.push(root, project) == 2 and dvc_stages.push(root, project) == 0
    shutil.rmtree(cache)
    assert dvc_stages.fetch(digest, cache, project)
    assert (restore(cache, digest, tmp_path / "out") / "a").read_text() == "a"
    shutil.rmtree(cache)
    shutil.rmtree(tmp_path / "remote")
    dvc_stages.fetch(digest, cache, project)
    with pytest.raises(DataError, match="no DVC remote"):
        restore(cache, digest, tmp_path / "again")


class OfAStore(Exception):
    """As boto's, in a package of its own."""


@pytest.mark.parametrize(
    ("error", "seen"),
    [(ConnectionRefusedError(111, "refused"), ConfigError), (OfAStore("no such bucket"), ConfigError), (TimeLimitReached(), TimeLimitReached), (KeyError("x"), KeyError)],
)
def test_a_remote_that_is_away_is_one_sentence(error: Exception, seen: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise error

    project, root = tmp_path / "project", tmp_path / "workspace"
    (project / ".dvc").mkdir(parents=True)
    (project / ".dvc/config").write_text("[core]\n remote = store\n['remote \"store\"']\n url = s3://bucket\n")
    root.mkdir()
    dvc_stages.init_repository(root, tmp_path / "cache")
    monkeypatch.setattr(dvc_stages.Repo, "push", refuse)
    with pytest.raises(seen, match="DVC's remote refuses" if seen is ConfigError else None):
        dvc_stages.push(root, project)
