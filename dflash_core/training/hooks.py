"""What the loop calls without knowing how it is done: saves and evaluations."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Position:
    """Where a run stands: `step` updates done, samples before `next_sample` consumed."""

    step: int
    next_sample: int


News = Sequence[float]  # (ranks that are writing, ranks whose write failed)


class Saves(Protocol):
    """Checkpoints that are written beside the loop. Every drafter rank calls the same in the same order."""

    def news(self) -> tuple[float, float]:
        """This rank's part of the news, which the loop adds up over ranks."""
        ...

    def boundary(self, position: Position, due: bool, news: News) -> float:
        """Between two updates: log what is on disk, and begin a save that is due, or put it off while one is being written.

        Returns:
            The seconds that it took; 0 where there was nothing to do.

        Raises:
            CheckpointError: a save failed, in whatever rank.
        """
        ...

    def measured(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """An evaluation at this step said so."""
        ...

    def finish(self, position: Position) -> None:
        """Wait until the state at `position` is on disk. Errors as `boundary`."""
        ...

    def rescue(self) -> None:
        """After an error elsewhere: let a save in flight come to its end, and log it, without a word to other ranks."""
        ...

    def close(self) -> None:
        """Leave no thread behind; what is still being written is given up."""
        ...


@dataclass(frozen=True)
class Hooks:
    """What the loop calls without knowing how it is done."""

    saves: Saves
    evaluate: Callable[[int], Mapping[str, float | None]] | None
