"""Says what this machine lacks: each check gives what was found and what is needed."""

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dflash_core.config import Config, load_config
from dflash_core.errors import ConfigError

Verdict = Literal["ok", "weak", "missing"]
OLDEST_PYTHON = (3, 11)
MISSING_EXIT_CODE = 2
GIB = 2**30
# Of the demo: a 0.3 GB target, its features, three checkpoints, and two caches of the outputs; its peak memory is 6.2 GB.
DISK_GIB = 10
MEMORY_GIB = 6
CORES = 2
# Beside these, anything outside the core set is needed by the flow only.
CORE = ("torch", "transformers", "accelerate", "safetensors", "gguf", "numpy", "pyarrow", "pydantic", "pyyaml", "typer", "rich", "psutil")
FLOW = ("matplotlib", "jinja2", "prefect", "mlflow", "dvc")
COLOURS: dict[Verdict, str] = {"ok": "green", "weak": "yellow", "missing": "red"}


@dataclass(frozen=True)
class Check:
    """One thing the work needs."""

    what: str
    verdict: Verdict
    found: str
    needed: str


def diagnose(params: Path) -> tuple[Check, ...]:
    """Every check, for the configuration in `params` where there is one."""
    config, configuration = _configuration(params)
    return (
        _python(),
        *_packages(),
        _accelerator(),
        _amount("cores", os.cpu_count() or 1, CORES, str),
        _amount("memory", psutil.virtual_memory().available / GIB, MEMORY_GIB, lambda v: f"{v:.0f} GiB free"),
        _amount("disk", shutil.disk_usage(".").free / GIB, DISK_GIB, lambda v: f"{v:.0f} GiB free"),
        _writable(Path()),
        Check("git", "ok" if shutil.which("git") else "weak", shutil.which("git") or "none", "git, to version what you change"),
        configuration,
        *(_inputs(config) if config else ()),
    )


def print_diagnosis(params: Path) -> int:
    """Print the checks as a table; 2 where something is missing, else 0."""
    checks = diagnose(params)
    table = Table("", "what", "found", "needed")
    for check in checks:
        table.add_row(f"[{COLOURS[check.verdict]}]{check.verdict}[/]", check.what, escape(check.found), escape(check.needed))
    console = Console()
    console.print(table)
    missing = [check.what for check in checks if check.verdict == "missing"]
    console.print(f"Missing: {', '.join(missing)}." if missing else "Nothing is missing.")
    return MISSING_EXIT_CODE if missing else 0


def _python() -> Check:
    verdict: Verdict = "ok" if sys.version_info[:2] >= OLDEST_PYTHON else "missing"
    return Check("python", verdict, sys.version.split()[0], "3.11 or newer (Prefect 3.9 needs it)")


def _packages() -> Iterator[Check]:
    """Versions are compared with what this project's metadata asks for; no package is imported for it."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        lines = importlib.metadata.requires("dflash-pipeline") or []
    except importlib.metadata.PackageNotFoundError:
        yield Check("dflash-pipeline", "weak", "not installed", "pip install --no-deps -e . for the dflash-core command")
        lines = list(CORE + FLOW)
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.marker is None and requirement.name.lower() in CORE + FLOW:
            yield _package(requirement.name, str(requirement.specifier), requirement.specifier.contains)


def _package(name: str, specifier: str, accepts: Callable[..., bool]) -> Check:
    needed = f"{name} {specifier}".strip()
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(name, "missing", "none", f"{needed}: pip install -r requirements.lock")
    return Check(name, "ok" if accepts(found, prereleases=True) else "weak", found, needed)


def _accelerator() -> Check:
    try:
        import torch
    except ImportError:
        return Check("accelerator", "weak", "torch is missing", "a GPU for large targets")
    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
        return Check("accelerator", "ok", f"{names}, CUDA {torch.version.cuda}", "a GPU for large targets")
    return Check("accelerator", "weak", f"none seen by torch {torch.__version__}", "a GPU for large targets")


def _amount(what: str, found: float, needed: float, show: Callable[[float], str]) -> Check:
    return Check(what, "ok" if found >= needed else "weak", show(found), f"{show(needed)}, for the demo")


def _writable(directory: Path) -> Check:
    good = os.access(directory, os.W_OK)
    return Check("working directory", "ok" if good else "missing", f"{directory.resolve()}", "write permission, for build/ and runs/")


def _configuration(params: Path) -> tuple[Config | None, Check]:
    try:
        return load_config(params), Check("configuration", "ok", str(params), "a valid params.yaml")
    except ConfigError as error:
        return None, Check("configuration", "missing", str(error), "a valid params.yaml")


def _inputs(config: Config) -> Iterator[Check]:
    target = Path(config.target.path)
    good = (target / "config.json").is_file() and any(target.glob("*.safetensors"))
    how = "a directory with config.json and *.safetensors: make demo, or dflash-core convert"
    yield Check("target", "ok" if good else "missing", f"{target}" if good else f"nothing usable in {target}", how)
    for path in map(Path, config.data.conversations):
        yield Check("conversations", "ok" if path.is_file() else "missing", str(path), "a JSONL, JSON or Parquet file")
