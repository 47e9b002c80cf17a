"""What the measurement of an outage refuses to compare."""

import multiprocessing
from pathlib import Path
from types import SimpleNamespace

import pytest
import tracking_outage


class Ended:
    """A training that is over; the tracked one failed."""

    def __init__(self, target: object, args: tuple) -> None:
        self.exitcode = 1 if args[2].startswith("tracked") else 0

    def join(self) -> None:
        """At once."""


def test_a_training_that_failed_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: SimpleNamespace(Process=Ended))
    monkeypatch.setattr(tracking_outage, "take_turns", lambda trainings: {kind: [] for kind in trainings})
    monkeypatch.setattr(tracking_outage, "step_seconds", lambda run_dir, turns: [1.0])
    with pytest.raises(RuntimeError, match="pair 3 ended with {'tracked': 1}"):
        tracking_outage.train_pair({"plain": Path("plain"), "tracked": Path("tracked")}, {}, 3, "http://127.0.0.1:9")
