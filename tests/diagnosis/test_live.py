"""The watch tells a fault within a few steps of it, once, and stops only where the policy says so."""

from dataclasses import dataclass

import numpy as np

from dflash_core.diagnosis.live import Watch, watch


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


def test_a_spike_that_stays_is_told_once_and_stops_nothing() -> None:
    loss = losses()
    loss[800:] += 3.0
    found = [f for f in watch(Row(i, v) for i, v in enumerate(loss))]
    assert found and abs(found[0].step - 800) <= 3
    assert len([f for f in found if f.kind == found[0].kind]) == 1
