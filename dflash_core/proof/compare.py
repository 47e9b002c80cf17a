"""Compares replayed steps with the log's, field by field, in the order in which one field explains the next."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dflash_core.proof.band import Band
from dflash_core.training.records import UpdateRecord

Group = Literal["data", "schedule", "noise", "counts", "result"]

# A wrong sample changes every number below it, a wrong count every loss: the first difference is the one that explains.
FIELDS: tuple[tuple[str, Group], ...] = (
    ("step", "data"),
    ("first_sample", "data"),
    ("last_sample", "data"),
    ("checksum", "data"),
    ("epoch", "data"),
    ("tokens", "data"),
    ("lr", "schedule"),
    ("noise_std", "noise"),
    ("num_blocks", "counts"),
    ("per_position_count", "counts"),
    ("denominator", "counts"),
    ("loss_sum", "result"),
    ("loss", "result"),
    ("grad_norm", "result"),
    ("per_position_accuracy", "result"),
    ("streak", "result"),
)


@dataclass(frozen=True)
class Difference:
    """One number of one step that the log has otherwise than the replay. `offset` counts steps after the checkpoint, from 1."""

    offset: int
    step: int
    field: str
    group: Group
    logged: Any
    replayed: Any

    @property
    def text(self) -> str:
        """For a person: `step 501 (1 after the checkpoint): loss 2.31 in the log, 2.17 in the replay`."""
        where = f"step {self.step} ({self.offset} after the checkpoint)"
        return f"{where}: {self.field.replace('_', ' ')} {_shown(self.logged)} in the log, {_shown(self.replayed)} in the replay"

    @property
    def size(self) -> float | None:
        """Relative difference of two numbers."""
        numbers = (self.logged, self.replayed)
        if not all(isinstance(value, int | float) for value in numbers) or not any(numbers):
            return None
        return abs(self.logged - self.replayed) / max(map(abs, numbers))


def compare(replayed: Sequence[UpdateRecord], logged: Sequence[UpdateRecord], band: Band) -> tuple[Difference, ...]:
    """Every difference, the one that explains first at the front. A replay that ended early, not finite, differs there."""
    found = []
    for offset, record in enumerate(logged, start=1):
        if offset > len(replayed):
            found.append(Difference(offset, record.step, "loss", "result", record.loss, None))
            break
        mine = replayed[offset - 1]
        for field, group in FIELDS:
            theirs, ours = getattr(record, field), getattr(mine, field)
            recorded = not (field == "checksum" and theirs == 0)
            if recorded and not band.allows(field, offset, theirs, ours):
                found.append(Difference(offset, record.step, field, group, theirs, ours))
    return tuple(found)


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, float):
        return repr(value)
    return str(value)[:80]
