"""Moves the aliases of a registered model, so that a kill between any two steps is made good by the next one.

What is to be done is written into the registry first and taken out last; each step in between may be done twice. A version
that somebody has deleted in MLflow counts as none.
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
        GateError: another one became champion since it was compared, or it was deleted.
    """
    if registry.version(version.number) is None:
        raise GateError(f"{version.name} was deleted in MLflow, so it can't become the champion. Promote again, to register its drafter anew.")
    now = registry.alias(CHAMPION)
    if (now and now.number) != (champion and champion.number):
        raise GateError(
            f"{version.name} was compared with version {champion and champion.number}, and the champion is now "
            f"{now and now.number}. Promote it again, to be compared with that one."
        )
    before = champion and champion.number
    return _begin(registry, {"action": "promoted", "to": version.number, "from": before, "previous": before})


def roll_back(registry: Registry) -> dict[str, Any]:
    """Make the version before it the champion again; gives the move.

    A rollback that was killed is ended, not done a second time.

    Raises:
        ConfigError: there is no champion, or none before it.
    """
    pending = finish_pending(registry)
    if pending and pending["action"] == "rolled back":
        return pending
    champion, previous = registry.alias(CHAMPION), registry.alias(PREVIOUS)
    if champion is None or previous is None:
        missing = PREVIOUS if champion else CHAMPION
        replaced = champion and champion.tags.get(REPLACED_TAG)
        gone = f" (version {replaced}, which it replaced, was deleted in MLflow)" if replaced and registry.version(replaced) is None else ""
        raise ConfigError(f"{registry.model} has no version with the alias {missing}{gone}, so there is nothing to go back to. Promote one first.")
    before = _before(registry, previous)
    return _begin(registry, {"action": "rolled back", "to": previous.number, "from": champion.number, "previous": before})


def finish_pending(registry: Registry) -> dict[str, Any] | None:
    """End a move that a killed process began; gives it, None where there was none, or the version that was to come is gone."""
    move = registry.move_under_way()
    if move is not None and _there(registry, move["to"]) is None:
        _give_up(registry)
        return None
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
    registry.point(PREVIOUS, _there(registry, move["previous"]))
    registry.point(CHAMPION, to)
    candidate = registry.alias(CANDIDATE)
    if candidate and candidate.number == to:
        registry.point(CANDIDATE, None)
    registry.tag(to, {STATE_TAG: f"champion since {move['at']}"})
    if _there(registry, before):
        left = {STATE_TAG: f"replaced by {to} at {move['at']}"}
        registry.tag(before, left if promotes else {STATE_TAG: f"rolled back at {move['at']}", "dflash.rolled_back": move["at"]})
    registry.note_move(None)


def _give_up(registry: Registry) -> None:
    """The champion stays, and `previous`, which may have moved already, is again the one before it."""
    if champion := registry.alias(CHAMPION):
        registry.point(PREVIOUS, _before(registry, champion))
    registry.note_move(None)


def _before(registry: Registry, version: Version) -> str | None:
    """Number of the champion that a version replaced."""
    return _there(registry, version.tags.get(REPLACED_TAG))


def _there(registry: Registry, number: str | None) -> str | None:
    """The number, if the registry has such a version."""
    return number if number and registry.version(number) else None
