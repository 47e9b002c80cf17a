"""What a proof says of one checkpoint, as an object, as JSON for status.json and as text."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from dflash_core.proof.compare import Difference
from dflash_core.proof.faults import MEANING, Fault

Outcome = Literal["proven", "rejected", "unproven"]
"""unproven: the proof could not be carried out, and the checkpoint's status stays what it was."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Replay against one history of the run."""

    against: str  # which session's steps
    resumed: bool
    num_steps: int
    first: Difference | None
    fault: Fault | None
    evidence: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Nothing differs, and no sign in the file speaks against it."""
        return self.fault is None

    @property
    def text(self) -> str:
        """One sentence."""
        if self.fault is None:
            return f"{self.num_steps} steps of {self.against} are replayed as they were"
        if self.first is None:
            return f"within the band the steps of {self.against} are the same, but {self.evidence[0]}; this is {MEANING[self.fault]}"
        return f"{self.first.text} ({self.against}); this points to {self.fault}: {MEANING[self.fault]}"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome for one checkpoint.

    Fields:
        reason: one sentence.
        fault, evidence: of what was rejected, or of a session that went on from it otherwise.
        judgements: one for each history that was replayed.
        exactness: bit for bit, or the band and why.
        steps_replayed: by the proof itself.
        seconds: of the proof, and of the diagnosis where something differs.
    """

    name: str
    step: int
    digest: str | None
    outcome: Outcome
    reason: str
    fault: Fault | None = None
    evidence: tuple[str, ...] = ()
    judgements: tuple[Judgement, ...] = ()
    exactness: str = ""
    steps_replayed: int = 0
    seconds: float = 0.0

    @property
    def sound(self) -> bool:
        """Proven, and every session that went on from it did so rightly."""
        return self.outcome == "proven" and all(judgement.holds for judgement in self.judgements)

    @property
    def first_difference(self) -> str | None:
        """The first thing that differs."""
        return next((j.first.text for j in self.judgements if j.first is not None), None)

    def tree(self) -> dict[str, Any]:
        """For status.json and the report; numbers that JSON lacks are null."""
        tree = {
            "name": self.name,
            "step": self.step,
            "digest": self.digest,
            "outcome": self.outcome,
            "sound": self.sound,
            "reason": self.reason,
            "fault": self.fault,
            "first_difference": self.first_difference,
            "evidence": list(self.evidence),
            "judgements": [
                {"against": j.against, "resumed": j.resumed, "steps": j.num_steps, "holds": j.holds, "text": j.text} for j in self.judgements
            ],
            "exactness": self.exactness,
            "steps_replayed": self.steps_replayed,
            "seconds": self.seconds if math.isfinite(self.seconds) else None,
        }
        return tree

    def text(self) -> str:
        """For a terminal."""
        lines = [f"{self.name}: {self.outcome.upper()}. {self.reason}"]
        lines += [f"  {judgement.text}" for judgement in self.judgements if not judgement.holds]
        lines += [f"  + {text}" for text in self.evidence]
        if self.exactness:
            lines.append(f"  compared {self.exactness}; {self.steps_replayed} steps replayed in {self.seconds:.1f} s")
        return "\n".join(lines)
