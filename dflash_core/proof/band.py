"""How far a healthy replay may be from the log: not at all, or a band measured by replaying twice.

Bits can be asked for where kernels are deterministic and device, threads, library and the number of drafter ranks are
the run's. Otherwise sums are taken in another order, and how much that matters is measured: two replays of the same
steps, one with the micro-batches of the run's ranks, one with those of another number of ranks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash_core.checkpoint.contents import Contents
from dflash_core.proof.recorded import Window
from dflash_core.proof.replay import Setting, replay
from dflash_core.training.records import UpdateRecord

MEASURED = ("loss_sum", "loss", "grad_norm")
# Two replays are one draw of the noise, which may be a small one. Measured over 120 replays in other orders of additions, in
# float32 and bfloat16 (benchmarks/fault_battery.py): the largest is an eighth of the band.
WIDENING = 8.0
# 32 units in the last place of a float32 sum.
FLOOR = 32 * 2.0**-24
# Weights of slots are added up in float64, rank by rank.
_DENOMINATOR = 1e-9


@dataclass(frozen=True)
class Band:
    """What is no difference. Without `width` everything is one."""

    width: Mapping[str, tuple[float, ...]] | None = None  # relative, by field, step after step
    why: tuple[str, ...] = field(default=())  # what kept the proof from asking for bits

    @property
    def text(self) -> str:
        """For the verdict."""
        if self.width is None:
            return "bit for bit"
        widths = ", ".join(f"{name.replace('_', ' ')} {max(values, default=FLOOR):.1e}" for name, values in self.width.items() if name != "loss_sum")
        return f"within a measured band ({widths}, relative), because {'; '.join(self.why)}"

    def allows(self, field: str, offset: int, logged: Any, replayed: Any) -> bool:
        """Whether these two count as equal. Within a band hits may flip where two guesses tie, so accuracies are left out."""
        if logged == replayed or self.width is None:
            return logged == replayed
        if field in ("per_position_accuracy", "streak"):
            return True
        if not isinstance(logged, float) or not isinstance(replayed, float):
            return False
        if field == "denominator":
            width = _DENOMINATOR
        elif field in self.width:
            widths = self.width[field] or (FLOOR,)  # none where one of the two replays ended at once, not finite
            width = widths[min(offset, len(widths)) - 1]
        else:
            return False
        return abs(logged - replayed) <= width * max(abs(logged), abs(replayed))


EXACT = Band()


def band_of(setting: Setting, contents: Contents, windows: Sequence[Window], replayed: Sequence[UpdateRecord]) -> tuple[Band, int]:
    """Bits where they can be asked for; else what another replay, with the additions in another order, shows.

    Args:
        setting: the run.
        contents: what was replayed from.
        windows: the logged steps by session (`RecordedRun.parts`).
        replayed: the same steps replayed, with the ranks of the first of these.

    Returns:
        The band, and how many steps were replayed for it.
    """
    deterministic = setting.config.training.deterministic
    found = (obstacles_to_bits(window.conditions, setting.conditions, window.num_ranks, deterministic) for window in windows)
    why = tuple(dict.fromkeys(obstacle for of_window in found for obstacle in of_window))
    if not why:
        return EXACT, 0
    other = replay(setting, contents, len(replayed), num_ranks=1 if windows[0].num_ranks > 1 else 2)
    return measured_band(replayed[: len(other)], other, why), len(other)


def measured_band(first: Sequence[UpdateRecord], second: Sequence[UpdateRecord], why: tuple[str, ...]) -> Band:
    """The band that two replays of the same steps show; it never narrows from step to step, since differences grow."""
    width = {}
    for name in MEASURED:
        widest, steps = FLOOR, []
        for one, other in zip(first, second, strict=True):
            a, b = getattr(one, name), getattr(other, name)
            widest = max(widest, WIDENING * abs(a - b) / max(abs(a), abs(b), 1e-30))
            steps.append(widest)
        width[name] = tuple(steps)
    return Band(width, why)


def obstacles_to_bits(run: Mapping[str, Any], here: Mapping[str, Any], num_ranks: int, deterministic: bool) -> tuple[str, ...]:
    """Why bits can't be asked for; nothing where they can."""
    found = [] if deterministic else ["kernels are not deterministic"]
    if num_ranks > 1:
        found.append(f"{num_ranks} ranks trained together, and one replays")
    if not run:
        found.append("the log doesn't say on which device and with how many threads the run was")
    found += [f"{key} was {run[key]}, is {here.get(key)}" for key in sorted(run) if run[key] != here.get(key)]
    return tuple(found)
