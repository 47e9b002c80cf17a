"""The shape of evaluation.json: what evaluating a drafter found, in one strict, versioned tree."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from dflash_core.evaluation.acceptance import Acceptance


class Record(BaseModel):
    """Base: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Subjects(Record):
    """Which drafter and target were measured, and how."""

    drafter_path: str
    drafter_lineage: dict[str, object]
    target_path: str
    target_identity: str
    dtype: str
    block_size: int
    max_new_tokens: int
    num_threads: int
    device: str


class Difference(Record):
    """Where speculative and plain output first differ: token `index` of the answer, `margin` of the target's two best logits."""

    sample_id: str
    index: int
    expected: int
    found: int
    margin: float
    tie: bool


class Outputs(Record):
    """Speculative output against the target's own greedy output; a difference at a tie isn't one of substance."""

    num_prompts: int
    num_tokens: int
    num_equal: int
    num_ties: int
    num_different: int
    differences: tuple[Difference, ...]


class WalkDifference(Record):
    """First round where chain walk and real decoding differ; `margin` is the smallest of drafter and target in that round."""

    sample_id: str
    round: int
    position: int
    walked: int | None
    decoded: int | None
    margin: float
    tie: bool


class WalkAgreement(Record):
    """Chain walk against real decoding, prompt by prompt, and what it costs; `speedup` compares it with real decoding."""

    num_prompts: int
    num_equal: int
    tau: float | None
    differences: tuple[WalkDifference, ...]
    seconds: float
    feature_seconds: float
    speedup: float | None


class Speed(Record):
    """Wall seconds over all prompts; `speedup` is plain over speculative, prefill included in both."""

    plain_s: float
    speculative_s: float
    speedup: float
    prefill_s: float
    target_s: float
    drafter_s: float
    overhead_s: float
    plain_tokens_per_s: float
    speculative_tokens_per_s: float


class Piece(Record):
    """Text of one token: given by the prefill, an accepted draft, or the target's own after the drafts of its round."""

    text: str
    kind: Literal["first", "draft", "bonus"]
    round: int


class SampleDecode(Record):
    """One answer, token by token, for a coloured report."""

    sample_id: str
    category: str
    prompt: str
    tau: float | None
    pieces: tuple[Piece, ...]


class PromptRecord(Record):
    """One prompt's rounds as a histogram over 1..K committed tokens, and its times."""

    sample_id: str
    category: str
    num_tokens: int
    histogram: tuple[int, ...]
    plain_s: float
    speculative_s: float


class EvaluationRecord(Record):
    """All of evaluation.json."""

    format: Literal[1] = 1
    subjects: Subjects
    acceptance: Acceptance
    by_category: dict[str, Acceptance]
    outputs: Outputs
    walk: WalkAgreement
    speed: Speed
    prompts: tuple[PromptRecord, ...]
    samples: tuple[SampleDecode, ...]
