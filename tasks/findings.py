"""What the watch found in a training run, as a Prefect artifact that grows while the run goes on."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact

from tasks.log_tail import new_records, polling

KEY = "training-findings"


@contextlib.contextmanager
def showing_findings(log_file: Path) -> Iterator[None]:
    """Make a new version of the artifact whenever the body's training log has a new finding; none where it has none."""
    found: list[dict[str, Any]] = []

    def poll(offset: int) -> int:
        try:
            records, after = new_records(log_file, offset)
            new = [r for r in records if r.get("kind") == "finding"]
            if new:
                create_markdown_artifact(as_markdown(found + new), key=KEY, description="What the watch found while the run went on")
            found.extend(new)
            return after
        except Exception as error:  # noqa: BLE001 - showing is never a condition for training, whatever the fault
            get_run_logger().warning("the findings were not shown (%s: %s); the run goes on", type(error).__name__, error)
            return offset

    with polling(poll, "findings"):
        yield


def as_markdown(found: list[dict[str, Any]]) -> str:
    """A table of findings, the newest first."""
    rows = [f"| {r['at_step']} | {r['what'].replace('_', ' ')} | {r['severity']} | {_cell(r['text'])} |" for r in reversed(found)]
    return "\n".join(["| step | finding | severity | what was seen |", "| --- | --- | --- | --- |", *rows])


def _cell(text: str) -> str:
    return text.replace("|", "\\|") + "."
