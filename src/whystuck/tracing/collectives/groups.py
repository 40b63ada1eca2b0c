"""Collectives summed by op, group and size."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Column, Table, text_column
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.collectives.matched import GroupCalls, Matching
from whystuck.tracing.collectives.skew import Arrivals
from whystuck.tracing.collectives.transfer import measure_rates

GROUP_COLUMNS = (
    "op",
    "group",
    "ranks",
    "nodes",
    "bytes_from",
    "bytes_to",
    "calls",
    "sum_ns",
    "median_ns",
    "wait_ns",
    "transfer_ns",
    "exposed_ns",
    "algbw_gbps",
    "busbw_gbps",
    "group_desc",
)
_TEXTS = ("op", "group", "group_desc")
_RATES = ("algbw_gbps", "busbw_gbps")


GroupRow = tuple[object, ...]


def list_groups(rows: list[GroupRow]) -> Table:
    """Make the table of the rows of all groups."""
    rows = sorted(rows, key=lambda row: (str(row[1]), str(row[0]), str(row[4])))
    columns: dict[str, Column] = {}
    for place, name in enumerate(GROUP_COLUMNS):
        values = [row[place] for row in rows]
        if name in _TEXTS:
            columns[name] = text_column([str(value) for value in values])
        else:
            kind = np.float64 if name in _RATES else np.int64
            columns[name] = np.array(values, dtype=kind)
    return Table(columns)


def _count_nodes(matching: Matching, group: GroupCalls, options: TraceOptions) -> int:
    """Return on how many nodes the members run; -1 when unknown."""
    per_node = options.ranks_per_node
    headers = [matching.ranks[rank].header for rank in group.rank.tolist()]
    if per_node > 0:
        members = group.members or tuple(one.rank for one in headers)
        return len({rank // per_node for rank in members})
    hosts = {one.host for one in headers}
    is_whole = len(headers) == group.size
    return len(hosts) if is_whole and "" not in hosts else -1


def sum_group(matching: Matching, one: Arrivals, options: TraceOptions) -> list[GroupRow]:
    """Sum the collectives of a group by op and size, sizes between powers of two together.

    ``sum_ns``, ``wait_ns`` and ``exposed_ns`` are means over the members that are seen, so that
    they are times of one rank; rates are medians.

    Args:
        matching: The matched calls.
        one: Who came when.
        options: Ranks on a node, where the traces do not name their hosts.

    Returns:
        Rows of the table.
    """
    nodes = _count_nodes(matching, one.group, options)
    group = one.group
    rates = measure_rates(matching, one)
    power = np.where(rates.bytes > 0, np.floor(np.log2(np.maximum(rates.bytes, 1))), -1)
    ops = [kind.op for kind in matching.kinds]
    numbers = {op: number for number, op in enumerate(dict.fromkeys(ops))}
    op = np.array([numbers[name] for name in ops], dtype=np.int64)[group.kind]
    exposed = matching.gather(group, "exposed_ns")
    exposed[exposed < 0] = np.nan
    took = one.end - one.start
    names = list(numbers)
    made: list[GroupRow] = []
    for key in np.unique(np.stack([op, power.astype(np.int64)], axis=1), axis=0).tolist():
        mine = (op == key[0]) & (power == key[1])
        judged = mine & one.is_judged
        made.append(
            (
                names[key[0]],
                group.name,
                max(group.size, len(group.rank)),
                nodes,
                int(rates.bytes[mine].min()),
                int(rates.bytes[mine].max()),
                int(mine.sum()),
                _mean_sum(took[:, mine]),
                round(float(np.nanmedian(took[:, mine]))),
                _mean_sum(one.wait_ns[:, judged]) if judged.any() else -1,
                round(float(one.transfer_ns[mine].sum())),
                _mean_sum(exposed[:, mine]),
                _median(rates.algbw_gbps[mine]),
                _median(rates.busbw_gbps[mine]),
                group.desc,
            )
        )
    return made


def _mean_sum(values: NDArray[np.float64]) -> int:
    """Return the mean over ranks of the sum over collectives; -1 when nothing is known."""
    known = ~np.isnan(values)
    if not known.any():
        return -1
    return round(float(np.nansum(values)) / int(known.any(axis=1).sum()))


def _median(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else float("nan")
