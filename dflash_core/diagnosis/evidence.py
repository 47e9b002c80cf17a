"""What the rules for causes look at, and what they give."""

from dataclasses import dataclass

from dflash_core.diagnosis.finding import Finding
from dflash_core.diagnosis.refine import LOST_SHARE, Refined
from dflash_core.diagnosis.view import View


@dataclass(frozen=True)
class Cause:
    """One class of cause."""

    cause: str
    confidence: float
    evidence: tuple[str, ...]
    against: tuple[str, ...] = ()
    advice: str = ""


@dataclass(frozen=True)
class Evidence:
    """What the rules look at."""

    view: View
    refined: Refined

    def of(self, *kinds: str) -> list[Finding]:
        """Findings of some kinds."""
        return [f for f in self.refined.findings if f.kind in kinds]

    @property
    def faults(self) -> list[Finding]:
        """Findings that make the run unhealthy."""
        return [f for f in self.refined.findings if f.severity == "fault"]

    @property
    def diverged(self) -> list[Finding]:
        """Findings of a loss that got lost for good."""
        lost = [f for f in self.of("level_shift") if f.detail.get("of_improvement", 0) > LOST_SHARE and not event_before(f)]
        return [*self.of("divergence"), *self._peaks_that_stay, *lost]

    @property
    def risen(self) -> list[Finding]:
        """Losses that rise at once and stay: far, or at a restart; whatever they come right after."""
        far = [f for f in self.of("level_shift") if f.severity == "fault" or f.detail["of_improvement"] > LOST_SHARE]
        return [*self._peaks_that_stay, *far]

    @property
    def _peaks_that_stay(self) -> list[Finding]:
        return [f for f in self.of("loss_spike") if f.severity == "fault" and f.detail["recovery_rows"] is None]

    @property
    def unexplained(self) -> list[Finding]:
        """Changes of the level that are no fault, and that nothing explains."""
        return [f for f in self.of("level_shift", "slow_climb", "drop_then_return") if f.severity == "warning"]

    @property
    def lost_at_save(self) -> list[Finding]:
        """Levels that rise far and stay right after a checkpoint, where no restart was told of."""
        return [f for f in self.of("level_shift") if f.severity == "fault" and event_before(f) == "checkpoint"]


def event_before(f: Finding) -> str | None:
    """The event that it comes right after: a resume, a reset or a checkpoint, whichever says most."""
    return next((kind for kind in ("resume", "reset", "checkpoint") if f.detail.get(f"after_{kind}") is not None), None)
