"""One test of many cases runs all of them, and names those that fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.each import each

SEEN: list[int] = []


@each("case", range(3))
def check(case: int) -> None:
    SEEN.append(case)
    assert case == 1


def test_all_cases_run_and_those_that_fail_are_named() -> None:
    SEEN.clear()
    with pytest.RaisesGroup(AssertionError, AssertionError) as caught:
        check()

    assert SEEN == [0, 1, 2]
    assert [error.__notes__ for error in caught.value.exceptions] == [["case: 0"], ["case: 2"]]


@pytest.mark.parametrize("factor", [1, 2])
@each("case", [1, 2, 3])
def test_other_arguments_are_fixtures_and_parameters(
    tmp_path: Path, case: int, factor: int
) -> None:
    assert tmp_path.is_dir()
    assert case * factor in range(7)
