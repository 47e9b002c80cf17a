"""A kind of each table of benchmarks/bad_data.py stops with its expectation and rows, and unusual data pass; the campaign has all."""

from collections.abc import Callable

import pytest
from bad_data_cases import BAD, Case
from clean_data_cases import CLEAN

# A trial takes 0.4 s, most of it Great Expectations' own work on thirty expectations of any number of rows.
SOME_BAD = ("held-out near-copy of a training row", "near-copies", "a lost category", "mask one token late", "row dealt twice", "two user turns in a row")
SOME_CLEAN = ("several turns, a system turn", "a later version that moved a little")


def test_there_are_enough_kinds() -> None:
    assert len(BAD) >= 25 and len(CLEAN) >= 20
    assert len({case.name for case in (*BAD, *CLEAN)}) == len(BAD) + len(CLEAN)


@pytest.mark.parametrize("case", [case for case in (*BAD, *CLEAN) if case.name in SOME_BAD + SOME_CLEAN], ids=lambda case: case.name)
def test_bad_data_are_stopped_with_their_rows_and_unusual_data_are_not(case: Case, run: Callable[[Case], dict]) -> None:
    trial = run(case)
    assert trial["right"], trial
    assert (case.name in SOME_BAD) is (trial["stopped_by"] is not None)
