"""What the last completed run of a line leaves to the next one: its dvc.lock, and where features and run directory lie.

A line is what goes on from night to night: a profile, or a profile with certain changes. The workspace of a new run starts from
its line's publication: outputs come out of the shared cache, so that DVC finds unchanged stages up to date. Features, which
are not cached, are linked from the workspace that published, and so is the run's directory until train must run again.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import yaml

from dflash_core.checkpoint.links import link_or_copy
from dflash_core.errors import ConfigError
from tasks import dvc_stages

STARTING = "starting"  # in a workspace that is being brought to where its line stands
DIRECTORY = ".published"  # beside the workspaces; a workspace's name can't begin with a dot


@dataclass(frozen=True, kw_only=True)
class Publication:
    """One line's last completed run.

    Fields:
        workspace: its directory.
        run_dir: where the checkpoints and the training log really are; another workspace's where train was up to date.
        lock: the text of its dvc.lock.
    """

    workspace: str
    run_dir: str
    lock: str

    @classmethod
    def read(cls, directory: Path, line: str) -> Self | None:
        """The publication of a line, None where there is none. Raises ConfigError where the file is damaged."""
        file = _file_of(directory, line)
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{file} is no publication of a run ({error}). Remove it; the next run then starts from nothing.") from None

    def conversations(self) -> dict[str, str]:
        """Path and hash of each file of conversations that it was made from."""
        prepare = yaml.safe_load(self.lock)["stages"].get("prepare", {})
        files = prepare.get("params", {}).get("params.yaml", {}).get("data", {}).get("conversations", [])
        return {dep["path"]: dep["md5"] for dep in prepare.get("deps", []) if dep["path"] in files}


def line_of(profile: str, overrides: Mapping[str, Any]) -> str:
    """The line of a configuration: an experiment must not make the nightly run's stages look changed."""
    if not overrides:
        return profile
    return f"{profile}-{hashlib.sha256(json.dumps(overrides, sort_keys=True, default=str).encode()).hexdigest()[:12]}"


def publish(root: Path, run_dir: Path, line: str) -> None:
    """Make a workspace what the next run of its line starts from."""
    publication = Publication(
        workspace=str(root), run_dir=str((root / run_dir).resolve()), lock=(root / "dvc.lock").read_text(encoding="utf-8")
    )
    with publications(root.parent):
        file = _file_of(root.parent, line)
        temporary = file.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(publication), indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, file)


def must_start(root: Path) -> bool:
    """Whether a workspace is new, or whoever brought it to where its line stands was killed."""
    return not (root / "dvc.lock").exists() or (root / STARTING).exists()


def start_from_published(root: Path, run_dir: Path, *lines: str) -> str | None:
    """Bring a new workspace to where the first of `lines` that is published stands; gives that line.

    Whatever can't be brought is left out: DVC then finds its stage changed, and it runs.
    """
    with publications(root.parent):  # also so that nothing is tidied away while it is being linked
        for line in lines:
            publication = Publication.read(root.parent, line)
            if publication is None:
                continue
            if publication.workspace == str(root):  # all that it was published with is there
                return None
            (root / STARTING).touch()
            _start_from(root, run_dir, publication)
            (root / STARTING).unlink()
            return line
    return None


def forget_lost_run(root: Path, run_dir: Path) -> None:
    """Where a linked run is gone with its workspace, train must run again: there is nothing to prove, promote or go on with."""
    link, lock = root / run_dir, root / "dvc.lock"
    if link.is_symlink() and not link.exists():
        temporary = lock.with_suffix(".tmp")
        temporary.write_text(dvc_stages.lock_without(lock.read_text(encoding="utf-8"), "train"), encoding="utf-8")
        os.replace(temporary, lock)
        link.unlink()  # last, for the link is what tells


def begin_own_run(root: Path, run_dir: Path, force: bool) -> None:
    """Where train must run, a linked run is another one's: it is neither gone on with nor written to."""
    link = root / run_dir
    # Only now: DVC doesn't know that train must run before the stages that it depends on have run.
    if link.is_symlink() and (force or not dvc_stages.is_up_to_date(root, "train")):
        link.unlink()


def _start_from(root: Path, run_dir: Path, publication: Publication) -> None:
    (root / "dvc.lock").write_text(_lock_to_start_from(publication, root / run_dir), encoding="utf-8")
    dvc_stages.check_out(root)
    for output in _uncached_outputs(root):
        source = Path(publication.workspace) / output
        if source.is_dir():
            # Hard links: no stage writes into a file of an output, it makes another one and renames it.
            shutil.rmtree(root / output, ignore_errors=True)
            shutil.copytree(source, root / output, copy_function=link_or_copy)
    if "train" not in dvc_stages.changed_stages(root):
        (root / run_dir).parent.mkdir(parents=True, exist_ok=True)
        (root / run_dir).unlink(missing_ok=True)
        (root / run_dir).symlink_to(publication.run_dir)


def _lock_to_start_from(publication: Publication, run_dir: Path) -> str:
    """Without the published run's directory, train must run: nothing could be proven, promoted or gone on with of what it had made.

    The same where the workspace has a run of its own, which a person's has whose dvc.lock was removed: no link can take its place.
    """
    has_its_own = run_dir.is_dir() and not run_dir.is_symlink()
    if Path(publication.run_dir).is_dir() and not has_its_own:
        return publication.lock
    return dvc_stages.lock_without(publication.lock, "train")


def _uncached_outputs(root: Path) -> list[str]:
    """From dvc.yaml itself, which DVC takes ten times as long to read."""
    stages = yaml.safe_load((root / "dvc.yaml").read_text(encoding="utf-8"))["stages"].values()
    outputs = [out for stage in stages for out in stage["outs"] if isinstance(out, dict)]
    return [path for out in outputs for path, options in out.items() if options.get("cache") is False]


@contextlib.contextmanager
def publications(directory: Path) -> Iterator[list[Path]]:
    """All publications, with nobody else reading, writing or tidying."""
    place = directory / DIRECTORY
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield sorted(place.glob("*.json"))


def _file_of(directory: Path, line: str) -> Path:
    return directory / DIRECTORY / f"{line}.json"
