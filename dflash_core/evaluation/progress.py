"""The progress line of decoding: a bar on a terminal, else a plain line every so often."""

import time
from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

_PLAIN_INTERVAL_S = 10.0


class DecodingProgress:
    """Shows prompts done, time left, τ and speed-up so far, on stderr."""

    def __init__(self, num_prompts: int, console: Console | None = None) -> None:
        self._num_prompts, self._done = num_prompts, 0
        self._console = console or Console(stderr=True)
        self._rounds = self._tokens = 0
        self._plain_s = self._speculative_s = 0.0
        self._begin, self._last_plain = time.monotonic(), float("-inf")
        columns = (TextColumn("evaluate"), BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.fields[status]}"))
        self._bar = Progress(*columns, console=self._console) if self._console.is_terminal else None
        if self._bar is not None:
            self._task = self._bar.add_task("evaluate", total=num_prompts, status="")

    def update(self, rounds: Sequence[int], plain_s: float, speculative_s: float) -> None:
        """Show one more prompt: its committed counts, and seconds of both ways."""
        self._done += 1
        self._rounds, self._tokens = self._rounds + len(rounds), self._tokens + sum(rounds)
        self._plain_s, self._speculative_s = self._plain_s + plain_s, self._speculative_s + speculative_s
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, status=self._status())
        elif time.monotonic() - self._last_plain >= _PLAIN_INTERVAL_S or self._done == self._num_prompts:
            self._last_plain = time.monotonic()
            self._console.print(f"prompt {self._done}/{self._num_prompts} {self._status()}", highlight=False, soft_wrap=True)

    def _status(self) -> str:
        left = (time.monotonic() - self._begin) / self._done * (self._num_prompts - self._done)
        tau = f"{self._tokens / self._rounds:.2f}" if self._rounds else "-"
        return f"τ {tau} speed-up {self._plain_s / self._speculative_s:.2f} {timedelta(seconds=round(left))} left"

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
