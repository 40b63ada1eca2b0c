"""Two trees of calls are laid over each other."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tracing.data import make_event, make_trace
from tests.tracing.diff.jobs import OPTIONS, side_of

from whystuck.evidence.table import Table
from whystuck.tracing.diff import tree_align
from whystuck.tracing.diff.comparison import compare_sides
from whystuck.tracing.diff.nodes import NODES
from whystuck.tracing.diff.tree_align import CallNodes, align_trees, match_in_order
from whystuck.tracing.view import TraceView


def tree(text: str) -> CallNodes:
    """A tree from lines, each indented below its caller; names in capitals are kernels."""
    keys, parents, above = [], [], list[int]()
    for node, line in enumerate(text.split("\n")):
        depth = len(line) - len(line.lstrip())
        name = line.strip()
        keys.append(("kernel" if name.isupper() else "op", name))
        parents.append(above[depth - 1] if depth else -1)
        above = [*above[:depth], node]
    return CallNodes(keys, parents)


def changes(one: str, other: str) -> dict[str, list[str]]:
    a, b = tree(one), tree(other)
    found = align_trees(a, b)
    ours = [*(pair[0] for pair in found.pairs), *(pair[0] for pair in found.moved), *found.removed]
    theirs = [*(pair[1] for pair in found.pairs), *(pair[1] for pair in found.moved), *found.added]
    assert sorted(ours) == list(range(len(a.key)))
    assert sorted(theirs) == list(range(len(b.key)))
    return {
        "removed": [a.key[node][1] for node in found.removed],
        "added": [b.key[node][1] for node in found.added],
        "moved": [b.key[node][1] for _, node in found.moved],
    }


NOTHING: dict[str, list[str]] = {"removed": [], "added": [], "moved": []}


def test_equal_trees_have_no_changes() -> None:
    text = "step\n linear\n  addmm\n   GEMM\n relu\n linear\n  addmm\n   GEMM"

    assert changes(text, text) == NOTHING


def test_a_call_between_others_is_added_there_alone() -> None:
    found = changes("step\n a\n  b\n a\n  c\n a\n  d", "step\n a\n  b\n a\n  x\n a\n  c\n a\n  d")

    assert found == NOTHING | {"added": ["a", "x"]}


def test_one_kernel_more_below_a_call_is_added() -> None:
    assert changes("step\n a\n  K\n b", "step\n a\n  K\n  K\n b") == NOTHING | {"added": ["K"]}


def test_a_call_below_another_caller_has_moved() -> None:
    found = changes("step\n f\n  x\n   y\n g", "step\n f\n g\n  x\n   y")

    assert found == NOTHING | {"moved": ["x", "y"]}


def test_calls_that_got_a_wrapper_have_moved_into_it() -> None:
    found = changes("step\n x\n  y\n z", "step\n w\n  x\n   y\n  z")

    assert found == {"removed": [], "added": ["w"], "moved": ["x", "y", "z"]}


def test_kernels_alone_do_not_move() -> None:
    found = changes("step\n f\n  K", "step\n g\n  K")

    assert found == {"removed": ["f", "K"], "added": ["g", "K"], "moved": []}


def length_of_common(a: list[int], b: list[int]) -> int:
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, one in enumerate(a):
        for j, other in enumerate(b):
            longer = max(table[i][j + 1], table[i + 1][j])
            table[i + 1][j + 1] = table[i][j] + 1 if one == other else longer
    return table[-1][-1]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=20), st.lists(st.integers(0, 4), max_size=20))
def test_the_longest_order_in_common_is_found(a: list[int], b: list[int]) -> None:
    found = match_in_order(a, b)

    assert all(a[one] == b[other] for one, other in found)
    assert len(found) == length_of_common(a, b)
    assert all(x[0] < y[0] and x[1] < y[1] for x, y in itertools.pairwise(found))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=20), st.lists(st.integers(0, 4), max_size=20))
def test_very_long_orders_are_matched_in_order(a: list[int], b: list[int]) -> None:
    found = tree_align._match_long(a, b)

    assert all(a[one] == b[other] for one, other in found)
    assert all(x[0] < y[0] and x[1] < y[1] for x, y in itertools.pairwise(found))


@st.composite
def trees(draw: st.DrawFn) -> CallNodes:
    keys = draw(st.lists(st.sampled_from(["a", "b", "K"]), max_size=15))
    depths: list[int] = []
    for _ in keys:
        depths.append(draw(st.integers(0, depths[-1] + 1 if depths else 0)))
    above, parents = list[int](), []
    for node, depth in enumerate(depths):
        parents.append(above[depth - 1] if depth else -1)
        above = [*above[:depth], node]
    return CallNodes([("op" if key != "K" else "kernel", key) for key in keys], parents)


@settings(max_examples=300, deadline=None)
@given(trees(), trees())
def test_each_call_of_any_trees_has_one_fate(a: CallNodes, b: CallNodes) -> None:
    found = align_trees(a, b)

    ours = [*(pair[0] for pair in found.pairs), *(pair[0] for pair in found.moved), *found.removed]
    theirs = [*(pair[1] for pair in found.pairs), *(pair[1] for pair in found.moved), *found.added]
    assert sorted(ours) == list(range(len(a.key)))
    assert sorted(theirs) == list(range(len(b.key)))
    assert all(a.key[one] == b.key[other] for one, other in [*found.pairs, *found.moved])
    same = align_trees(a, a)
    assert len(same.pairs) == len(a.key)


def step(start: float, extra: list[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    key = number * 10
    made = [
        make_event("user_annotation", f"ProfilerStep#{number}", 0, 100),
        make_event("cpu_op", "aten::linear", 10, 20),
        make_event("cpu_op", "aten::addmm", 12, 10),
        make_event("cuda_runtime", "cudaLaunchKernel", 14, 2, correlation=key + 1),
        make_event("kernel", "gemm", 40, 6, device=0, stream=7, correlation=key + 1, pid=0, tid=7),
        make_event("cpu_op", "backward", 50, 20, tid=9),
        *extra,
    ]
    return [one | {"ts": one["ts"] + start} for one in made]


def rows_of(table: Table) -> list[dict[str, Any]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows()]


def test_the_tree_of_a_usual_step_is_averaged_over_its_steps() -> None:
    odd = [make_event("cpu_op", "aten::save", 60, 10)]
    events = [*step(0, [], 0), *step(100, odd, 1), *step(200, [], 2)]

    table = NODES.measure(TraceView(make_trace(events), OPTIONS), OPTIONS)

    found = [(row["parent"], row["kind"], row["name"], row["sum_ns"]) for row in rows_of(table)]
    assert found == [
        (-1, "thread", "main", 20_000),
        (0, "op", "aten::linear", 20_000),
        (1, "op", "aten::addmm", 10_000),
        (2, "kernel", "gemm", 2_000),
        (-1, "thread", "other 1", 20_000),
        (4, "op", "backward", 20_000),
    ]
    assert set(table["steps"]) == {2}
    assert table["device_ns"].tolist() == [0, 0, 0, 6_000, 0, 0]


def test_one_kernel_more_below_an_op_shows_in_the_tree_of_the_comparison() -> None:
    more = [
        make_event("cuda_runtime", "cudaLaunchKernel", 18, 2, correlation=5),
        make_event("kernel", "bias", 46, 3, device=0, stream=7, correlation=5, pid=0, tid=7),
    ]
    a, b = (make_trace(step(0, extra, 0)) for extra in ([], more))

    rows = rows_of(compare_sides(side_of([a]), side_of([b]))["diff_tree"])

    changed = [row for row in rows if row["status"] != "same"]
    assert [(row["status"], row["name"], row["b_device_ns"]) for row in changed] == [
        ("added", "bias", 3_000)
    ]
    assert rows[changed[0]["parent"]]["name"] == "aten::addmm"
    gone = rows_of(compare_sides(side_of([b]), side_of([a]))["diff_tree"])
    (row,) = [row for row in gone if row["status"] != "same"]
    assert (row["status"], row["name"], row["b_sum_ns"]) == ("removed", "bias", -1)
    assert gone[row["parent"]]["name"] == "aten::addmm"
