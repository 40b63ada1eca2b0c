"""Figures of groups, against plain Python and numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystuck.tracing.arrays.segments import (
    find_quantiles,
    look_up,
    number_codes,
    number_values,
    order_in_groups,
    sort_in_groups,
    sum_groups,
)

# Small ranges are counted, middling ones sorted as one number, wide ones by two keys.
RANGES = st.sampled_from([3, 1000, 2**61])
PAIRS = RANGES.flatmap(
    lambda most: st.lists(st.tuples(st.integers(0, 3), st.integers(-most, most)), max_size=20)
)
Pairs = list[tuple[int, int]]


def split(pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
    group, value = (np.array([pair[part] for pair in pairs], dtype=np.int64) for part in (0, 1))
    return group, value


@given(PAIRS)
def test_values_are_sorted_within_groups(pairs: Pairs) -> None:
    group, value = split(pairs)

    assert sort_in_groups(value, group).tolist() == [value for _, value in sorted(pairs)]
    order = order_in_groups(value, group)
    # Equal ones stay as they are.
    assert order.tolist() == sorted(range(len(pairs)), key=lambda row: pairs[row])


@given(PAIRS)
def test_sums_are_exact(pairs: Pairs) -> None:
    group, value = split(pairs)

    sums = sum_groups(value // 64, group, 5).tolist()

    assert sums == [sum(one // 64 for key, one in pairs if key == place) for place in range(5)]


@given(st.lists(st.integers(0, 30)))
def test_numbers_are_those_of_unique(values: list[int]) -> None:
    codes = np.array(values, dtype=np.int64)
    expected = [one.tolist() for one in np.unique(codes, return_inverse=True)]

    assert [one.tolist() for one in number_codes(codes, 31)] == expected
    assert [one.tolist() for one in number_values(codes)] == expected


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1000)), max_size=20))
def test_quantiles_are_those_of_numpy(pairs: Pairs) -> None:
    group, value = split(pairs)

    low, quarter, high = find_quantiles(value, group, 5, (0, 0.25, 1))

    for place in range(5):
        mine = value[group == place]
        found = [low[place], quarter[place], high[place]]
        if not len(mine):
            assert found == [-1, -1, -1]
            continue
        assert found == pytest.approx(np.quantile(mine, (0, 0.25, 1)), abs=0.5)


@given(RANGES.flatmap(lambda most: st.tuples(*[st.lists(st.integers(-most, most))] * 2)))
def test_values_are_looked_up(lists: tuple[list[int], list[int]]) -> None:
    keys, wanted = sorted([0, *lists[0]]), [*lists[0], *lists[1], 2**62, -(2**62)]
    found = look_up(np.array(keys, dtype=np.int64), np.array(wanted, dtype=np.int64))
    assert found.tolist() == [keys.index(one) if one in keys else -1 for one in wanted]
