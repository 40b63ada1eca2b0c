"""Unions of intervals, against counting every ns of small timelines."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from whystuck.tracing.arrays.intervals import Union, cover, overlap, reach_in_groups, unite

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=12)
Spans = list[tuple[int, int]]


def make_union(spans: Spans) -> Union:
    start = np.array([start for start, _ in spans], dtype=np.int64)
    return unite(start, start + np.array([length for _, length in spans], dtype=np.int64))


def tick(spans: Spans) -> set[int]:
    return {at for start, length in spans for at in range(start, start + length)}


@given(SPANS)
def test_a_union_covers_what_its_parts_cover(spans: Spans) -> None:
    union = make_union(spans)

    assert union.length == len(tick(spans))
    assert (union.start[1:] > union.end[:-1]).all()


@given(SPANS, SPANS)
def test_an_overlap_is_what_both_cover(one: Spans, other: Spans) -> None:
    assert overlap(make_union(one), make_union(other)) == len(tick(one) & tick(other))


@given(SPANS, st.lists(st.integers(-2, 45), max_size=5))
def test_cover_counts_what_lies_before(spans: Spans, times: list[int]) -> None:
    ticks = tick(spans)

    covered = cover(make_union(spans), np.array(times, dtype=np.int64))

    assert covered.tolist() == [sum(at < time for at in ticks) for time in times]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-(2**62), 2**62)), max_size=12))
def test_the_reach_begins_anew_with_each_group(given: list[tuple[int, int]]) -> None:
    given.sort(key=lambda one: one[0])
    group, end = (np.array([one[place] for one in given], dtype=np.int64) for place in (0, 1))

    reach = reach_in_groups(end, group)

    assert reach.tolist() == [
        max(other for same, other in given[: row + 1] if same == one)
        for row, (one, _) in enumerate(given)
    ]
