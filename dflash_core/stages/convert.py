"""Command `convert`: a target's directory from a GGUF file, or a tiny random one."""

import importlib.util
from pathlib import Path

from dflash_core.errors import ConfigError, DataError
from dflash_core.target.convert import convert_gguf
from dflash_core.target.tiny import make_tiny_target


def run(out: Path, gguf: Path | None, package: str | None, tiny: bool) -> str:
    """Make `out`; gives the line that a person sees. Raises ConfigError unless one source is named."""
    if sum((gguf is not None, package is not None, tiny)) != 1:
        raise ConfigError("convert takes one of --gguf FILE, --package NAME and --tiny, found none or several. Name one.")
    if tiny:
        make_tiny_target(out, seed=0)
        return f"a tiny random target is in {out}"
    source = gguf or gguf_of_package(str(package))
    convert_gguf(source, out)
    return f"{source.name} is in {out}, in transformers' format"


def gguf_of_package(package: str) -> Path:
    """The GGUF file that an installed package ships. The package isn't imported: it may need another runtime.

    Raises:
        DataError: no such package, or not exactly one file in it.
    """
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):  # a dotted name whose parent is missing; an empty one
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise DataError(f"package {package} is not installed, expected one that ships a GGUF file. Install it.")
    files = [path for place in spec.submodule_search_locations for path in sorted(Path(place).glob("*.gguf"))]
    if len(files) != 1:
        raise DataError(f"package {package} ships {len(files)} GGUF files, expected 1. Name the file with --gguf.")
    return files[0]
