"""Output directories that appear whole: built beside their place, then renamed into it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced_directory(final: Path) -> Iterator[Path]:
    """Give an empty directory to write into; on success it takes the place of `final`, on error `final` is as before.

    Remains of a killed earlier run are removed first, so one run at a time may build a directory.
    """
    final = Path(final)
    building, previous = (final.with_name(f".{final.name}.{state}") for state in ("building", "previous"))
    if previous.exists() and not final.exists():
        previous.rename(final)  # killed between the two renames below
    for leftover in (building, previous):
        shutil.rmtree(leftover, ignore_errors=True)
    building.mkdir(parents=True)
    try:
        yield building
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    if final.exists():
        final.rename(previous)
    building.rename(final)
    shutil.rmtree(previous, ignore_errors=True)
