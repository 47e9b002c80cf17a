"""The suites: what must hold of conversations, tokens and plan, as Great Expectations' own expectations.

They stand in code, since a stored suite loses, in silence, every expectation whose class isn't imported. Each carries
a name, by which a verdict refers to it, and a sentence for a person.
"""

from typing import Any

from great_expectations.expectations import (
    Expectation,
    ExpectColumnPairValuesAToBeGreaterThanB,
    ExpectColumnPairValuesToBeEqual,
    ExpectColumnValuesToBeBetween,
    ExpectColumnValuesToBeInSet,
    ExpectColumnValuesToBeNull,
    ExpectColumnValuesToBeUnique,
    ExpectColumnValuesToNotBeNull,
    ExpectCompoundColumnsToBeUnique,
    ExpectTableRowCountToBeBetween,
)

from dflash_core.config import Config
from dflash_core.config_data import DataGateConfig
from dflash_core.data_gate.profile import Profile


def _meta(name: str, says: str, *shown: str, limit: str = "") -> dict[str, Any]:
    """`shown` are columns that a person needs beside the one that is looked at, `limit` is the key in data_gate that sets how many rows may fail."""
    return {"name": name, "says": says, "shown": list(shown), "limit": limit and f"data_gate.{limit}"}


def conversation_suite(gate: DataGateConfig, reference: Profile | None) -> list[Expectation]:
    """On the table of conversations, whether they have been prepared or not."""
    kept = 0 if reference is None else round((1 - gate.max_lost) * reference.num_rows)
    fewest = max(gate.min_rows, kept)
    suite = [
        ExpectTableRowCountToBeBetween(
            min_value=fewest,
            meta=_meta("enough-rows", f"There are at least {fewest:,} conversations.", limit="max_lost" if kept > gate.min_rows else "min_rows"),
        ),
        ExpectColumnValuesToBeNull(column="shape_fault", meta=_meta("known-shape", "Every row is a conversation in a known spelling.")),
        ExpectColumnValuesToBeNull(
            column="order_fault", meta=_meta("turns-in-order", "User and assistant take turns; the assistant has the last word.")
        ),
        ExpectColumnValuesToBeUnique(column="row_id", meta=_meta("unique-ids", "No two conversations have the same id.")),
        ExpectColumnValuesToBeBetween(column="shortest_turn", min_value=1, meta=_meta("turns-hold-text", "No turn is empty.")),
        ExpectColumnValuesToBeNull(
            column="garbled",
            mostly=1 - gate.max_garbled,
            meta=_meta(
                "readable-text", f"At most {gate.max_garbled:.1%} of the rows hold replacement or control characters.", limit="max_garbled"
            ),
        ),
    ]
    return suite if reference is None else suite + _drift(gate)


def _drift(gate: DataGateConfig) -> list[Expectation]:
    return [
        ExpectColumnValuesToBeBetween(
            column=f"{what}_drift",
            max_value=gate.max_drift,
            meta=_meta(
                f"same-{plural}", f"At most {gate.max_drift:.0%} of the rows moved to other {plural} since the reference.", what, limit="max_drift"
            ),
        )
        for what, plural in (("script", "scripts"), ("category", "categories"))
    ]


def split_suite(gate: DataGateConfig) -> list[Expectation]:
    """On the table of conversations, once it is known which of them are in which split."""
    return [
        ExpectColumnValuesToNotBeNull(
            column="split",
            mostly=1 - gate.max_dropped,
            meta=_meta("few-dropped", f"Stage prepare left out at most {gate.max_dropped:.1%} of the rows.", limit="max_dropped"),
        ),
        ExpectColumnValuesToBeNull(
            column="near_copy_of",
            mostly=1 - gate.max_near_copies,
            meta=_meta(
                "few-near-copies",
                f"At most {gate.max_near_copies:.1%} of the rows nearly copy another one of their split.",
                limit="max_near_copies",
            ),
        ),
        ExpectColumnValuesToBeNull(
            column="leak_of", meta=_meta("no-leakage", "No held-out row nearly copies a training row, or asks its question.")
        ),
    ]


def token_suite(config: Config, num_token_ids: int) -> list[Expectation]:
    """On the table of tokens."""
    return [*_identity_of_rows(), *_tokens(config, num_token_ids), *_mask(config)]


def _identity_of_rows() -> list[Expectation]:
    return [
        ExpectTableRowCountToBeBetween(min_value=1, meta=_meta("any-prepared-rows", "There are prepared rows.")),
        ExpectColumnValuesToBeUnique(column="row_id", meta=_meta("prepared-once", "No row was prepared twice, nor in both splits.")),
        ExpectColumnValuesToBeInSet(
            column="known", value_set=[True], meta=_meta("prepared-from-these-files", "Every prepared row is in the conversation files.")
        ),
        ExpectColumnValuesToBeNull(
            column="round_trip_fault", meta=_meta("round-trip", "Decoded, a row is its conversation, and the supervised tokens its answers.")
        ),
    ]


def _tokens(config: Config, num_token_ids: int) -> list[Expectation]:
    longest, gate = config.data.max_length, config.data_gate
    return [
        ExpectColumnValuesToBeBetween(
            column="num_tokens", min_value=1, max_value=longest, meta=_meta("row-length", f"A row has 1 to {longest:,} tokens.")
        ),
        ExpectColumnValuesToBeBetween(column="lowest_id", min_value=0, meta=_meta("token-ids-from-0", "No token id is negative.")),
        ExpectColumnValuesToBeBetween(
            column="highest_id",
            max_value=num_token_ids - 1,
            meta=_meta("token-ids-in-range", f"Every token id is a row of the target's embedding, below {num_token_ids:,}."),
        ),
        ExpectColumnValuesToBeBetween(column="mask_tokens", max_value=0, meta=_meta("no-mask-token", "No row holds the drafter's mask token.")),
        ExpectColumnValuesToBeInSet(
            column="truncated",
            value_set=[False],
            mostly=1 - gate.max_truncated,
            meta=_meta("few-truncated", f"At most {gate.max_truncated:.0%} of the rows were cut at {longest:,} tokens.", limit="max_truncated"),
        ),
    ]


def _mask(config: Config) -> list[Expectation]:
    least, gate = config.data.min_response_tokens, config.data_gate
    return [
        ExpectColumnPairValuesToBeEqual(
            column_A="num_tokens", column_B="num_mask", meta=_meta("mask-length", "Every token has an entry in the loss mask.")
        ),
        ExpectColumnValuesToBeBetween(
            column="num_supervised", min_value=least, meta=_meta("supervised-tokens", f"Every row has at least {least} supervised tokens.")
        ),
        ExpectColumnValuesToBeBetween(
            column="first_supervised", min_value=1, meta=_meta("prompt-not-supervised", "A row begins with what is not supervised.")
        ),
        ExpectColumnValuesToBeBetween(
            column="coverage",
            min_value=gate.min_coverage,
            mostly=1 - gate.max_thin,
            meta=_meta(
                "mask-coverage",
                f"At most {gate.max_thin:.0%} of the rows have under {gate.min_coverage:.1%} of their tokens supervised.",
                limit="max_thin",
            ),
        ),
    ]


def plan_suite(num_rows: int, num_epochs: int, buckets: list[int]) -> list[Expectation]:
    """On the table of the plan."""
    dealt = num_rows * num_epochs
    return [
        ExpectTableRowCountToBeBetween(
            min_value=dealt, max_value=dealt, meta=_meta("plan-size", f"{num_epochs} epochs of {num_rows:,} rows are {dealt:,} samples.")
        ),
        ExpectCompoundColumnsToBeUnique(
            column_list=["epoch", "row_id"], meta=_meta("once-per-epoch", "No row is dealt twice in an epoch.")
        ),
        ExpectColumnValuesToNotBeNull(column="step", meta=_meta("none-left-out", "Every row is in a step of each epoch.")),
        ExpectColumnPairValuesAToBeGreaterThanB(
            column_A="padded_length",
            column_B="num_tokens",
            or_equal=True,
            ignore_row_if="either_value_is_missing",
            meta=_meta("row-fits-its-bucket", "No row is longer than its micro-batch is padded to."),
        ),
        ExpectColumnValuesToBeInSet(
            column="padded_length", value_set=buckets, meta=_meta("batch-of-a-bucket", "Micro-batches are padded to a bucket's length.")
        ),
        ExpectColumnPairValuesAToBeGreaterThanB(
            column_A="batch_limit",
            column_B="batch_tokens",
            or_equal=True,
            ignore_row_if="either_value_is_missing",
            meta=_meta("batch-within-limit", "No micro-batch of several rows exceeds bucket.tokens_per_microbatch."),
        ),
        ExpectColumnValuesToBeBetween(
            column="num_anchors", min_value=1, meta=_meta("anchor-possible", "Every row has a place for an anchor: two supervised tokens in a row.")
        ),
    ]
