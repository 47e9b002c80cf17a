"""What is told of promotions: a drafter became the champion, went back, or was refused; each once for what really happened."""

from collections.abc import Mapping
from typing import Any

from tasks.events import DRAFTER_PROMOTED, DRAFTER_REFUSED, DRAFTER_ROLLED_BACK, tell
from tasks.registry import Version

MOVED = {"promoted": DRAFTER_PROMOTED, "rolled back": DRAFTER_ROLLED_BACK}


def tell_of_move(model: str, move: Mapping[str, Any] | None) -> None:
    """The champion is another one; nothing is told where nothing moved."""
    if move is not None:
        tell(MOVED[move["action"]], f"drafter.{model}", model=model, champion=move["to"], before=move["from"])


def tell_of_refusal(version: Version, reason: str) -> None:
    """A gate or a person said no."""
    tell(DRAFTER_REFUSED, f"drafter.{version.model}", model=version.model, version=version.number, reason=reason)
