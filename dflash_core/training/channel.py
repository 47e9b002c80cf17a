"""A bounded, ordered hand-over between two threads, which hides nothing.

A full channel holds the producer back, and an empty one the consumer. Items are numbered, and one that is not
the next is refused. A producer's error is raised in the consumer with its own traceback. Every wait ends: by a
timeout that names who is stuck, or by the close of the other side.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from dflash_core.errors import PipelineError

T = TypeVar("T")


class Closed(Exception):
    """The consumer closed the channel: the producer has no one to work for and ends."""


class EndOfStream(Exception):
    """The producer has handed over its last item."""


class Channel(Generic[T]):
    """From one producer to one consumer.

    Args:
        producer, consumer: names for messages, such as "target".
        capacity: items that may wait.
        timeout_s: longest wait of either side.
        first: number of the first item.
    """

    def __init__(self, producer: str, consumer: str, capacity: int, timeout_s: float, first: int = 0) -> None:
        self._producer, self._consumer = producer, consumer
        self._capacity, self._timeout_s = capacity, timeout_s
        self._items: deque[tuple[int, T]] = deque()
        self._changed = threading.Condition()
        self._next = first  # number that the consumer takes next
        self._error: BaseException | None = None
        self._ended = self._closed = False
        self.blocked_s = 0.0  # seconds that the producer has been held back

    @property
    def depth(self) -> int:
        """Items that wait."""
        return len(self._items)

    def put(self, number: int, item: T) -> None:
        """Hand over an item; blocks while the channel is full.

        Raises:
            Closed: the consumer is gone.
            PipelineError: the consumer took nothing for `timeout_s`.
        """
        began = time.perf_counter()
        with self._changed:
            if not self._wait(lambda: self._closed or len(self._items) < self._capacity):
                raise PipelineError(
                    f"{self._consumer} took nothing from {self._producer} for {self._timeout_s:g} s ({len(self._items)} items wait, "
                    f"the next is {self._next}), so {self._consumer} is stuck. Look at its log; raise distributed.timeout_s if it is only slow."
                )
            self.blocked_s += time.perf_counter() - began
            if self._closed:
                raise Closed
            self._items.append((number, item))
            self._changed.notify_all()

    def get(self) -> T:
        """The next item; blocks while there is none.

        Raises:
            EndOfStream: there will be none.
            PipelineError: none came for `timeout_s`, or another one than the next.
            BaseException: the producer's own error.
        """
        with self._changed:
            if not self._wait(lambda: self._items or self._ended):
                raise PipelineError(
                    f"{self._consumer} waited {self._timeout_s:g} s for item {self._next} of {self._producer}, so {self._producer} is stuck. "
                    "Look at its log; raise distributed.timeout_s if it is only slow."
                )
            if not self._items:
                raise self._error or EndOfStream
            number, item = self._items.popleft()
            if number != self._next:
                raise PipelineError(
                    f"{self._producer} handed item {number} to {self._consumer}, expected {self._next}: one is lost or repeated. "
                    "Nothing was trained on it; resume, and report it."
                )
            self._next += 1
            self._changed.notify_all()
            return item

    def finish(self, error: BaseException | None = None) -> None:
        """The producer ends; what waits can still be taken, then `error` is raised in the consumer."""
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def close(self) -> None:
        """The consumer ends; what waits is dropped."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], object]) -> bool:
        return bool(self._changed.wait_for(ready, self._timeout_s))
