"""A finding: one thing that a detector saw, where, how large, and whether it is a fault.

The words for kinds are the report's vocabulary; a reader of the JSON may rely on them (SCHEMA in result.py).
"""

from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

Severity = Literal["note", "warning", "fault"]
"""note: seen, and ordinary; warning: look at it; fault: the run is unhealthy because of it."""

KINDS = frozenset(
    (
        *("nonfinite", "step_gap", "step_repeat", "counter_change", "loss_spike", "level_shift", "drop_then_return", "slow_climb"),
        *("divergence", "plateau", "epoch_stairs", "periodic", "grad_spike", "accuracy_drop", "train_eval_split", "queue_drift"),
        *("throughput_change", "lr_break", "two_writers", "resume_replay", "aborted_start", "overfit_burst", "instability_episode"),
        *("loss_scale_wrong", "single_outlier", "logging_artifact"),
    )
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One observation.

    Fields:
        kind: one of KINDS.
        step: where it is, or begins.
        index: the row of the cleaned series where it begins; -1 where it has none.
        severity: see Severity.
        size: robust sigma, or another measure where `text` says so; ranks findings of one kind.
        text: one sentence for a person.
        detail: the kind's own fields, as the JSON shows them.
    """

    kind: str
    step: float
    index: int = -1
    severity: Severity = "note"
    size: float = 0.0
    text: str = ""
    detail: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.kind in KINDS, self.kind

    def with_detail(self, *, severity: Severity | None = None, text: str | None = None, **detail: Any) -> Self:
        """The same finding, knowing more."""
        return replace(self, severity=severity or self.severity, text=text or self.text, detail=self.detail | detail)
