"""How far a training is and how its loss goes, as Prefect artifacts that follow the training log."""

import base64
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact

from tasks.artifacts import show_text, tolerated
from tasks.log_tail import new_records, polling

PROGRESS_KEY, LOSS_KEY = "training-progress", "training-loss"
# Each plot is a version that the server keeps, of some 30 kB.
SECONDS_BETWEEN_PLOTS = 120.0


class Curve:
    """The loss by step; after a resume the steps that were done again count."""

    def __init__(self) -> None:
        self.total_steps = 0
        self.losses: dict[int, float] = {}

    def add(self, record: dict[str, Any]) -> None:
        """Take in one record of the log."""
        if record.get("kind") in ("start", "resume"):
            self.total_steps = record["total_steps"]
        elif record.get("kind") == "step":
            self.losses[record["step"]] = record["loss"]

    @property
    def percent(self) -> float:
        """How much of the run is done."""
        return min(100.0, 100.0 * max(self.losses, default=0) / self.total_steps) if self.total_steps else 0.0

    def as_markdown(self) -> str:
        """The plot as an image within the text: the page needs nothing from elsewhere."""
        import numpy as np

        from dflash_core.diagnosis.chart import Chart, draw

        steps = sorted(self.losses)
        chart = Chart(steps=np.array(steps, float), values=np.array([self.losses[s] for s in steps], float), title="loss")
        style = 'style="background:#fff;font-family:sans-serif"'  # an image takes none of the page's
        svg = draw(chart).replace("<svg ", f'<svg xmlns="http://www.w3.org/2000/svg" width="{chart.width}" height="{chart.height}" {style} ', 1)
        image = base64.b64encode(svg.encode()).decode()
        return f"![loss by step](data:image/svg+xml;base64,{image})\n\nstep {steps[-1]} of {self.total_steps}, loss {self.losses[steps[-1]]:.4g}"


class _Shown:
    """The two artifacts of one training."""

    def __init__(self) -> None:
        self.curve = Curve()
        self._progress: UUID | None = None
        self._plotted_at = time.monotonic()

    def show(self, last: bool) -> None:
        """Bring them up to date; the plot seldom, and when the training has ended."""
        if not self.curve.losses:
            return
        if self._progress is None:
            self._progress = create_progress_artifact(self.curve.percent, key=PROGRESS_KEY, description="Steps of the training")
        else:
            update_progress_artifact(self._progress, self.curve.percent)
        if last or time.monotonic() - self._plotted_at > SECONDS_BETWEEN_PLOTS:
            self._plotted_at = time.monotonic()
            show_text(LOSS_KEY, self.curve.as_markdown(), "Loss by step")


@contextlib.contextmanager
def showing_progress(log_file: Path) -> Iterator[None]:
    """Follow the training log that the body appends to; nothing is shown where it appends nothing."""
    shown, before = _Shown(), _size(log_file)
    ended = False

    def poll(offset: int) -> int:
        if _size(log_file) == before:
            return offset
        records, after = new_records(log_file, offset)
        with tolerated("the progress"):
            for record in records:
                shown.curve.add(record)
            shown.show(last=ended)
        return after

    with polling(poll, "progress"):
        try:
            yield
        finally:
            ended = True


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
