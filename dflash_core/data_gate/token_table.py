"""The table of tokens: a row for each prepared row of both splits, with the lengths, ids and mask that training will see.

N rows of a slice; all their tokens lie end to end.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pandas
import pyarrow
import pyarrow.compute

from dflash_core.data.dataset import Dataset

ROWS_AT_ONCE = 4096  # some 40 MB of rows of a thousand tokens


def token_table(
    datasets: Sequence[Dataset], mask_token_id: int | None, known_ids: Collection[str], round_trip_faults: Mapping[str, str]
) -> pandas.DataFrame:
    """One line a row.

    Args:
        datasets: the splits.
        mask_token_id: that no row may hold, where one is configured.
        known_ids: of the conversation files' rows.
        round_trip_faults: what is wrong with rows that were decoded, by id.
    """
    parts = [_slice_facts(part, dataset.split, mask_token_id) for dataset in datasets for part in dataset.slices(ROWS_AT_ONCE)]
    frame = pandas.concat(parts, ignore_index=True)
    frame["known"] = [row_id in known_ids for row_id in frame["row_id"]]
    frame["round_trip_fault"] = [round_trip_faults.get(row_id) for row_id in frame["row_id"]]
    return frame


def _slice_facts(part: pyarrow.Table, split: str, mask_token_id: int | None) -> pandas.DataFrame:
    ids, id_bounds = _flat(part["input_ids"])
    mask, mask_bounds = _flat(part["loss_mask"])
    num_tokens, num_mask = np.diff(id_bounds), np.diff(mask_bounds)
    lowest, highest = _extremes(ids, id_bounds)
    supervised = _counts(mask, mask_bounds[:-1], mask_bounds[1:])
    starts = mask[:-1] & mask[1:] if len(mask) else mask  # an anchor and a label behind it, perhaps of the next row
    return pandas.DataFrame(
        {
            "row_id": part["sample_id"].to_pylist(),
            "split": split,
            "truncated": part["truncated"].to_numpy(),
            "num_tokens": num_tokens,
            "num_mask": num_mask,
            "lowest_id": lowest,
            "highest_id": highest,
            "mask_tokens": 0 if mask_token_id is None else _counts(ids == mask_token_id, id_bounds[:-1], id_bounds[1:]),
            "num_supervised": supervised,
            "coverage": supervised / np.maximum(1, num_tokens),
            "first_supervised": _first_true(mask, mask_bounds),
            "num_anchors": _counts(starts, mask_bounds[:-1], np.maximum(mask_bounds[:-1], mask_bounds[1:] - 1)),
        }
    )


def _flat(column: pyarrow.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """All values end to end, and where each row starts and the last ends: int64 [N + 1]."""
    lists = column.combine_chunks()
    lengths_N = pyarrow.compute.list_value_length(lists).to_numpy(zero_copy_only=False)
    return lists.flatten().to_numpy(zero_copy_only=False), np.concatenate([[0], np.cumsum(lengths_N)]).astype(np.int64)


def _counts(flags: np.ndarray, starts_N: np.ndarray, ends_N: np.ndarray) -> np.ndarray:
    """How many flags are set in each row, int64 [N]."""
    before = np.concatenate([[0], np.cumsum(flags)])
    return before[ends_N] - before[starts_N]


def _extremes(ids: np.ndarray, bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest id of each row, float64 [N]; NaN for a row without tokens."""
    filled = np.diff(bounds) > 0
    found = np.full((2, len(filled)), np.nan)
    if filled.any():
        starts = bounds[:-1][filled]  # rows without tokens take no place, so these start where the ones before them end
        found[:, filled] = np.minimum.reduceat(ids, starts), np.maximum.reduceat(ids, starts)
    return found[0], found[1]


def _first_true(flags: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Place in its row of each row's first set flag, float64 [N]; NaN where none is."""
    places = np.append(np.flatnonzero(flags), len(flags))
    first = places[np.searchsorted(places, bounds[:-1])]
    return np.where(first < bounds[1:], first - bounds[:-1], np.nan)
