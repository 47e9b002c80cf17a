"""What a report says, as plain numbers and texts; nothing here knows where they come from or how they look."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class TrainingCurves:
    """Step records, one entry a step; None where a step had no such number."""

    steps: tuple[int, ...]
    loss: tuple[float, ...]
    streak: tuple[float | None, ...]
    lr: tuple[float, ...]
    grad_norm: tuple[float, ...]
    slot_accuracy: tuple[float | None, ...]  # of the last tenth of the run, slots 1..K-1
    eval_steps: tuple[int, ...]
    eval_tau: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Acceptance length with its 95 % interval, and what it is derived from."""

    tau: float | None
    low: float | None
    high: float | None
    num_prompts: int
    num_rounds: int
    num_tokens: int
    histogram: tuple[int, ...]  # rounds that committed 1..K tokens
    survival: tuple[float, ...]  # share of rounds that committed more than k tokens, k = 1..K-1


@dataclass(frozen=True, kw_only=True)
class SampleDecode:
    """One held-out prompt and its answer, cut into what each target forward committed: (tokens, text), the prefill's with 0."""

    sample_id: str
    category: str
    tau: float | None
    prompt: str
    blocks: tuple[tuple[int, str], ...]


@dataclass(frozen=True, kw_only=True)
class ProofRow:
    """What a proof said of one checkpoint."""

    name: str
    status: str  # committed, proven, rejected
    sound: bool
    fault: str | None
    first_difference: str | None
    reason: str


@dataclass(frozen=True)
class ReportTable:
    """A table as it is shown."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything a report shows.

    Attributes:
        title: the run's name.
        headline: the few numbers to look at first, label to text, in order.
        identity: what ran on what: label to text.
        evaluation: rows of the evaluation table: label to text.
        tables: acceptance by parts and by other definitions.
        buckets: (bucket length in tokens, rows) in ascending order; lengths are multiples of `bucket_multiple`.
        lengths: rows by length: (lower bound of a bin, rows).
        padding_waste: share of padded tokens.
        categories: acceptance by category of prompt.
        proofs: the checkpoints that are left, oldest first.
    """

    title: str
    headline: dict[str, str]
    identity: dict[str, str]
    evaluation: dict[str, str]
    curves: TrainingCurves
    overall: Measured
    categories: dict[str, Measured]
    buckets: tuple[tuple[int, int], ...]
    bucket_multiple: int
    lengths: tuple[tuple[int, int], ...]
    padding_waste: float
    samples: tuple[SampleDecode, ...]
    proofs: tuple[ProofRow, ...]
    tables: tuple[ReportTable, ...] = ()
    raw_evaluation: dict[str, Any]
