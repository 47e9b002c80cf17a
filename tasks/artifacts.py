"""Tables and texts on a run's page in Prefect; that one can't be shown is no fault of the run."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact, create_table_artifact


@contextlib.contextmanager
def tolerated(what: str) -> Iterator[None]:
    """Turn whatever the server or the network raises into a warning."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - showing is never a condition for the work, whatever the fault
        get_run_logger().warning("%s was not shown (%s: %s); the run goes on", what, type(error).__name__, error)


def show_table(key: str, rows: Sequence[Mapping[str, Any]], description: str) -> None:
    """A table, none where there are no rows. Keys take lower-case letters, digits and dashes."""
    if rows:
        with tolerated(f"table {key}"):
            create_table_artifact([dict(row) for row in rows], key=key, description=description)


def show_text(key: str, markdown: str, description: str) -> None:
    """A text in Markdown."""
    with tolerated(f"text {key}"):
        create_markdown_artifact(markdown, key=key, description=description)
