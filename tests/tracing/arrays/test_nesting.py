"""What lies in what, against a plain stack."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whystuck.tracing.arrays import nesting
from whystuck.tracing.arrays.nesting import nest

_EVENTS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)), max_size=40
)


def nest_plainly(events: list[tuple[int, int, int]]) -> dict[int, tuple[int, int, int]]:
    """Parent, depth and end of each event by its position."""
    found: dict[int, tuple[int, int, int]] = {}
    order = sorted(range(len(events)), key=lambda i: (events[i][0], events[i][1], -events[i][2], i))
    stack: list[tuple[int, int]] = []
    thread = -1
    for place in order:
        one, start, length = events[place]
        if one != thread:
            stack, thread = [], one
        while stack and stack[-1][1] <= start:
            stack.pop()
        end = min(start + length, stack[-1][1]) if stack else start + length
        found[place] = (stack[-1][0] if stack else -1, len(stack), end)
        stack.append((place, end))
    return found


@given(_EVENTS)
@settings(deadline=None)
def test_nesting_equals_that_of_a_stack(events: list[tuple[int, int, int]]) -> None:
    thread, start, length = np.array(events, dtype=np.int64).reshape(-1, 3).T

    made = nest(thread, start, start + length)

    expected = nest_plainly(events)
    row = made.row.tolist()
    parents = [row[place] if place >= 0 else -1 for place in made.parent.tolist()]
    found = zip(row, parents, made.depth.tolist(), made.end.tolist(), strict=True)
    assert {one: rest for one, *rest in found} == {
        place: list(values) for place, values in expected.items()
    }


@pytest.mark.parametrize("steps", [nesting._MOST_STEPS, 0, 1])
@given(events=_EVENTS, asked=st.lists(st.tuples(st.integers(-1, 3), st.integers(-2, 45))))
@settings(deadline=None)
def test_deepest_is_the_innermost_that_holds_a_time(
    steps: int, events: list[tuple[int, int, int]], asked: list[tuple[int, int]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nesting, "_MOST_STEPS", steps)
        check_deepest(events, asked)


def test_times_behind_very_many_levels_take_no_step_for_each() -> None:
    # Step by step, this takes hours: 10^10 of them.
    levels = np.arange(100_000, dtype=np.int64)
    made = nest(levels * 0, levels, 400_000 - levels)
    at = 300_000 + levels

    found = made.deepest(levels * 0, at)

    assert (made.end[found] > at).all()
    assert (made.end[np.minimum(found + 1, len(made) - 1)] <= at)[1:].all()


def check_deepest(events: list[tuple[int, int, int]], asked: list[tuple[int, int]]) -> None:
    thread, start, length = np.array(events, dtype=np.int64).reshape(-1, 3).T
    made = nest(thread, start, start + length)
    wanted = np.array(asked, dtype=np.int64).reshape(-1, 2)

    found = made.deepest(wanted[:, 0], wanted[:, 1])

    for place, (one, at) in zip(found.tolist(), asked, strict=True):
        holding = [
            (int(made.depth[i]), i)
            for i in range(len(made))
            if made.thread[i] == one
            and (made.start[i] <= at < made.end[i] or made.start[i] == at == made.end[i])
        ]
        depth = int(made.depth[place]) if place >= 0 else -1
        assert depth == max((deep for deep, _ in holding), default=-1)
        assert place == -1 or (depth, place) in holding


@given(_EVENTS, st.lists(st.booleans(), min_size=40, max_size=40), st.booleans())
@settings(deadline=None)
def test_going_up_by_jumps_finds_what_going_down_by_levels_does(
    events: list[tuple[int, int, int]], meant: list[bool], is_outer: bool
) -> None:
    thread, start, length = np.array(events, dtype=np.int64).reshape(-1, 3).T
    made = nest(thread, start, start + length)
    is_meant = np.array(meant[: len(made)], dtype=np.bool_)

    jumped = made._climb(is_meant, is_outer=is_outer)

    assert jumped.tolist() == made._descend(is_meant, is_outer=is_outer).tolist()


def test_very_many_levels_are_climbed() -> None:
    count = 100_000
    start = np.arange(count)
    made = nest(np.zeros(count, dtype=np.int64), start, 3 * count - start)
    is_meant = start % 1000 == 999

    assert made.depth.max() == count - 1
    assert made.innermost(is_meant)[-2:].tolist() == [count - 1001, count - 1]
    assert set(made.outermost(is_meant)[999:].tolist()) == {999}
    assert "_inner_levels" not in vars(made)


def test_self_time_is_what_no_inner_event_takes() -> None:
    start, end = np.array([0, 10, 20, 22]), np.array([100, 15, 40, 30])

    made = nest(np.zeros(4, dtype=np.int64), start, end)

    assert made.self_ns.tolist() == [75, 5, 12, 8]
    assert made.root.tolist() == [0, 0, 0, 0]


def test_outermost_and_innermost_pass_over_what_is_not_meant() -> None:
    start, end = np.array([0, 1, 2, 3, 50]), np.array([40, 39, 38, 37, 60])
    made = nest(np.zeros(5, dtype=np.int64), start, end)
    is_meant = np.array([False, True, True, False, False])

    assert made.outermost(is_meant).tolist() == [-1, 1, 1, 1, -1]
    assert made.innermost(is_meant).tolist() == [-1, 1, 2, 2, -1]


def test_million_events_nest_without_a_loop_over_them() -> None:
    count = 1_000_000
    start = np.arange(count, dtype=np.int64)
    end = 2 * count - start  # each holds all that follow

    made = nest(np.zeros(count, dtype=np.int64), start, end)

    assert made.depth[-1] == count - 1
    assert (made.parent[1:] == np.arange(count - 1)).all()


@given(_EVENTS, st.lists(st.integers(0, 2), min_size=40, max_size=40))
@settings(deadline=None)
def test_recursion_is_told_from_the_first_call(
    events: list[tuple[int, int, int]], kinds: list[int]
) -> None:
    thread, start, length = np.array(events, dtype=np.int64).reshape(-1, 3).T
    made = nest(thread, start, start + length)
    kind = np.array(kinds, dtype=np.int64)[: len(made)]

    found = made.is_outermost_of(kind)

    for place in range(len(made)):
        above = int(made.parent[place])
        while above >= 0 and kind[above] != kind[place]:
            above = int(made.parent[above])
        assert bool(found[place]) == (above < 0)
