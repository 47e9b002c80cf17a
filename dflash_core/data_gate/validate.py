"""Has Great Expectations validate a table, and turns its result into outcomes with the bad rows' ids.

Everything happens in memory: no store, no file, no data docs. Version 1.24 has no telemetry of its own, and an
ephemeral context looks for no cloud account.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import great_expectations
import pandas
from great_expectations.core.batch_definition import BatchDefinition
from great_expectations.data_context.types.base import DataContextConfig, InMemoryStoreBackendDefaults, ProgressBarsConfig
from great_expectations.expectations import Expectation

from dflash_core.data_gate.verdict import BadRow, Outcome

# Every bad row's position, and none of its values: those are looked up in the table, where missing ones are no NaN yet.
RESULT_FORMAT = {"result_format": "COMPLETE", "exclude_unexpected_values": False, "return_unexpected_index_query": False}


def validate(table: str, frame: pandas.DataFrame, suite: Sequence[Expectation]) -> list[Outcome]:
    """The outcome of each expectation, in their order.

    Args:
        table: its name.
        frame: with a column row_id.
        suite: each with a name and a sentence in its meta.
    """
    frame = frame.reset_index(drop=True)
    expectations = great_expectations.ExpectationSuite(name=table, expectations=list(suite))
    batch = _definition(table).get_batch({"dataframe": frame})
    results = batch.validate(expectations, result_format=RESULT_FORMAT).results
    by_name = {result.expectation_config.meta["name"]: result.to_json_dict() for result in results}
    # An expectation that gave no result is looked up in vain here, and the gate says no.
    return [_outcome(table, frame, expectation, by_name[expectation.meta["name"]]) for expectation in suite]


@cache
def _definition(table: str) -> BatchDefinition:
    """Of any frame under this table's name; making the context takes 0.1 s. Without a configuration it would make a directory for docs."""
    config = DataContextConfig(
        store_backend_defaults=InMemoryStoreBackendDefaults(), progress_bars=ProgressBarsConfig(globally=False), analytics_enabled=False
    )
    context = great_expectations.get_context(mode="ephemeral", project_config=config)
    asset = context.data_sources.add_pandas("tables").add_dataframe_asset(table)
    return asset.add_batch_definition_whole_dataframe("all")


def _outcome(table: str, frame: pandas.DataFrame, expectation: Expectation, result: Mapping[str, Any]) -> Outcome:
    columns = _columns(expectation)
    found = result["result"]
    positions = found.get("unexpected_index_list") or []
    return Outcome(
        table=table,
        name=expectation.meta["name"],
        expectation=type(expectation).__name__,
        column=", ".join(columns),
        says=expectation.meta["says"],
        limit=expectation.meta["limit"],
        passed=bool(result["success"]),
        observed=_observed(found),
        fault=_exception(result["exception_info"]),
        bad_rows=tuple(_bad_row(frame, position, [*expectation.meta["shown"], *columns]) for position in positions),
    )


def _columns(expectation: Expectation) -> list[str]:
    pair = [getattr(expectation, name, None) for name in ("column", "column_A", "column_B")]
    return [name for name in (*pair, *getattr(expectation, "column_list", ())) if name is not None]


def _observed(found: Mapping[str, Any]) -> str:
    """Rows counted, or how many of them fail."""
    if "observed_value" in found:
        return f"{found['observed_value']:,}"
    count = found.get("unexpected_count")
    return "not measured" if count is None else f"{count:,} of {found['element_count']:,}"


def _exception(info: Mapping[str, Any]) -> str | None:
    """The message of what an expectation raised: the data weren't measured. Given by metric where several raised."""
    infos = [info] if "raised_exception" in info else list(info.values())
    messages = [str(one["exception_message"]) for one in infos if one.get("raised_exception")]
    return messages[0] if messages else None


def _bad_row(frame: pandas.DataFrame, position: int, columns: Sequence[str]) -> BadRow:
    line = frame.iloc[position]
    values = {name: _shown(line[name]) for name in columns}
    where = line["where"] if "where" in frame.columns else None
    return BadRow(row_id=str(line["row_id"]), values=values, where=where)


def _shown(value: Any) -> str | None:
    if pandas.isna(value):
        return None
    return f"{value:.6g}" if isinstance(value, float) else str(value)
