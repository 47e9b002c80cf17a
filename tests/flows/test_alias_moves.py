"""Champion, previous and candidate: moved, rolled back, and made good after a kill."""

from typing import Any

import pytest

from dflash_core.errors import ConfigError, GateError
from tasks import alias_moves
from tasks.promotion import Judgement, conclude
from tasks.registry import CANDIDATE, CHAMPION, PREVIOUS, Registry, Version

from .toy_registry import MODEL, aliases, killed_at


@pytest.fixture
def registry(uri: str) -> Registry:
    return Registry(uri, MODEL)


@pytest.fixture
def three(registry: Registry) -> tuple[Registry, list[Version]]:
    """Three versions without files, of which the second is the champion after the first, and the third passed all gates."""
    versions = [registry.create(f"dvc:///{number}", "", None, {}, "") for number in "123"]
    alias_moves.promote(registry, versions[0], None)
    alias_moves.promote(registry, versions[1], versions[0])
    registry.point(CANDIDATE, "3")
    return registry, versions


def test_a_promotion_killed_between_any_two_steps_is_made_good(three: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (registry, versions), step = three, 0
    judgement = Judgement(versions[2], versions[1], ())
    while killed_at(step, lambda mortal: conclude(mortal, judgement), registry.uri, monkeypatch):
        assert aliases(registry)[CHAMPION] in ("2", "3"), "there is a champion at every moment"
        if not alias_moves.finish_pending(registry):
            assert step == 0, "what has begun is noted"
            conclude(registry, judgement)
        assert aliases(registry) == {CHAMPION: "3", PREVIOUS: "2"} and registry.move_under_way() is None
        for alias, number in ((CHAMPION, "2"), (PREVIOUS, "1"), (CANDIDATE, "3")):
            registry.point(alias, number)
        step += 1
    assert step >= 7 and aliases(registry) == {CHAMPION: "3", PREVIOUS: "2"}


def test_rollback_as_far_back_as_there_was_a_champion(three: Any) -> None:
    registry, versions = three
    alias_moves.promote(registry, versions[2], versions[1])
    move = alias_moves.roll_back(registry)
    assert (move["from"], move["to"]) == ("3", "2") and aliases(registry) == {CHAMPION: "2", PREVIOUS: "1"}
    assert "dflash.rolled_back" in registry.version("3").tags
    alias_moves.roll_back(registry)
    assert aliases(registry) == {CHAMPION: "1"}
    with pytest.raises(ConfigError, match="nothing to go back to"):
        alias_moves.roll_back(registry)


def test_a_rollback_that_was_killed_is_ended_and_not_done_twice(three: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    registry, versions = three
    alias_moves.promote(registry, versions[2], versions[1])
    assert killed_at(3, alias_moves.roll_back, registry.uri, monkeypatch), "after the champion's alias has moved"
    assert aliases(registry)[CHAMPION] == "2"
    alias_moves.roll_back(registry)
    assert aliases(registry) == {CHAMPION: "2", PREVIOUS: "1"}


def test_a_champion_that_came_meanwhile_is_not_overwritten(three: Any) -> None:
    registry, versions = three
    waiting = Judgement(versions[2], versions[0], ())  # for a person's approval, say, while the second became champion
    with pytest.raises(GateError, match="is now 2"):
        conclude(registry, waiting)
    assert aliases(registry)[CHAMPION] == "2"


def delete(registry: Registry, number: str) -> None:
    registry.client.delete_model_version(MODEL, number)


def test_a_rollback_past_which_a_version_was_deleted_leaves_none_before_it(three: Any) -> None:
    registry, versions = three
    alias_moves.promote(registry, versions[2], versions[1])
    delete(registry, "1")
    alias_moves.roll_back(registry)
    assert aliases(registry) == {CHAMPION: "2"} and registry.move_under_way() is None


def test_a_rollback_to_a_version_that_was_deleted_is_refused_and_leaves_nothing(three: Any) -> None:
    registry, versions = three
    delete(registry, "1")
    with pytest.raises(ConfigError, match="version 1, which it replaced, was deleted in MLflow"):
        alias_moves.roll_back(registry)
    assert registry.move_under_way() is None
    alias_moves.promote(registry, versions[2], versions[1])
    assert aliases(registry) == {CHAMPION: "3", PREVIOUS: "2"}


@pytest.mark.parametrize(
    ("action", "deleted", "ends"),
    [
        ("promotion", "1", {CHAMPION: "3", PREVIOUS: "2"}),
        ("promotion", "2", {CHAMPION: "3"}),
        ("promotion", "3", {CHAMPION: "2", PREVIOUS: "1"}),
        ("rollback", "1", {CHAMPION: "2"}),
        ("rollback", "2", {CHAMPION: "3"}),
        ("rollback", "3", {CHAMPION: "2", PREVIOUS: "1"}),
    ],
)
def test_a_killed_move_ends_whichever_version_was_deleted(
    three: Any, action: str, deleted: str, ends: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, versions = three
    judgement = Judgement(versions[2], versions[1], ())
    if action == "rollback":
        conclude(registry, judgement)
    act, step = (alias_moves.roll_back, 2) if action == "rollback" else (lambda mortal: conclude(mortal, judgement), 3)
    assert killed_at(step, act, registry.uri, monkeypatch), "after previous has moved, before the champion"
    delete(registry, deleted)
    alias_moves.finish_pending(registry)
    assert aliases(registry) == ends and registry.move_under_way() is None


def test_a_version_that_was_deleted_meanwhile_is_not_promoted(three: Any) -> None:
    registry, versions = three
    delete(registry, "3")
    with pytest.raises(GateError, match="version 3 of toy was deleted in MLflow"):
        conclude(registry, Judgement(versions[2], versions[1], ()))
    assert aliases(registry) == {CHAMPION: "2", PREVIOUS: "1"} and registry.move_under_way() is None
