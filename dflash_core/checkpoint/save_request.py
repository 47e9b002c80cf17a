"""A wish for a save out of turn, told to a run that goes on by a file in its directory."""

from contextlib import suppress
from pathlib import Path

NAME = "save_request"


def ask_for_save(run_dir: Path) -> None:
    """The run saves after its next step. A rejected checkpoint says that a file is wrong, and nothing of the live state."""
    (run_dir / NAME).touch()


def take_request(run_dir: Path) -> bool:
    """Whether somebody asked since the last time; the wish is taken off."""
    with suppress(OSError):  # none there, or not ours to take: a run doesn't end over a wish
        (run_dir / NAME).unlink()
        return True
    return False
