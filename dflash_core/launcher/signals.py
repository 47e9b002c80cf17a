"""Notes SIGTERM and SIGINT instead of raising, so that they are acted on where the launch can act."""

import signal
from types import FrameType, TracebackType
from typing import Self

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """While in context, `take` gives the signals that have come since it was last called; in the main thread only."""

    def __init__(self) -> None:
        self._came: list[int] = []
        self._before: dict[int, object] = {}

    def take(self) -> list[int]:
        """New signals, oldest first."""
        came, self._came = self._came, []
        return came

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append(number)

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
