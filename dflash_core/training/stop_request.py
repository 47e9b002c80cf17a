"""Turns SIGTERM and SIGINT into a request that the loop reads between steps."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Self

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Catches signals, so that the step can finish and be saved; only a second SIGINT acts as it did before.

    SIGTERM may come more than once for one wish to stop (from torchrun and its parent, or once for each thread of a killed
    parent), and must not interrupt the save that the first asked for. A person who presses Ctrl-C again means it.
    Signal handlers can be set in the main thread only; elsewhere nothing is caught.
    """

    def __init__(self) -> None:
        self.signal_name: str | None = None
        self._previous: dict[signal.Signals, object] = {}

    @property
    def requested(self) -> bool:
        """A signal has come."""
        return self.signal_name is not None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.signal_name == "SIGINT":
            self._restore()
            signal.raise_signal(signal.SIGINT)
        elif self.signal_name is None:
            self.signal_name = signal.Signals(number).name

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._restore()
