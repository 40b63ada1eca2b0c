"""Calls of the host are nested as they called each other."""

from __future__ import annotations

import numpy as np

from whystuck.tracing.host.call_trees import CallTree, build_tree, end_subtrees, inherit

Event = tuple[int, int, int]


def nest(events: list[Event]) -> CallTree:
    """The tree of events, each a start, a length and a thread."""
    start = np.array([one[0] for one in events], dtype=np.int64)
    end = start + np.array([one[1] for one in events], dtype=np.int64)
    thread = np.array([one[2] for one in events], dtype=np.int64)
    return build_tree(start, end, thread, np.arange(len(events)))


def callers(tree: CallTree) -> dict[int, int]:
    """The caller of each event, by their numbers."""
    parents = [int(tree.row[at]) if at >= 0 else -1 for at in tree.parent.tolist()]
    return dict(zip(tree.row.tolist(), parents, strict=True))


def test_calls_are_nested_and_time_is_their_own() -> None:
    tree = nest([(0, 100, 0), (10, 30, 0), (15, 5, 0), (50, 20, 0), (10, 30, 1)])

    assert callers(tree) == {0: -1, 1: 0, 2: 1, 3: 0, 4: -1}
    own = dict(zip(tree.row.tolist(), tree.self_ns.tolist(), strict=True))
    assert own == {0: 50, 1: 25, 2: 5, 3: 20, 4: 30}


def test_an_end_that_was_rounded_up_does_not_make_the_next_call_a_child() -> None:
    tree = nest([(0, 10, 0), (2, 9, 0), (10, 10, 0)])

    assert callers(tree) == {0: -1, 1: 0, 2: -1}


def test_calls_without_length_are_children() -> None:
    tree = nest([(0, 10, 0), (4, 0, 0), (5, 2, 0), (10, 0, 0)])

    assert callers(tree) == {0: -1, 1: 0, 2: 0, 3: -1}


def test_no_events() -> None:
    assert len(nest([])) == 0


def test_what_is_below_a_call_comes_behind_it() -> None:
    tree = nest([(0, 100, 0), (10, 30, 0), (15, 5, 0), (50, 20, 0), (10, 30, 1), (100, 0, 0)])

    ends = dict(zip(tree.row.tolist(), end_subtrees(tree).tolist(), strict=True))
    assert ends == {0: 4, 1: 3, 2: 3, 3: 4, 5: 5, 4: 6}


def test_huge_times_do_not_overflow() -> None:
    far = 2**62
    tree = nest([(far, 1000, 5), (far + 10, 10, 5), (-far, 10, 4000)])

    assert callers(tree) == {0: -1, 1: 0, 2: -1}


def test_values_come_from_the_nearest_caller() -> None:
    tree = nest([(0, 100, 0), (10, 80, 0), (20, 10, 0), (200, 10, 0)])

    assert inherit(tree, np.array([7, -1, -1, -1])).tolist() == [7, 7, 7, -1]
    assert inherit(tree, np.array([7, 8, -1, 3])).tolist() == [7, 8, 8, 3]
