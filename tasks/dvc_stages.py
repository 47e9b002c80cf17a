"""What DVC knows about the stages of a workspace: the declaration, whether one is up to date, committing and storing its outputs.

The only importer of dvc. dvc.repo.Repo is not a documented-stable interface, so it stays behind this file and is pinned.
DVC never starts a stage here: a `dvc repro` that is killed leaves its command running.
"""

import contextlib
import io
import json
import logging
import os
import shlex
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from dvc.config import Config
from dvc.exceptions import DvcException
from dvc.lock import LockError
from dvc.repo import Repo, lock_repo
from dvc.rwlock import RWLockFileCorruptedError
from dvc.stage.serialize import to_lockfile
from ruamel.yaml import YAML

from dflash_core.errors import ConfigError

# DVC resolves a stage's name against the process's working directory, which is one for all threads.
_ONE_AT_A_TIME = threading.Lock()
# DVC itself waits 3 s for its lock and fails at once on a busy path; a person's `dvc status` takes half a second.
ATTEMPTS = 10
PAUSE_SECONDS = 1.0

Result = TypeVar("Result")

logging.getLogger("dvc").setLevel(logging.WARNING)


@dataclass(frozen=True)
class DeclaredStage:
    """A stage as dvc.yaml declares it."""

    name: str
    command: tuple[str, ...]


def init_repository(root: Path, cache: Path) -> None:
    """Make `root` a DVC repository without git, with a shared cache; does nothing where it is one."""
    settings_file = root / ".dvc/config"
    if settings_file.is_file() and "[cache]" in settings_file.read_text(encoding="utf-8"):  # written last: a kill before it may not count
        return
    with _ONE_AT_A_TIME:
        repo = Repo.init(str(root), no_scm=True, force=True)
        with repo.config.edit("repo") as settings:
            settings["core"]["analytics"] = False
            settings["core"]["check_update"] = False
            # Never hard links, whatever the user's own settings say: a write into such an output, which root may do
            # although it is read-only, changes the cache under the same hash. A reflink costs no space and is safe.
            settings["cache"] = {"dir": str(cache), "type": ["reflink", "copy"]}
        repo.close()


def declared_stage(root: Path, name: str) -> DeclaredStage:
    """The declaration of one stage, its command split into arguments.

    Raises:
        ConfigError: dvc.yaml is not valid or has no such stage.
    """

    def read(repo: Repo) -> str:
        (stage,) = repo.stage.collect(name)
        return stage.cmd

    return DeclaredStage(name=name, command=tuple(shlex.split(_plain_command(root, name) or _ask(root, read))))


def _plain_command(root: Path, name: str) -> str | None:
    """From dvc.yaml itself, which DVC takes half a second to read; None where DVC must say: no such stage, or a variable in its command."""
    try:
        tree = yaml.load((root / "dvc.yaml").read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
        command = tree["stages"][name]["cmd"]
    except (OSError, ValueError, yaml.YAMLError, LookupError, TypeError):
        return None
    return command if isinstance(command, str) and "${" not in command else None


def is_up_to_date(root: Path, name: str) -> bool:
    """Whether the stage's deps, params, command and outputs are those of its last commit."""
    return not _ask(root, lambda repo: repo.status(targets=[name], with_deps=False))


def changed_stages(root: Path) -> set[str]:
    """Stages that aren't up to date, by one question: it takes as long as one for a single stage, for DVC parses all its files each time."""
    return {name.rpartition(":")[2] for name in _ask(root, lambda repo: repo.status())}


def commit_outputs(root: Path, name: str) -> dict[str, str]:
    """Hash the stage's outputs, put those that are to be cached into the cache, note all in dvc.lock. Gives each output's hash."""

    def commit(repo: Repo) -> dict[str, str]:
        with lock_repo(repo):
            (stage,) = repo.stage.collect(name)
            # Not Repo.commit: it also records the run in DVC's run cache, which copies outputs declared `cache: false`
            # into the cache (dvc/stage/cache.py, StageCache.save). `dvc repro` records only runs without such outputs.
            stage.save(run_cache=all(out.use_cache for out in stage.outs))
            stage.commit()
            _note(root / "dvc.lock", to_lockfile(stage))
        return {out.def_path: str(out.hash_info.value) for out in stage.outs}

    return _ask(root, commit)


def lock_without(text: str, name: str) -> str:
    """The text of a dvc.lock as if a stage had never run."""
    yaml_file, kept = _lock_yaml(), io.StringIO()
    tree = yaml_file.load(text)
    tree["stages"].pop(name, None)
    yaml_file.dump(tree, kept)
    return kept.getvalue()


def _lock_yaml() -> YAML:
    """DVC's own reader and writer carries comments along, of which there are none, and takes ten times as long."""
    yaml_file = YAML(typ="safe")  # libyaml's, by YAML 1.2 as DVC reads it: 12e34 is a number there, which PyYAML wouldn't quote
    yaml_file.default_flow_style, yaml_file.sort_base_mapping_type_on_output = False, False
    return yaml_file


def _note(lock: Path, entry: Mapping[str, Any]) -> None:
    """Write a stage's entry into dvc.lock."""
    yaml_file = _lock_yaml()
    tree = yaml_file.load(lock) if lock.exists() else {"schema": "2.0"}
    tree.setdefault("stages", {}).update(json.loads(json.dumps(entry)))  # plain dicts
    partial = lock.with_name(f"{lock.name}.{os.getpid()}")
    yaml_file.dump(tree, partial)
    os.replace(partial, lock)


def add_output(root: Path, name: str) -> str:
    """Put a file or directory that no stage makes into the cache, with NAME.dvc beside it as its pointer; gives its hash."""

    def add(repo: Repo) -> str:
        (stage,) = repo.add(name)
        return str(stage.outs[0].hash_info.value)

    return _ask(root, add)


def check_out(root: Path) -> None:
    """Put the outputs that dvc.lock names in place, as far as the cache has them."""
    _ask(root, lambda repo: repo.checkout(force=True, allow_missing=True))


def push(root: Path, project: Path) -> int | None:
    """Store the outputs in the project's DVC remote; gives how many files it lacked, None where the project has no remote."""
    remote = _remote_of(project)
    return _ask(root, lambda repo: repo.push(), remote) if remote else None


def fetch(digest: str, cache: Path, project: Path) -> bool:
    """Bring what has this digest from the project's DVC remote into the cache, as far as it has it; False where the project has none.

    Raises:
        ConfigError: the remote can't be reached.
    """
    remote = _remote_of(project)
    if not remote:
        return False
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        init_repository(root, cache)
        pointer = {"outs": [{"md5": digest, "hash": "md5", "path": "files"}]}  # all that DVC needs: no history, no stage
        (root / "files.dvc").write_text(yaml.safe_dump(pointer), encoding="utf-8")
        _ask(root, lambda repo: repo.fetch(), remote)
    return True


def remote_url(project: Path) -> str | None:
    """Where the project's DVC remote is, None where it has none."""
    return next((settings["url"] for settings in _remote_of(project).get("remote", {}).values()), None)


def _remote_of(project: Path) -> dict[str, Any]:
    """The default remote that the project's own .dvc/config or config.local sets, for the repositories of its workspaces."""
    settings = Config(dvc_dir=str(project / ".dvc"))
    name = settings["core"].get("remote")
    return {"core": {"remote": name}, "remote": {name: dict(settings["remote"][name])}} if name else {}


def _ask(root: Path, question: Callable[[Repo], Result], settings: Mapping[str, Any] | None = None) -> Result:
    """Put a question to a freshly opened repository, again where another process holds its lock."""
    for attempt in range(ATTEMPTS):
        try:
            with _opened(root, settings) as repo:
                return question(repo)
        except LockError as error:
            if attempt == ATTEMPTS - 1:
                raise ConfigError(f"{root} is locked by another DVC process after {ATTEMPTS} tries: {_line(error)} Wait for it.") from None
            time.sleep(PAUSE_SECONDS)
        except RWLockFileCorruptedError:  # its writer met a full disk or a kill; DVC refuses it for ever, and nobody else can write it
            (root / ".dvc/tmp/rwlock").unlink(missing_ok=True)
        except DvcException as error:
            raise ConfigError(f"DVC refuses {root}: {_line(error)} Correct dvc.yaml, params.yaml or the file it names.") from None
        except Exception as error:
            if not (settings and _is_of_remote(error)):
                raise
            raise ConfigError(f"DVC's remote refuses, or can't be reached: {_line(error)} Start it, or correct .dvc/config.") from None
    raise AssertionError(ATTEMPTS)


def _is_of_remote(error: Exception) -> bool:
    """Whether a network raised it, or one of the many packages that DVC reaches remotes by."""
    package = type(error).__module__.split(".")[0]
    if package == "builtins":
        return isinstance(error, ConnectionError | TimeoutError)
    return package not in ("dflash_core", "tasks", "prefect")  # a time limit is a TimeoutError as well


@contextlib.contextmanager
def _opened(root: Path, settings: Mapping[str, Any] | None = None) -> Iterator[Repo]:
    with _ONE_AT_A_TIME, contextlib.chdir(root), Repo(str(root), config=settings and dict(settings)) as repo:
        yield repo


def _line(error: BaseException) -> str:
    causes = [str(error)]
    while error.__cause__ is not None:
        error = error.__cause__
        causes.append(str(error))
    return " ".join(": ".join(causes).split()) + "."
