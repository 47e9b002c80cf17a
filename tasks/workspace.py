"""Makes a workspace: a directory in which the stages of one configuration run, with DVC's files beside them.

A workspace holds params.yaml (every key written out, paths absolute), dvc.yaml and .dvc; its build/ and runs/ stay from
one run to the next, so that only what changed is done again. Workspaces share one DVC cache, and a new one starts from what
the last completed run of its line has published (publication.py), so that runs needn't share a directory to share their work.
"""

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dflash_core.config import Config, load_config, parse_config
from dflash_core.errors import ConfigError
from tasks.dvc_stages import init_repository
from tasks.from_registry import is_named, with_files
from tasks.publication import STARTING, Publication, forget_lost_run, line_of, must_start, publish, start_from_published

PROJECT = Path(__file__).resolve().parent.parent
WORKSPACES = PROJECT / "workspaces"
DEFAULT_PROFILE = "demo"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
OF_A_RUN = "of-a-run"
PROJECT_PREFIX = "${project}/"
FIRST_CONVERSATIONS = "${data.conversations[0]}"


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """A directory ready for stages to run in; `line` is whose publication it starts from and replaces."""

    root: Path
    config: Config
    line: str = ""

    @property
    def log_file(self) -> Path:
        """The training log."""
        return self.root / self.config.run_dir / "train_log.jsonl"

    @property
    def proof(self) -> Path:
        """What the stage that proves checkpoints leaves."""
        return self.root / "build/proof.json"

    @property
    def report(self) -> Path:
        """The report that the last stage leaves."""
        return self.root / "build/report/report.html"

    def output_of(self, stage: str) -> Path:
        """File that takes the output of a stage's command."""
        return self.root / "logs" / f"{stage}.log"


def make_workspace(
    profile: str = DEFAULT_PROFILE,
    name: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    lines: Sequence[str] = (),
    from_nothing: bool = False,
    of_a_run: bool = False,
    directory: Path = WORKSPACES,
    cache: Path = PROJECT / ".dvc/cache",
) -> Workspace:
    """Write or refresh the workspace of a configuration; a new one starts from what its line, or its profile, has published.

    Args:
        profile: "demo" for the project's params.yaml, another name for profiles/NAME.yaml, or the path of a YAML file,
            whose relative paths then start at that file's directory.
        name: directory's name; None takes the profile's.
        overrides: values by dotted key, such as {"training.epochs": 2}.
        lines: its own, then those to start from where that isn't published; by default the profile's, with one for each set of overrides.
        from_nothing: a new workspace is empty, whatever was published.
        of_a_run: a run has made it for itself, so that it may be removed some day (tidying.py).

    Raises:
        ConfigError: no such profile, an invalid name or key, a configuration that `Config` refuses, or a flow runs there.
    """
    profile, config = configuration_of(profile, overrides)
    name = name or profile
    if not NAME.fullmatch(name):
        raise ConfigError(f"workspace name {name!r} is not made of at most 100 letters, digits, dots, dashes and underscores; choose another.")
    root = directory / name
    lines = lines or (line_of(profile, overrides or {}),)
    root.mkdir(parents=True, exist_ok=True)
    with in_use(root):
        config = with_files(config, directory, root / "params.yaml" if of_a_run else None)
        init_repository(root, cache)
        _write(root / "params.yaml", yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
        declaration = yaml.safe_load((PROJECT / "dvc.yaml").read_text(encoding="utf-8"))
        _write(root / "dvc.yaml", yaml.safe_dump(_with_files_listed(declaration, config), sort_keys=False))
        if of_a_run:
            (root / OF_A_RUN).touch()
        if not from_nothing and must_start(root):
            start_from_published(root, config.run_dir, *lines, profile)
        (root / STARTING).unlink(missing_ok=True)
        forget_lost_run(root, config.run_dir)
    return Workspace(root=root, config=config, line=lines[0])


def configuration_of(profile: str = DEFAULT_PROFILE, overrides: Mapping[str, Any] | None = None) -> tuple[str, Config]:
    """A profile's short name, and what it configures with the overrides, paths absolute. Raises ConfigError as `make_workspace`."""
    source = _profile_file(profile)
    base = PROJECT if source.parent == PROJECT / "profiles" else source.parent
    config = _resolved(parse_config(_with_overrides(_read_tree(source), overrides or {}), str(source)), base)
    return DEFAULT_PROFILE if source == PROJECT / "params.yaml" else source.stem, config


def publish_workspace(workspace: Workspace) -> None:
    """Let the next run of the line start from here; for a run that has completed."""
    publish(workspace.root, workspace.config.run_dir, workspace.line)


def open_workspace(name: str, *, directory: Path = WORKSPACES) -> Workspace:
    """A workspace that a flow has made before, as it stands; where none has this name, that of the last completed run of a line.

    Raises:
        ConfigError: there is neither, or its params.yaml is not valid.
    """
    root = directory / name
    if NAME.fullmatch(name) and not root.exists() and (publication := Publication.read(directory, name)):
        root = Path(publication.workspace)
    if not NAME.fullmatch(name) or not (root / "params.yaml").is_file():
        known = sorted(path.parent.name for path in directory.glob("*/params.yaml"))
        raise ConfigError(f"there is no workspace {name!r} in {directory}, expected one of {known}, or a profile with a completed run. Name one, or train first.")
    return Workspace(root=root, config=load_config(root / "params.yaml"))


@contextlib.contextmanager
def in_use(root: Path) -> Iterator[None]:
    """Keep others out of a workspace: two flows in one would write each other's files. Ends with the process, however it ends.

    Raises:
        ConfigError: another one is in it.
    """
    with (root / "flow.lock").open("a") as lock:  # so that who only looks whether it is in use doesn't make it younger
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{root} is in use by another flow. Wait for its end, or name another workspace.") from None
        yield


def _profile_file(profile: str) -> Path:
    if profile == DEFAULT_PROFILE:
        return PROJECT / "params.yaml"
    if profile.endswith((".yaml", ".yml")):
        return Path(profile).resolve()
    known = sorted(p.stem for p in (PROJECT / "profiles").glob("*.yaml"))
    if profile not in known:
        raise ConfigError(f"profile {profile!r} is none of {[DEFAULT_PROFILE, *known]}; choose one, or give the path of a YAML file.")
    return PROJECT / "profiles" / f"{profile}.yaml"


def _read_tree(source: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(source.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{source} can't be read as YAML: {' '.join(str(error).split())}. Correct the path or the file.") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{source} holds a {type(tree).__name__}, expected a mapping of sections. Correct the file.")
    return tree


def _with_overrides(tree: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Set dotted keys; whether a key exists is the configuration's to say."""
    for dotted, value in overrides.items():
        *parents, last = dotted.split(".")
        section = tree
        for key in parents:
            section = section.setdefault(key, {})
            if not isinstance(section, dict):
                raise ConfigError(f"override {dotted!r} goes into {key!r}, which is a value and no section. Correct the key.")
        section[last] = value
    return tree


def _resolved(config: Config, base: Path) -> Config:
    """The same configuration with absolute paths: a workspace lies elsewhere. The code is always this project's."""
    target = config.target.model_copy(update={"path": os.path.abspath(base / config.target.path)})
    conversations = tuple(os.path.abspath(base / p) for p in config.data.conversations)
    data = config.data.model_copy(update={"conversations": conversations})
    drafter = config.drafter.model_copy(update={"init_from": _placed(config.drafter.init_from, base)})
    gate = config.data_gate.model_copy(update={"reference": _placed(config.data_gate.reference, base)})
    prompt_sets = tuple(os.path.abspath(base / p) for p in config.evaluation.prompt_sets)
    evaluation = config.evaluation.model_copy(update={"prompt_sets": prompt_sets})
    sections = {"target": target, "data": data, "data_gate": gate, "drafter": drafter, "evaluation": evaluation}
    return config.model_copy(update={"project": str(PROJECT), **sections})


def _placed(path: str | None, base: Path) -> str | None:
    """Nothing, and what the registry has, are no paths."""
    return path if path is None or is_named(path) else os.path.abspath(base / path)


def _with_files_listed(declaration: dict[str, Any], config: Config) -> dict[str, Any]:
    """Name code, conversation files and prompt sets one by one, the drafter that training starts from and the gate's reference where there are.

    DVC's ignore file doesn't reach outside the workspace, so a directory of code would count its __pycache__ and never
    be up to date; and it can interpolate neither a list nor null.
    """
    for stage in declaration["stages"].values():
        listed: list[str] = []
        for dep in stage["deps"]:
            if dep == FIRST_CONVERSATIONS:
                listed += config.data.conversations
            elif dep.startswith(PROJECT_PREFIX):
                listed += _code_files(PROJECT / dep.removeprefix(PROJECT_PREFIX))
            else:
                listed.append(dep)
        stage["deps"] = listed
    if config.drafter.init_from is not None:
        for name in ("features", "train"):
            declaration["stages"][name]["deps"].append(config.drafter.init_from)
    if config.data_gate.reference is not None:
        declaration["stages"]["check-data"]["deps"].append(config.data_gate.reference)
    declaration["stages"]["evaluate"]["deps"] += config.evaluation.prompt_sets
    return declaration


def _code_files(place: Path) -> list[str]:
    """Files that hold code; DVC warns of each empty __init__.py, which can change nothing before it has a line."""
    files = [p for p in place.rglob("*") if p.suffix in (".py", ".j2") and p.stat().st_size] if place.is_dir() else [place]
    return sorted(str(p) for p in files)


def _write(path: Path, text: str) -> None:
    """Replace a file whole, so that a command that reads it never sees half of it."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
