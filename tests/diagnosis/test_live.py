"""The watch tells a fault within a few steps of it, once, and stops only where the policy says so."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from dflash_core.diagnosis.finding import Finding
from dflash_core.diagnosis.live import EVERY, SETTLED, Watch, watch


@dataclass(frozen=True)
class Row:
    """What the watch reads of a step record."""

    step: int
    loss: float
    grad_norm: float = 1.0
    lr: float = 1e-4
    streak: float | None = 1.5
    tok_per_s: float = 1000.0
    hs_queue_depth: int = 4
    prefetch_queue_depth: int = 8


def losses(n: int = 1500) -> np.ndarray:
    return (1 + 5 * np.exp(-np.arange(n) / 100)) * (1 + 0.02 * np.random.default_rng(0).normal(size=n))


def fed(watcher: Watch, loss: np.ndarray, first: int = 0) -> list[tuple[int, Finding]]:
    """Findings with the step at which each was told."""
    return [(i, f) for i, v in enumerate(loss, start=first) for f in watcher.feed(Row(i, float(v)))]


def test_a_healthy_run_tells_nothing() -> None:
    assert list(watch(Row(i, v) for i, v in enumerate(losses()))) == []


def test_nan_stops_at_its_own_step() -> None:
    loss = losses()
    loss[700] = np.nan
    watcher, stopped = Watch(), None
    for i, v in enumerate(loss):
        if watcher.must_stop(watcher.feed(Row(i, v))):
            stopped = i
            break
    assert stopped == 700
    assert [f.kind for f in watch(Row(i, v) for i, v in enumerate(loss))] == ["nonfinite"]


def test_a_loss_that_stays_high_is_told_once_soon_and_stops_nothing() -> None:
    loss = losses()
    loss[830:] += 3.0
    told = fed(Watch(budget=np.inf), loss)
    assert told and abs(told[0][1].step - 830) <= 3 and told[0][0] <= 831 + SETTLED
    assert len([f for _, f in told if f.kind == told[0][1].kind]) == 1
    assert not Watch().must_stop(f for _, f in told) and Watch(frozenset({told[0][1].kind})).must_stop([told[0][1]])


def test_a_spike_of_one_line_is_not_taken_for_one_that_stays() -> None:
    loss = losses()
    loss[830] += 3.0
    assert fed(Watch(budget=np.inf), loss) == []


def test_looks_keep_to_their_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reading of the clock is 1 s after the last: a look takes one, so that at 1 % of the time the next is a hundred readings later."""
    seconds = itertools.count()
    watcher, looks = Watch(budget=0.01, clock=lambda: float(next(seconds))), list[int]()
    monkeypatch.setattr(watcher, "_look", lambda: looks.append(watcher._count) or [])
    fed(watcher, losses(1000))
    assert looks[0] == EVERY and len(looks) == 3 and min(np.diff(looks)) >= EVERY + 95


def test_a_resumed_session_knows_what_was_told_and_what_went_before() -> None:
    loss = losses()
    loss[700:] += 3.0
    first = Watch(budget=np.inf)
    told = fed(first, loss[:1000])
    again = Watch(budget=np.inf)
    again.recall([Row(i, float(v)) for i, v in enumerate(loss[:1000])], [f for _, f in told])
    assert fed(again, loss[1000:], first=1000) == []
    blind = Watch(budget=np.inf)
    blind.recall([Row(i, float(v)) for i, v in enumerate(losses()[:1000])])
    blind.happened("resume", 1000)
    jump = fed(blind, losses()[1000:1050] + 3.0, first=1000)
    assert [f.severity for _, f in jump] == ["fault"] and abs(jump[0][1].step - 1000) <= 3
