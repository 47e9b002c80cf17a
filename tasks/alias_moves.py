"""Moves the aliases of a registered model, so that a kill between any two steps is made good by the next one.

What is to be done is written into the registry first and taken out last; each step in between may be done twice.
"""

import datetime
from typing import Any

from dflash_core.errors import ConfigError, GateError
from tasks.registry import CANDIDATE, CHAMPION, PREVIOUS, Registry, Version

REPLACED_TAG = "dflash.replaced"  # of a version: the champion before it, none for the first
STATE_TAG = "dflash.state"


def promote(registry: Registry, version: Version, champion: Version | None) -> dict[str, Any]:
    """Make a version the champion, and the champion that it was compared with the previous one; gives the move.

    Raises:
        GateError: another one became champion since it was compared.
    """
    now = registry.alias(CHAMPION)
    if (now and now.number) != (champion and champion.number):
        raise GateError(
            f"{version.name} was compared with version {champion and champion.number}, and the champion is now "
            f"{now and now.number}. Promote it again, to be compared with that one."
        )
    before = champion and champion.number
    return _begin(registry, {"action": "promoted", "to": version.number, "from": before, "previous": before})


def roll_back(registry: Registry) -> tuple[Version, Version]:
    """Make the version before it the champion again; gives the one that goes and the one that comes.

    A rollback that was killed is ended, not done a second time.

    Raises:
        ConfigError: there is no champion, or none before it.
    """
    pending = finish_pending(registry)
    if pending and pending["action"] == "rolled back":
        return registry.version(pending["from"]), registry.version(pending["to"])
    champion, previous = registry.alias(CHAMPION), registry.alias(PREVIOUS)
    if champion is None or previous is None:
        missing = PREVIOUS if champion else CHAMPION
        raise ConfigError(f"{registry.model} has no version with the alias {missing}, so there is nothing to go back to. Promote one first.")
    before = previous.tags.get(REPLACED_TAG) or None
    _begin(registry, {"action": "rolled back", "to": previous.number, "from": champion.number, "previous": before})
    return champion, previous


def finish_pending(registry: Registry) -> dict[str, Any] | None:
    """End a move that a killed process began; gives it, None where there was none."""
    move = registry.move_under_way()
    if move is not None:
        _carry_out(registry, move)
    return move


def _begin(registry: Registry, move: dict[str, Any]) -> dict[str, Any]:
    move["at"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    registry.note_move(move)
    _carry_out(registry, move)
    return move


def _carry_out(registry: Registry, move: dict[str, Any]) -> None:
    """Every step sets what is to be, whatever is; the champion's alias is one write, so there is never none."""
    to, before, promotes = move["to"], move["from"], move["action"] == "promoted"
    if promotes:
        registry.tag(to, {REPLACED_TAG: before or ""})
    registry.point(PREVIOUS, move["previous"])
    registry.point(CHAMPION, to)
    candidate = registry.alias(CANDIDATE)
    if candidate and candidate.number == to:
        registry.point(CANDIDATE, None)
    registry.tag(to, {STATE_TAG: f"champion since {move['at']}"})
    if before is not None:
        left = {STATE_TAG: f"replaced by {to} at {move['at']}"}
        registry.tag(before, left if promotes else {STATE_TAG: f"rolled back at {move['at']}", "dflash.rolled_back": move["at"]})
    registry.note_move(None)
