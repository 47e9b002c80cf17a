"""The sections on data: conversations, buckets, and what the data must be before anything is trained on them."""

from typing import Annotated

from pydantic import Field, model_validator

from dflash_core.config_base import Fraction, PositiveInt, Section


class DataConfig(Section):
    """Conversations, and how they become tokens."""

    conversations: tuple[str, ...] = Field(description="JSONL, JSON or Parquet files, optionally .gz.", min_length=1)
    heldout_fraction: Fraction = Field(0.05, description="Share held out, by hash of the prompt, of rows without a split.")
    max_length: PositiveInt = Field(3072, description="Tokens after which a row is truncated.")
    min_response_tokens: PositiveInt = Field(2, description="Rows with fewer supervised tokens are dropped.")


class BucketConfig(Section):
    """Length buckets and the batch plan."""

    multiple: PositiveInt = Field(32, description="Bucket bounds are multiples of this many tokens.")
    tokens_per_step: PositiveInt = Field(8192, description="Padded tokens of one optimizer step, on average.")
    tokens_per_microbatch: PositiveInt = Field(4096, description="Most padded tokens of one micro-batch, a bound of memory.")


class DataGateConfig(Section):
    """What the data must be before anything is trained on them. Shares are of rows; what is not a share holds for every row."""

    min_rows: PositiveInt = Field(100, description="Fewest conversations.")
    max_dropped: Fraction = Field(0.05, description="Largest share that prepare may leave out.")
    max_garbled: Fraction = Field(0.01, description="Largest share with replacement or control characters.")
    similarity: Annotated[float, Field(gt=0.5, le=1.0)] = Field(
        0.9, description="Two texts are near-copies from this share of common runs of 8 letters or digits on."
    )
    max_near_copies: Fraction = Field(0.05, description="Largest share that nearly copies another conversation of its split.")
    max_truncated: Fraction = Field(0.25, description="Largest share cut at data.max_length.")
    min_coverage: Fraction = Field(0.01, description="A row with a smaller share of supervised tokens is thin.")
    max_thin: Fraction = Field(0.1, description="Largest share of thin rows.")
    num_round_trips: PositiveInt = Field(256, description="Rows whose tokens are decoded and compared with the conversation.")
    reference: str | None = Field(
        None, description="profile.json of an earlier gate, or MODEL@champion, whose own the flow fetches; null: neither drift nor loss is measured."
    )
    max_drift: Fraction = Field(0.1, description="Largest share that may have moved between scripts, or between categories, since then.")
    max_lost: Fraction = Field(0.1, description="Largest share of the reference's rows that may be gone.")

    @model_validator(mode="after")
    def _drift_needs_a_reference(self) -> "DataGateConfig":
        if self.reference is None:
            self._refuse_idle("max_drift", "without a reference")
            self._refuse_idle("max_lost", "without a reference")
        return self
