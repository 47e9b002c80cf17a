"""The shape of evaluation.json: what evaluating a drafter found, in one strict, versioned tree."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from dflash_core.evaluation.acceptance import Acceptance


class Record(BaseModel):
    """Base: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Subjects(Record):
    """Which drafter and target were measured, on what and how.

    Attributes:
        block_size: K that was decoded with; `trained_block_size` may be larger.
        batch_size: prompts that were decoded at once, which the speed depends on, and τ does not.
        rule: greedy, rejection or match.
        prompt_sets: sha256 of each set's file by name; of the prepared dataset for the held-out split.
        prompts_digest: of all first-turn prompts as tokens: two evaluations with one digest asked the same.
        left_out: turns that were too long for the target's context, by set.
    """

    drafter_path: str
    drafter_lineage: dict[str, object]
    target_path: str
    target_identity: str
    dtype: str
    block_size: int
    trained_block_size: int
    batch_size: int = 1
    max_new_tokens: int
    temperature: float
    rule: Literal["greedy", "rejection", "match"]
    seed: int
    template: Literal["chat", "raw"]
    prompt_sets: dict[str, str]
    prompts_digest: str
    left_out: dict[str, int]
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


class Parity(Record):
    """The drafter's serve path against its train path on the same texts, with rounds of every length and cropped drafts.

    Attributes:
        largest_difference: of a final hidden state's entry, over the root mean square of its row.
        largest_feature_difference: the same of the target's features, verified in parts against all at once.
        tolerance: what `largest_difference` may be in this dtype.
        num_different_drafts: slots with another best token; `num_near_ties` are those where the two best nearly agree.
    """

    num_texts: int
    num_blocks: int
    largest_difference: float
    largest_feature_difference: float
    tolerance: float
    num_different_drafts: int
    num_near_ties: int


class Speed(Record):
    """Wall seconds over all prompts.

    Attributes:
        speedup: seconds of the target alone over those with the drafter, a token, prefill included in both; 95 % interval.
        token_s, round_s: a token of the target alone and a round, after the prefill.
        break_even_tau: from which a round pays.
        predicted: speed-up at other τ, if rounds cost what they did.
    """

    plain_s: float
    speculative_s: float
    speedup: float
    speedup_low: float | None
    speedup_high: float | None
    prefill_s: float
    target_s: float
    drafter_s: float
    overhead_s: float
    plain_tokens_per_s: float
    speculative_tokens_per_s: float
    token_s: float | None
    round_s: float | None
    break_even_tau: float | None
    predicted: dict[str, float]


class GenerateSpeed(Record):
    """transformers' generate() on some of the prompts: `speedup` is ours with the drafter over it, `plain_speedup` our loop without."""

    num_prompts: int
    generate_s: float
    generate_tokens_per_s: float
    speedup: float
    speedup_low: float | None
    speedup_high: float | None
    plain_speedup: float


class Definition(Record):
    """Acceptance as somebody counts it."""

    name: str
    value: float | None
    used_by: str


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
    """One prompt: the tokens that each of its rounds committed, and its times."""

    sample_id: str
    set_name: str
    category: str
    turn: int
    num_prompt_tokens: int
    num_tokens: int
    rounds: tuple[int, ...]
    plain_s: float
    speculative_s: float


class EvaluationRecord(Record):
    """All of evaluation.json. Sampled answers have nothing to be equal to: `outputs` and `walk` are None."""

    format: Literal[2] = 2
    subjects: Subjects
    acceptance: Acceptance
    by_set: dict[str, Acceptance]
    by_category: dict[str, Acceptance]
    by_position: dict[str, Acceptance]
    by_prompt_length: dict[str, Acceptance]
    definitions: tuple[Definition, ...]
    outputs: Outputs | None
    walk: WalkAgreement | None
    parity: Parity
    speed: Speed
    generate: GenerateSpeed | None
    prompts: tuple[PromptRecord, ...]
    samples: tuple[SampleDecode, ...]
