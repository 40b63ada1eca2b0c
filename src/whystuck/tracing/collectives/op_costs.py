"""What each kind of collective cost a rank in the measured steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Table, concat_tables, text_column, whole_column
from whystuck.evidence.traces.options import TraceOptions
from whystuck.evidence.traces.tables import RankTables
from whystuck.tracing.collectives.rank_calls import CALLS, GROUPS, KINDS, slim_calls
from whystuck.tracing.metric import CrossMetric

_COLUMNS = ("rank", "group", "op", "count", "sum_ns", "exposed_ns", "all_count", "group_desc")
_TEXTS = ("group", "op", "group_desc")


def measure_comm_ops(ranks: Sequence[RankTables], options: TraceOptions) -> Mapping[str, Table]:
    """Add up the collectives of each rank by group and op.

    Args:
        ranks: The tables of each rank, with ``collective_calls`` and ``steps``.
        options: Not used.

    Returns:
        A row a rank, group and op. ``count``, ``sum_ns`` and ``exposed_ns`` are of calls that were
        launched in the steps, ``all_count`` of all in the trace; ``exposed_ns`` is -1 when it is
        not known of any of them. ``group_desc`` tells what the group is for.
    """
    del options
    made = [_measure_rank(one) for one in ranks if len(one.tables.get("collective_calls", ()))]
    return {"comm_ops": concat_tables([_make_table([]), *made])}


def _measure_rank(tables: RankTables) -> Table:
    slim = slim_calls(tables).tables
    calls, kinds, groups = slim[CALLS], slim[KINDS], slim[GROUPS]
    is_inside = _find_inside(calls, tables.tables.get("steps", Table()))
    # There may be very many calls: texts are looked at once for each kind.
    form = calls["kind"].astype(np.int64) * len(groups) + calls["group"]
    _, first, place = np.unique(form, return_index=True, return_inverse=True)
    whole = np.maximum(calls["end_ns"] - calls["start_ns"], 0)
    is_known = calls["exposed_ns"] >= 0
    figures = [
        is_inside,
        np.where(is_inside, whole, 0),
        np.where(is_inside & is_known, calls["exposed_ns"], 0),
        np.ones(len(calls)),
        is_inside & is_known,
    ]
    sums = [np.bincount(place, one, minlength=len(first)) for one in figures]
    rows: dict[tuple[str, str, str], NDArray[np.float64]] = {}
    group_names: list[str] = groups["group"][calls["group"][first]].tolist()
    op_names: list[str] = kinds["op"][calls["kind"][first]].tolist()
    descs: list[str] = groups["group_desc"][calls["group"][first]].tolist()
    names = zip(group_names, op_names, descs, strict=True)
    for key, values in zip(names, np.stack(sums, axis=1), strict=True):
        rows[key] = rows.get(key, 0) + values
    made: list[tuple[int | str, ...]] = []
    for (group_name, op, desc), values in rows.items():
        count, spent, exposed, number, known = (round(value) for value in values.tolist())
        exposed = exposed if known else -1
        made.append((tables.header.rank, group_name, op, count, spent, exposed, number, desc))
    return _make_table(made)


def _find_inside(calls: Table, steps: Table) -> NDArray[np.bool_]:
    """Tell which calls were launched in the measured steps, or between them."""
    if not len(steps):
        return np.ones(len(calls), dtype=np.bool_)
    begun = np.where(calls["launch_ns"] >= 0, calls["launch_ns"], calls["start_ns"])
    first, last = steps["start_ns"].min(), steps["end_ns"].max()
    return np.asarray((begun >= first) & (begun < last), dtype=np.bool_)


def _make_table(rows: list[tuple[int | str, ...]]) -> Table:
    columns = zip(*rows, strict=True) if rows else ((),) * len(_COLUMNS)
    return Table(
        {
            name: text_column([str(one) for one in values])
            if name in _TEXTS
            else whole_column([int(one) for one in values])
            for name, values in zip(_COLUMNS, columns, strict=True)
        }
    )


METRIC = CrossMetric(("comm_ops",), ("collective_calls", "steps"), measure_comm_ops)
