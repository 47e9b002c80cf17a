"""Runs an iterator in a thread of its own, a bounded number of items ahead of who consumes it."""

import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Generic, Self, TypeVar

from dflash_core.errors import PipelineError
from dflash_core.training.channel import Channel, Closed, EndOfStream

T = TypeVar("T")


class RunAhead(Iterator[T], Generic[T]):
    """The items of `stream`, in order, computed ahead. Use as a context: leaving it closes the channel and joins the thread.

    Args:
        producer, consumer: names for messages.
        depth: items that may wait; one more is in work.
        timeout_s: longest wait of either side, and of the join.
    """

    def __init__(self, stream: Iterator[T], producer: str, consumer: str, depth: int, timeout_s: float) -> None:
        self._stream, self._name, self._timeout_s = stream, producer, timeout_s
        self.channel: Channel[T] = Channel(producer, consumer, depth, timeout_s)
        # A daemon, so that a producer that hangs in a system call can't keep a process alive whose loop has ended.
        self._thread = threading.Thread(target=self._produce, name=producer, daemon=True)

    @property
    def waiting(self) -> int:
        """Items that are ready."""
        return self.channel.depth

    def __next__(self) -> T:
        try:
            return self.channel.get()
        except EndOfStream:
            raise StopIteration from None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.channel.close()
        self._thread.join(self._timeout_s)
        if self._thread.is_alive() and error is None:
            raise PipelineError(f"{self._name} did not end within {self._timeout_s:g} s of being closed, so it is stuck. Look at its log.")

    def _produce(self) -> None:
        try:
            for number, item in enumerate(self._stream):
                self.channel.put(number, item)
        except Closed:
            self.channel.finish()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is raised in the consumer
            self.channel.finish(error)
        else:
            self.channel.finish()
