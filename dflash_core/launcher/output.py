"""Output of the ranks: each rank's in a file of its own, and each line of it on our stderr behind the rank's number.

Files rather than pipes, as in tasks/launch.py: a rank whose reader has died would be ended by EPIPE in the middle of a save,
and a reader that is slow would slow the rank. They are followed by one thread, which writes whole lines only, so that lines are
neither torn nor mixed; torchrun's own `--tee` has two threads a rank and passes half lines on.
"""

import collections
import socket
import sys
import threading
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from dflash_core.errors import ConfigError

_POLL_S = 0.1
_TAIL_BYTES = 16_384
_JOIN_S = 5.0  # a terminal that is held up must not hold up the end of the run


class RankOutput:
    """The files of this node's ranks, and the thread that follows them; use as a context."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._followed: dict[int, _Follower] = {}
        self._notes: collections.deque[str] = collections.deque()
        self._closing = threading.Event()
        self._silenced = False
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def path(self, rank: int) -> Path:
        """A rank's file; ranks are numbered over all nodes, so that nodes may share the directory."""
        return self.directory / f"rank-{rank}.log"

    def open(self, rank: int, num_ranks: int) -> BinaryIO:
        """The file for a rank to write to, behind what an earlier launch left there."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            output = self.path(rank).open("ab", buffering=0)
            output.write(
                f"=== {datetime.now().isoformat(timespec='seconds')} rank {rank} of {num_ranks} on {socket.gethostname()}\n".encode()
            )
        except OSError as error:
            raise ConfigError(
                f"{self.path(rank)} can't be written: {error.strerror}. Make room there, or choose another run."
            ) from None
        self._followed[rank] = _Follower(self.path(rank), start=output.tell())
        return output

    def note(self, text: str) -> None:
        """Print a sentence of the launcher's own between the lines."""
        self._notes.append(f"[launcher] {text}\n")

    def last_words(self, rank: int) -> str:
        """The error that a rank printed last, else its last line."""
        return self._followed[rank].last_words()

    def _follow(self) -> None:
        while True:
            closing = self._closing.is_set()  # asked before reading: what was written before the end is read after it
            lines = [self._notes.popleft() for _ in range(len(self._notes))]
            for rank, follower in list(self._followed.items()):
                lines += [f"[rank {rank}] {line}\n" for line in follower.new_lines(closing)]
            self._print(lines)
            if closing:
                return
            self._closing.wait(_POLL_S)

    def _print(self, lines: list[str]) -> None:
        """A reader that has gone, as `| head` does, ends the printing, not the training."""
        if self._silenced or not lines:
            return
        try:
            sys.stderr.write("".join(lines))
            sys.stderr.flush()
        except (OSError, ValueError):
            self._silenced = True

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._closing.set()
        self._thread.join(_JOIN_S)


class _Follower:
    """Reads what is appended to one file, from `start` on."""

    def __init__(self, path: Path, start: int) -> None:
        self._path, self._start, self._offset, self._rest = path, start, start, b""

    def new_lines(self, to_the_end: bool) -> list[str]:
        """Whole lines since the last call; `to_the_end` takes half a line as one, too."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            chunk = file.read()
        self._offset += len(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if to_the_end and self._rest:
            lines.append(self._rest)
        return [line.decode(errors="replace").rstrip() for line in lines]

    def last_words(self) -> str:
        """As `RankOutput.last_words`; communication libraries like to warn after the error."""
        with self._path.open("rb") as file:
            file.seek(max(self._start, self._path.stat().st_size - _TAIL_BYTES))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith(("Error: ", "Fault: "))]
        if errors:
            return errors[-1].split(": ", 1)[1]
        return lines[-1] if lines else "it printed nothing."
