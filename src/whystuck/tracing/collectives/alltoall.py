"""How unevenly members of a group share out what they exchange, as experts do their tokens."""

from __future__ import annotations

import numpy as np

from whystuck.evidence.table import Table, text_column
from whystuck.tracing.collectives.matched import GroupCalls, Matching

ALLTOALL = (
    "rank",
    "group",
    "calls",
    "bytes",
    "share",
    "imbalance",
    "times_most",
    "sum_ns",
)


def list_alltoall(matching: Matching, group: GroupCalls) -> Table:
    """Add up what each member of a group gives in its all_to_all calls.

    ``share`` is the part of what all seen members give, ``imbalance`` how many times as much as
    the mean of them: 1 where all give the same. ``times_most`` is in how many calls it gave the
    most of all.

    Args:
        matching: The matched calls.
        group: The group.

    Returns:
        A row a member; none where the group has no such calls, or their sizes are not known.
    """
    is_wanted = np.array([kind.op == "all_to_all" for kind in matching.kinds], dtype=np.bool_)
    wanted = np.flatnonzero(is_wanted[group.kind]) if len(group.kind) else np.empty(0, np.int64)
    if not len(wanted) or len(group.rank) < 2:  # noqa: PLR2004 - there is nobody to compare with
        return no_alltoall()
    size = matching.gather(group, "bytes", wanted)
    took = matching.gather(group, "end_ns", wanted) - matching.gather(group, "start_ns", wanted)
    # Only calls of which all that is seen has a size can be compared.
    known = (size >= 0).all(axis=0)
    size, took = size[:, known], took[:, known]
    total = size.sum(axis=1)
    whole = float(total.sum())
    if not whole:
        return no_alltoall()
    most = np.bincount(np.argmax(size, axis=0), minlength=len(total))
    # Where all give the same, nobody gives the most.
    most = np.where((size == size[0]).all(), 0, most)
    count = len(total)
    columns = {
        "rank": np.array([matching.ranks[one].header.rank for one in group.rank], dtype=np.int64),
        "group": text_column([group.name] * count),
        "calls": np.full(count, size.shape[1], dtype=np.int64),
        "bytes": total.astype(np.int64),
        "share": total / whole,
        "imbalance": total / whole * count,
        "times_most": most.astype(np.int64),
        "sum_ns": took.sum(axis=1).astype(np.int64),
    }
    return Table({name: columns[name] for name in ALLTOALL})


def no_alltoall() -> Table:
    """Return the table without rows."""
    real = {"share", "imbalance"}
    return Table(
        {
            name: text_column([])
            if name == "group"
            else np.empty(0, dtype=np.float64 if name in real else np.int64)
            for name in ALLTOALL
        }
    )
