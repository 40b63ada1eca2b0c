"""The trees of calls of two runs laid over each other: calls that are new, gone, moved, longer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.ranks import format_ranks
from whystuck.evidence.table import Table, text_column, whole_column
from whystuck.tracing.diff.side import TREE_MEASURES, Side, UsualStep, Whole
from whystuck.tracing.diff.tree_align import Alignment, CallNodes, align_trees

TREE_COLUMNS = (
    "tree",
    "node",
    "parent",
    "depth",
    "status",
    "kind",
    "name",
    "moved_from",
    "a_sum_ns",
    "b_sum_ns",
    "diff_sum_ns",
    "a_self_ns",
    "b_self_ns",
    "diff_self_ns",
    "a_device_ns",
    "b_device_ns",
    "diff_device_ns",
    "a_ranks",
    "b_ranks",
)
# Ranks of other roles (stages of a pipeline, say) have trees of their own; so many are compared.
_MAX_TREES = 8
_NONE = -1


def compare_trees(a: Side, b: Side) -> Table:
    """Lay the usual steps of two runs over each other.

    Ranks that make the same calls share a tree. Each tree of the second run is compared with that
    of the first which has most ranks in common with it, or else most ranks.

    Args:
        a: The first run.
        b: The second.

    Returns:
        A row for each call of either run, callers first: ``same``, ``added``, ``removed`` or
        ``moved`` (with the names of its callers in the first run). Times are means of a step, and
        -1 in the run that does not have the call.
    """
    made: dict[str, list[NDArray[np.generic]]] = {name: [] for name in TREE_COLUMNS}
    for number, (one, other) in enumerate(_pair(a, b)):
        for name, column in _lay_over(one, other, number).items():
            made[name].append(column)
    return Table(
        {
            name: np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
            for name, parts in made.items()
        }
    )


def _pair(a: Side, b: Side) -> list[tuple[UsualStep, UsualStep]]:
    ordered = sorted(b.trees.values(), key=lambda one: (-len(one.ranks), one.ranks))[:_MAX_TREES]
    pairs = []
    for other in ordered:
        ranks = set(other.ranks)
        best = max(
            a.trees.values(),
            key=lambda one: (len(ranks & set(one.ranks)), len(one.ranks)),
            default=None,
        )
        if best is not None:
            pairs.append((best, other))
    return pairs


def _lay_over(a: UsualStep, b: UsualStep, number: int) -> dict[str, NDArray[np.generic]]:
    trees = [
        CallNodes(list(zip(one.kind.tolist(), one.name.tolist(), strict=True)), one.parent.tolist())
        for one in (a, b)
    ]
    found = align_trees(trees[0], trees[1])
    rows = _order(found, trees[0], trees[1])
    at_a = whole_column([row[0] for row in rows])
    at_b = whole_column([row[1] for row in rows])
    parent = whole_column(_find_parents(rows, trees[0], trees[1]))
    depth = np.zeros(len(rows), dtype=np.int64)
    for row, above in enumerate(parent.tolist()):
        depth[row] = depth[above] + 1 if above >= 0 else 0
    keys = [trees[1].key[other] if other >= 0 else trees[0].key[one] for one, other, _ in rows]
    status = [row[2] for row in rows]
    columns: dict[str, NDArray[np.generic]] = {
        "tree": np.full(len(rows), number, dtype=np.int64),
        "node": np.arange(len(rows), dtype=np.int64),
        "parent": parent,
        "depth": depth,
        "status": text_column(status),
        "kind": text_column([key[0] for key in keys]),
        "name": text_column([key[1] for key in keys]),
        "moved_from": text_column(
            [_name_callers(trees[0], row[0]) if row[2] == "moved" else "" for row in rows]
        ),
    }
    for at, measure in enumerate(TREE_MEASURES):
        one, other = _take(a.mean()[at], at_a), _take(b.mean()[at], at_b)
        gap = np.maximum(other, 0) - np.maximum(one, 0)
        columns |= {f"a_{measure}": one, f"b_{measure}": other, f"diff_{measure}": gap}
    for name, side in (("a_ranks", a), ("b_ranks", b)):
        columns[name] = text_column([format_ranks(side.ranks)] * len(rows))
    return columns


def _take(values: Whole, at: Whole) -> Whole:
    return np.where(at >= 0, values[np.maximum(at, 0)], _NONE)


def _order(found: Alignment, a: CallNodes, b: CallNodes) -> list[tuple[int, int, str]]:
    """List nodes as in the second tree; what is gone comes where it was, before what followed."""
    first: dict[int, tuple[int, str]] = {other: (one, "same") for one, other in found.pairs}
    first |= {other: (one, "moved") for one, other in found.moved}
    same = {one: other for one, other in found.pairs}  # noqa: C416 - the pairs are a list
    # A node that is gone goes before the next call of its caller that is still there.
    before: dict[int, list[int]] = {}
    for node in sorted(found.removed):
        before.setdefault(_find_next(node, a, b, same), []).append(node)
    rows: list[tuple[int, int, str]] = []
    for other in range(len(b.key) + 1):
        rows += [(node, _NONE, "removed") for node in before.get(other, [])]
        if other < len(b.key):
            one, status = first.get(other, (_NONE, "added"))
            rows.append((one, other, status))
    return rows


def _find_next(node: int, a: CallNodes, b: CallNodes, same: dict[int, int]) -> int:
    """Find before which node of the second tree one that is gone is listed."""
    parent = a.parent[node]
    while parent >= 0 and parent not in same:
        node, parent = parent, a.parent[parent]
    siblings = a.children[parent] if parent >= 0 else a.roots
    following = (same[one] for one in siblings if one > node and one in same)
    return next(following, b.end[same[parent]] if parent >= 0 else len(b.key))


def _find_parents(rows: list[tuple[int, int, str]], a: CallNodes, b: CallNodes) -> list[int]:
    of_a = {row[0]: at for at, row in enumerate(rows) if row[0] >= 0 and row[2] != "moved"}
    of_b = {row[1]: at for at, row in enumerate(rows) if row[1] >= 0}
    parents = []
    for one, other, _ in rows:
        if other >= 0:
            parents.append(of_b.get(b.parent[other], _NONE))
            continue
        above = a.parent[one]
        # A caller that moved is listed elsewhere.
        while above >= 0 and above not in of_a:
            above = a.parent[above]
        parents.append(of_a.get(above, _NONE))
    return parents


def _name_callers(tree: CallNodes, node: int) -> str:
    names = []
    while (node := tree.parent[node]) >= 0:
        names.append(tree.key[node][1])
    return " > ".join(reversed(names))
