"""Promotes a finished workspace's drafter, pulls the champion elsewhere, and holds the files to the exported ones.

    python benchmarks/pull_champion.py workspaces/demo --json pulled.json

Twice, in a copy of the project each: with the files as artifacts of the registry, and by reference into DVC's cache. The
workspace is removed before the first pull. Then `dflash-core gc --delete` clears the cache, into which an object was put
that nothing refers to: that one must go, all that the version refers to must stay, and a second pull must give the same. Every
pull is a process of its own in an empty directory. One prompt of the workspace's evaluation is decoded with the exported and
with the pulled files: the same tokens, and the rounds that evaluation.json has. Exit status 0 means that all of this holds.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import yaml
from results import leave
from services_site import copy_project, run_command

from dflash_core.checkpoint.exported import load_drafter
from dflash_core.config import load_config
from dflash_core.evaluation.decode import speculative_decode
from dflash_core.evaluation.questions import choose_questions
from dflash_core.target.model import Target
from dflash_core.target.part_files import stop_token_ids
from tasks.lineage import dvc_digests

FORMS = {"artifacts": (), "reference": ("--by-reference",)}
MODEL = "pulled"
COMMAND = ("-c", "from tasks.cli import entry; entry()")  # the console script dflash-core, of the copy
NOT_COPIED = ("features", "*.safetensors")  # of build/ and runs/: gigabytes that no promotion reads


def main(arguments: list[str] | None = None) -> int:
    """Both forms; see the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspace", type=Path, help="of a finished run; nothing in it is changed")
    parser.add_argument("--json", type=Path, help="file to write; default: print")
    options = parser.parse_args(arguments)
    workspace = options.workspace.resolve()
    with tempfile.TemporaryDirectory(prefix="pull-champion-") as directory:
        rows = {form: round_trip(Path(directory) / form, workspace, flags) for form, flags in FORMS.items()}
        pulled = {form: Path(directory) / form / "after gc" / "drafter" for form in FORMS}
        decoded = decode(workspace, {"exported": workspace / "build/drafter", **pulled})
    holds = all(all(value for value in row.values() if isinstance(value, bool)) for row in [*rows.values(), decoded])
    return leave({"forms": rows, "decoded": decoded, "holds": holds}, options.json, holds)


def round_trip(directory: Path, workspace: Path, flags: tuple[str, ...]) -> dict[str, Any]:
    """Promote, pull, collect, pull again; whether the files are the exported ones each time."""
    project = copy_project(directory / "project")
    place = project / "workspaces" / workspace.name
    shutil.copytree(workspace, place, ignore=shutil.ignore_patterns(*NOT_COPIED))
    shutil.copytree(workspace / "build/drafter", place / "build/drafter", dirs_exist_ok=True)
    shutil.copytree(_cache_of(workspace), project / ".dvc/cache")
    run_command(project, "-m", "flows.promote_drafter", f"--workspace={workspace.name}", f"--model={MODEL}", *flags)
    exported, referred = _contents(workspace / "build/drafter"), _objects_of(workspace / "dvc.lock", project / ".dvc/cache")
    shutil.rmtree(place)
    before = _contents(_pull(project, directory / "before gc"))
    nobodys = project / ".dvc/cache/files/md5/00/nobodys"
    nobodys.parent.mkdir(exist_ok=True)
    nobodys.write_text("what nothing refers to")
    said = run_command(project, *COMMAND, "gc", "--delete", "--days", "0").strip()
    left = {path.parent.name + path.name for path in (project / ".dvc/cache/files/md5").glob("*/*")}
    return {
        "files": {name: len(data) for name, data in exported.items()},
        "identical": before == exported,
        "identical_after_gc": _contents(_pull(project, directory / "after gc")) == exported,
        "referred_to_is_kept": bool(referred) and referred <= left,
        "nothing_else_is_kept": left <= referred,
        "gc": said,
    }


def decode(workspace: Path, drafters: dict[str, Path]) -> dict[str, Any]:
    """The first prompt of the workspace's evaluation with each of the drafters, as its stage does it."""
    config = load_config(workspace / "params.yaml")
    noted = json.loads((workspace / "build/evaluation/evaluation.json").read_text(encoding="utf-8"))["prompts"][0]
    prompt = next(next(iter(choose_questions(config, workspace, workspace / "build/prepared").ask())))
    target = Target.load(config.target.model_copy(update={"dtype": config.evaluation.dtype}))
    stops, found = stop_token_ids(target.model, target.tokenizer), {}
    for name, directory in drafters.items():
        drafter = load_drafter(directory, getattr(torch, config.evaluation.dtype), target.device)
        answer = speculative_decode(target, drafter, prompt.prompt_ids, config.evaluation.max_new_tokens, stops, config.evaluation.block_size)
        found[name] = (answer.tokens, answer.rounds)
    return {
        "prompt": prompt.sample_id,
        "num_tokens": len(found["exported"][0]),
        "num_rounds": len(found["exported"][1]),
        "same_tokens_and_rounds": len(set(found.values())) == 1,
        "rounds_as_evaluated": prompt.sample_id == noted["sample_id"] and list(found["exported"][1]) == noted["rounds"],
    }


def _pull(project: Path, directory: Path) -> Path:
    directory.mkdir()
    run_command(project, *COMMAND, "pull", f"{MODEL}@champion", "--out", str(directory / "drafter"))
    return directory / "drafter"


def _contents(directory: Path) -> dict[str, bytes]:
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def _cache_of(workspace: Path) -> Path:
    """From the text of its .dvc/config, which is an INI file that DVC indents."""
    lines = (workspace / ".dvc/config").read_text(encoding="utf-8").splitlines()
    return Path(next(line.partition("=")[2].strip() for line in lines if line.strip().startswith("dir =")))


def _objects_of(lock: Path, cache: Path) -> set[str]:
    """Objects of the cache that a dvc.lock names, the files of its directories with them; by its own reading, not by gc's."""
    found = set()
    for digest in dvc_digests(lock).values():
        listing = cache / "files/md5" / digest[:2] / digest[2:]
        if not listing.is_file():
            continue  # a dependency, or an output that isn't cached
        found.add(digest)
        found |= {entry["md5"] for entry in yaml.safe_load(listing.read_text(encoding="utf-8"))} if digest.endswith(".dir") else set()
    return found


if __name__ == "__main__":
    sys.exit(main())
