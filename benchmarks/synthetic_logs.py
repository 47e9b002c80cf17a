"""Makes training logs with known faults: curves and noise as in real logs, one fault of a known kind, place and size.

The noise models are fitted to public logs by the residual from a running median: its spread as a share of the level,
the autocorrelation of neighbouring lines, the share of lines beyond four sigma and how far those go. Named by the kind of
run they came from.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from dflash_core.diagnosis.events import Events
from dflash_core.diagnosis.table import Column, Table


@dataclass(frozen=True, kw_only=True)
class Noise:
    """How a run's loss falls and scatters.

    Fields:
        first, last: level at the beginning and the end.
        spread: sigma of a line as a share of the level.
        neighbour: correlation of a line with the one before.
        tail: share of lines beyond four sigma upwards; tail_sigma: how far beyond, on average.
    """

    first: float
    last: float
    spread: float
    neighbour: float = 0.0
    tail: float = 0.0
    tail_sigma: float = 1.0


NOISES = {
    "drafter, 2,000 lines": Noise(first=24.8, last=3.76, spread=0.035, tail=0.002, tail_sigma=0.8),
    "pretraining with accumulation": Noise(first=12.0, last=2.74, spread=0.022),
    "translation, one batch a line": Noise(first=7.1, last=2.2, spread=0.114, tail=0.002, tail_sigma=0.4),
    "8B fine-tuning": Noise(first=2.5, last=1.76, spread=0.017, neighbour=0.23),
    "1B pretraining": Noise(first=22.6, last=2.7, spread=0.054, tail=0.015, tail_sigma=2.5),
    "124M, 4-bit": Noise(first=10.8, last=3.06, spread=0.035, tail=0.012, tail_sigma=3.0),
    "block drafter": Noise(first=10.4, last=0.71, spread=0.025, neighbour=0.2),
    "125M pretraining": Noise(first=8.55, last=2.18, spread=0.035),
}


@dataclass(kw_only=True)
class Run:
    """A log being made, and what was put into it."""

    noise: str
    steps: np.ndarray
    loss: np.ndarray
    sigma: np.ndarray
    columns: dict[str, np.ndarray]
    rows: np.ndarray
    eval_rows: np.ndarray
    eval_loss: np.ndarray
    events: Events = field(default_factory=Events)
    kind: str = "healthy"
    size: float = 0.0
    first: float = 0.0
    last: float = 0.0

    def table(self) -> Table:
        """Rows in the file's order."""
        order = self.rows
        columns = {"step": self.steps, "loss": self.loss, **self.columns}
        made = {n: Column(values=v[order], present=np.ones(len(order), bool)) for n, v in columns.items()}
        val = np.full(len(self.steps), np.nan)
        val[self.eval_rows] = self.eval_loss
        made["val_loss"] = Column(values=val[order], present=np.isfinite(val[order]))
        return Table(format="synthetic", columns=made, lines=np.arange(1, len(order) + 1))


def healthy(random: np.random.Generator, rows: tuple[int, int] = (300, 4000)) -> Run:
    """A run without a fault, with all columns that a log may have."""
    name = list(NOISES)[int(random.integers(len(NOISES)))]
    noise = NOISES[name]
    n = int(np.exp(random.uniform(*np.log(rows))))
    t = np.arange(n) / n
    fall = (1 + t / random.uniform(0.01, 0.1)) ** -random.uniform(0.6, 1.6)
    fall = (fall - fall[-1]) / (fall[0] - fall[-1])
    level = noise.last + (noise.first - noise.last) * fall
    sigma = noise.spread * level
    white = random.normal(size=n)
    for i in range(1, n):
        white[i] = noise.neighbour * white[i - 1] + np.sqrt(1 - noise.neighbour**2) * white[i]
    wild = random.random(n) < noise.tail
    white[wild] = 4 + random.exponential(noise.tail_sigma, int(wild.sum()))
    interval = int(random.choice([1, 2, 10, 50]))
    warm = max(1, int(0.03 * n))
    lr = random.choice([1e-4, 3e-4, 1e-3]) * np.minimum((np.arange(n) + 1) / warm, 0.5 * (1 + np.cos(np.pi * t)) * 0.9 + 0.1)
    norm = np.exp(random.normal(0, 0.12, n)) * random.uniform(0.2, 5)
    accuracy = np.clip(0.7 * (1 - 0.9 * fall) * (1 + random.normal(0, 0.03, n)), 0, 1)
    every = max(2, n // 20)
    eval_rows = np.arange(every - 1, n, every)
    return Run(
        noise=name,
        steps=(np.arange(n) + 1.0) * interval,
        loss=level + sigma * white,
        sigma=sigma,
        columns={
            "lr": lr,
            "grad_norm": norm,
            "accuracy": accuracy,
            "tok_per_s": 26000 * (1 + random.normal(0, 0.008, n)),
            "prefetch_queue_depth": np.round(300 + random.normal(0, 4, n)),
        },
        rows=np.arange(n),
        eval_rows=eval_rows,
        eval_loss=level[eval_rows] * (1 + random.normal(0, 0.003, len(eval_rows))),
    )


def faulty(random: np.random.Generator, kind: str, rows: tuple[int, int] = (300, 4000)) -> Run:
    """A run with one fault of `kind`, anywhere from its fifth to its last quarter."""
    run = healthy(random, rows)
    run.kind = kind
    n = len(run.steps)
    place = int(random.uniform(0.2, 0.75) * n)
    run.size = float(np.exp(random.uniform(np.log(2), np.log(40))))
    FAULTS[kind](run, random, place)
    return run


def _mark(run: Run, a: int, b: int) -> None:
    run.first, run.last = float(run.steps[a]), float(run.steps[min(b, len(run.steps) - 1)])


def _nonfinite(run: Run, random: np.random.Generator, place: int) -> None:
    stop = len(run.loss) if random.random() < 0.5 else place + int(random.integers(1, 20))
    run.loss[place:stop] = random.choice([np.nan, np.inf])
    _mark(run, place, stop - 1)


def _spike(run: Run, random: np.random.Generator, place: int) -> None:
    length = int(random.integers(1, 60))
    decay = np.exp(-np.arange(length) / max(1, length / 3))
    run.loss[place : place + length] += run.size * run.sigma[place] * decay[: len(run.loss) - place]
    _mark(run, place, place)


def _shift(run: Run, random: np.random.Generator, place: int) -> None:
    run.loss[place:] += run.size * run.sigma[place]
    _mark(run, place, place)


def _dip(run: Run, random: np.random.Generator, place: int) -> None:
    stop = place + int(random.uniform(0.05, 0.2) * len(run.loss)) + 10
    run.size = min(run.size, 0.7 * float(run.loss[place] / run.sigma[place]))
    run.loss[place:stop] -= run.size * run.sigma[place]
    _mark(run, place, place)


def _divergence(run: Run, random: np.random.Generator, place: int) -> None:
    rest = len(run.loss) - place
    run.loss[place:] += run.size * run.sigma[place] * np.linspace(0, 1, rest) ** random.uniform(0.7, 2)
    _mark(run, place, len(run.loss))


def _stairs(run: Run, random: np.random.Generator, place: int) -> None:
    period = len(run.loss) // int(random.integers(4, 8))
    run.size = min(run.size, 0.12 * float(run.loss[-1] / run.sigma[-1]))
    run.loss -= run.size * run.sigma[-1] * (np.arange(len(run.loss)) // period)
    _mark(run, period, period)


def _periodic(run: Run, random: np.random.Generator, place: int) -> None:
    period = int(random.integers(6, max(8, len(run.loss) // 20)))
    run.size = float(random.uniform(1, 6))
    wave = np.mod(np.arange(len(run.loss)), period) < period / 3
    run.loss += run.size * run.sigma * (wave - wave.mean())
    _mark(run, 0, len(run.loss))
    run.last = period * (run.steps[1] - run.steps[0])


def _accuracy(run: Run, random: np.random.Generator, place: int) -> None:
    level = run.columns["accuracy"][place]
    run.size = min(run.size, 30.0)
    run.columns["accuracy"][place:] -= run.size * 0.03 * level
    _mark(run, place, place)


def _split(run: Run, random: np.random.Generator, place: int) -> None:
    k = int(np.searchsorted(run.eval_rows, place))
    rest = len(run.eval_loss) - k
    run.eval_loss[k:] = run.eval_loss[k] * (1 + np.linspace(0, 0.003 * run.size, rest)) + 0.0 * random.random()
    _mark(run, int(run.eval_rows[k]), len(run.loss))


def _rate(run: Run, random: np.random.Generator, place: int) -> None:
    run.columns["lr"][place:] = run.columns["lr"][: len(run.loss) - place]
    run.size = float(abs(run.columns["lr"][place] / run.columns["lr"][place - 1] - 1) * 100)
    _mark(run, place, place)


def _replay(run: Run, random: np.random.Generator, place: int) -> None:
    back = int(random.integers(3, 30))
    run.rows = np.concatenate([np.arange(place), np.arange(place - back, len(run.loss))])
    _mark(run, place - back, place)


def _two_writers(run: Run, random: np.random.Generator, place: int) -> None:
    behind = int(0.1 * len(run.loss)) + 5
    mixed: list[int] = list(range(place))
    for i in range(place, len(run.loss)):
        mixed += [i, i - behind] if random.random() < 0.7 else [i]
    run.rows = np.array(mixed)
    _mark(run, place, len(run.loss))


def _checkpoints(run: Run, random: np.random.Generator, place: int) -> None:
    """Saves at a regular distance after each of which lines are missing and the loss jumps and swings back."""
    n = len(run.loss)
    saves = np.arange(n // 5, n - 30, n // 5)[: int(random.integers(2, 5))]
    keep = np.ones(n, dtype=bool)
    for save in saves:
        length = int(random.integers(6, 20))
        swing = np.where(np.arange(length) % 2 == 0, 1.0, 0.2) * np.exp(-np.arange(length) / 5)
        start = save + int(random.integers(1, 4)) + 5
        run.loss[start : start + length] += run.size * run.sigma[save] * swing
        keep[save + 1 : start - 1] = False
    run.rows = np.flatnonzero(keep)
    run.events = Events(steps={"checkpoint": run.steps[saves]}, told=frozenset({"checkpoint"}))
    _mark(run, int(saves[0]), int(saves[-1]))


def _queue(run: Run, random: np.random.Generator, place: int) -> None:
    run.columns["prefetch_queue_depth"] -= np.round(np.linspace(0, 4 * run.size, len(run.loss)))
    _mark(run, 0, len(run.loss))


def _norm(run: Run, random: np.random.Generator, place: int) -> None:
    run.columns["grad_norm"][place] *= np.exp(0.12 * run.size)
    _mark(run, place, place)


Fault = Callable[[Run, np.random.Generator, int], None]
FAULTS: dict[str, Fault] = {
    "nonfinite": _nonfinite,
    "loss_spike": _spike,
    "level_shift": _shift,
    "drop_then_return": _dip,
    "divergence": _divergence,
    "epoch_stairs": _stairs,
    "periodic": _periodic,
    "accuracy_drop": _accuracy,
    "train_eval_split": _split,
    "lr_break": _rate,
    "resume_replay": _replay,
    "two_writers": _two_writers,
    "checkpoint_reset": _checkpoints,
    "queue_drift": _queue,
    "grad_spike": _norm,
}
