"""Follows a training log while a stage writes it: its new records, from a thread, every few seconds."""

import contextlib
import contextvars
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tasks.log_records import is_whole

SECONDS_BETWEEN_POLLS = 5.0
LAST_POLL_SECONDS = 60.0


def new_records(log_file: Path, offset: int, most_bytes: int = -1) -> tuple[list[dict[str, Any]], int]:
    """Records of the whole lines after byte `offset`, and the offset after them; a line that is being written waits.

    Args:
        most_bytes: read no more than this, or than one line that is longer; -1 reads to the end.
    """
    if not log_file.exists():
        return [], offset
    with log_file.open("rb") as log:
        log.seek(offset)
        text = log.read(most_bytes)
        if b"\n" not in text:
            text += log.readline()
    whole = text[: text.rfind(b"\n") + 1]
    return [record for line in whole.splitlines() if (record := _record(line))], offset + len(whole)


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:  # torn by a kill; the log's reader handles it, here it says nothing
        return None
    return record if isinstance(record, dict) and is_whole(record) else None


@contextlib.contextmanager
def polling(poll: Callable[[int], int], name: str, seconds: float | None = None) -> Iterator[None]:
    """Call `poll` with the offset it gave last, from 0, every few seconds while the body runs, and once when it has ended.

    The thread is in the body's own run context; what `poll` raises would end it, so `poll` tolerates its own faults.
    """
    ended = threading.Event()
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(_poll_until, ended, poll, seconds or SECONDS_BETWEEN_POLLS), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(LAST_POLL_SECONDS)


def _poll_until(ended: threading.Event, poll: Callable[[int], int], seconds: float) -> None:
    offset, last = 0, False
    while not last:
        last = ended.wait(seconds)
        offset = poll(offset)
