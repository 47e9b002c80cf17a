"""The line that tells a person how training stands: rate, time left, loss, streak, and what the step waits for."""

import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from dflash_core.training.records import StepRecord

_SMOOTHING = 0.1  # share of the newest step in the running rate: about the last 20 steps
_PLAIN_INTERVAL_S = 10.0
_BOUND_SHARE = 0.05  # of a step, spent waiting, from which the drafter counts as held up


class ProgressLine:
    """A live line on a terminal, else a plain line at the first step and then about every 10 seconds, on stderr."""

    def __init__(
        self, total_steps: int, first_step: int, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total, self._clock = total_steps, clock
        self._console = console or Console(stderr=True)
        self._bar: Progress | None = None
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("train"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[status]}"),
                console=self._console,
            )
            self._task = self._bar.add_task("train", total=total_steps, completed=first_step, status="")
        self._last_time, self._last_plain = clock(), float("-inf")
        self._step_s: float | None = None

    def update(self, record: StepRecord) -> None:
        """Show one finished step."""
        now = self._clock()
        took, self._last_time = now - self._last_time, now
        self._step_s = took if self._step_s is None else self._step_s + _SMOOTHING * (took - self._step_s)
        if self._bar is not None:
            self._bar.update(self._task, completed=record.step, status=self._status(record))
        elif now - self._last_plain >= _PLAIN_INTERVAL_S or record.step == self._total:
            self._last_plain = now
            self._console.print(f"step {record.step}/{self._total} {self._status(record)}", highlight=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """Print a sentence above the line."""
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def _status(self, record: StepRecord) -> str:
        left = timedelta(seconds=round(self._step_s * (self._total - record.step)))
        streak = "-" if record.streak is None else f"{record.streak:.2f}"
        return f"loss {record.loss:.3f} streak {streak} {record.tok_per_s:,.0f} tok/s {self._step_s:.2f} s/step {left} left, {waiting(record)}"

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()


def waiting(record: StepRecord) -> str:
    """Which side sets the pace: the drafter is target-bound where it waits for batches, else the target waits for it."""
    total = record.data_wait_s + record.checkpoint_s + record.drafter_s
    if total == 0:
        return "drafter-bound"
    bound = "target-bound" if record.data_wait_s > _BOUND_SHARE * total else "drafter-bound"
    parts = [bound, f"drafter busy {record.drafter_s / total:.0%}"]
    if record.target_s + record.target_idle_s > 0:
        parts.append(f"target busy {record.target_s / (record.target_s + record.target_idle_s):.0%}")
    if record.checkpoint_s > 0.02 * total:
        parts.append(f"saving {record.checkpoint_s / total:.0%}")
    return ", ".join(parts)
