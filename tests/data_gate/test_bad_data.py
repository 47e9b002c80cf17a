"""Some of benchmarks/bad_data.py: each expectation stops a kind of bad data and names its rows; clean data pass."""

from collections.abc import Callable

import pytest
from bad_data_cases import BAD, Case
from clean_data_cases import CLEAN

# The first kind of each expectation: the other kinds break it in another way.
FIRST_OF_EACH = list({case.expectation: case for case in reversed(BAD)}.values())
UNUSUAL = [case for case in CLEAN if case.name in ("several turns, a system turn", "a later version that moved a little", "two files", "no ids")]


def test_there_are_enough_kinds() -> None:
    assert len(BAD) >= 25 and len(CLEAN) >= 20
    assert len({case.name for case in (*BAD, *CLEAN)}) == len(BAD) + len(CLEAN)


@pytest.mark.parametrize("case", FIRST_OF_EACH, ids=lambda case: case.name)
def test_bad_data_are_stopped_by_the_right_expectation_with_the_rows(case: Case, run: Callable[[Case], dict]) -> None:
    trial = run(case)
    assert trial["right"], trial


@pytest.mark.parametrize("case", UNUSUAL, ids=lambda case: case.name)
def test_unusual_data_are_not_stopped(case: Case, run: Callable[[Case], dict]) -> None:
    trial = run(case)
    assert trial["right"], trial
