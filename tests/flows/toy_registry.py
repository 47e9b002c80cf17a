"""A model of the registry for the tests of promotion, and a client that dies in the middle of its changes."""

from collections.abc import Callable
from typing import Any

import pytest

from tasks import promotion
from tasks.registry import CANDIDATE, CHAMPION, PREVIOUS, Registry

MODEL = "toy"


def aliases(registry: Registry) -> dict[str, str]:
    found = {alias: registry.alias(alias) for alias in (CANDIDATE, CHAMPION, PREVIOUS)}
    return {alias: version.number for alias, version in found.items() if version is not None}


class Killed(BaseException):
    """As a SIGKILL between two calls: nothing of ours runs any more."""


class Mortal:
    """A client that dies before its n-th change of the registry."""

    def __init__(self, client: Any, lives: int) -> None:
        self._client, self.lives = client, lives

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if not name.startswith(("set_", "delete_", "create_", "log_", "finalize_")):
            return method

        def mortal(*arguments: Any, **named: Any) -> Any:
            if self.lives == 0:
                raise Killed
            self.lives -= 1
            return method(*arguments, **named)

        return mortal


def killed_at(step: int, act: Callable[[Registry], Any], uri: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether `act` was killed before its change number `step` of the registry; False where it has fewer."""
    real = promotion.mlflow_store.client_of
    mortal = Mortal(real(uri), step)
    with monkeypatch.context() as patched:
        patched.setattr(promotion.mlflow_store, "client_of", lambda _: mortal)
        try:
            act(Registry(uri, MODEL))
        except Killed:
            return True
    return False
