"""Collectives across ranks: what each was, who came last, and who keeps others waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Column, Table, concat_tables, text_column, whole_column
from whystuck.evidence.traces.options import TraceOptions
from whystuck.evidence.traces.tables import RankTables
from whystuck.tracing.collectives.clocks import Clocks, estimate_clocks
from whystuck.tracing.collectives.groups import GroupRow, list_groups, sum_group
from whystuck.tracing.collectives.matched import GroupCalls, Matching
from whystuck.tracing.collectives.matching import match_calls
from whystuck.tracing.collectives.rank_calls import CALLS, slim_calls
from whystuck.tracing.collectives.skew import Arrivals, Blame, find_arrivals
from whystuck.tracing.collectives.straggler import Evidence, Straggler, find_stragglers
from whystuck.tracing.collectives.transfer import measure_rates
from whystuck.tracing.metric import CrossMetric

Real = NDArray[np.float64]
COLLECTIVES = (
    "group",
    "sequence",
    "op",
    "bytes",
    "ranks",
    "last_rank",
    "skew_ns",
    "transfer_ns",
    "algbw_gbps",
    "busbw_gbps",
    "start_ns",
    "held_ns",
    "wait_ns",
    "end_skew_ns",
    "group_size",
    "group_desc",
)
_BLAME = (
    "rank",
    "times_last",
    "wait_caused_ns",
    "wait_suffered_ns",
    "clock_offset_ns",
    "clock_error_ns",
    "peer_wait_ns",
    "clock_drift_ppm",
    "collectives",
)
_STRAGGLER = (
    "rank",
    "share_of_step",
    "wait_caused_ns",
    "times_last",
    "collectives",
    "p_value",
    "cause",
    "late_ns",
    "times_late",
)
_GAPS = ("rank", "group", "reason", "count")
_NAMES = (
    "collectives",
    "rank_blame",
    "collective_groups",
    "straggler",
    "collective_gaps",
    "alltoall",
)
# Ranks of one role do each kind of call as often, but for those at the ends of a trace.
_APART = 3
_APART_SHARE = 0.05
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


def measure_collectives(ranks: Sequence[RankTables], options: TraceOptions) -> Mapping[str, Table]:
    """Match the collectives of all ranks and measure them.

    Args:
        ranks: The tables of each rank, with ``collective_calls``.
        options: How many ranks a node has, where the traces do not name their hosts.

    Returns:
        The tables of the collectives, of what ranks cost each other, of ranks that are late
        throughout, and of calls that could not be matched.
    """
    matching = match_calls(ranks)
    clocks = estimate_clocks(matching)
    blame = Blame.of(len(matching.ranks))
    evidence = Evidence(matching, find_roles(matching))
    groups: list[GroupRow] = []
    listed, exchanged = [_no_collectives()], [no_alltoall()]
    # One group after the other: what is known of each call fills the memory only once.
    for group in matching.groups:
        arrivals = find_arrivals(matching, clocks, group)
        blame.add(arrivals)
        evidence.add(arrivals)
        groups += sum_group(matching, arrivals, options)
        listed.append(_list_collectives(matching, arrivals))
        exchanged.append(list_alltoall(matching, group))
    found = find_stragglers(evidence, _find_spans(matching))
    return {
        "collectives": concat_tables(listed),
        "rank_blame": _list_blame(matching, clocks, blame),
        "collective_groups": list_groups(groups),
        "straggler": _list_stragglers(matching, blame, found),
        "collective_gaps": _list_gaps(matching),
        "alltoall": concat_tables(exchanged),
    }


def _find_spans(matching: Matching) -> Real:
    """Return the time from the first collective of each rank to the end of its last."""
    spans = np.zeros(len(matching.ranks))
    for place, rank in enumerate(matching.ranks):
        if len(rank):
            spans[place] = rank.columns["end_ns"].max() - rank.columns["start_ns"].min()
    return spans


def _whole(values: NDArray[np.generic]) -> Column:
    """Whole numbers; what is not known is -1."""
    real = values.astype(np.float64)
    return np.where(np.isfinite(real), np.rint(np.where(np.isfinite(real), real, 0)), -1).astype(
        np.int64
    )


def _list_collectives(matching: Matching, one: Arrivals) -> Table:
    group, width = one.group, one.start.shape[1]
    kinds = [matching.kinds[kind] for kind in group.kind.tolist()]
    size = max(group.size, len(group.rank))
    rates = measure_rates(matching, one)
    ranks = np.array([matching.ranks[rank].header.rank for rank in group.rank], dtype=np.int64)
    start = np.nanmin(one.start, axis=0) if width else np.empty(0)
    columns: dict[str, Column] = {
        "group": _repeat(group.name, width),
        "sequence": group.sequence,
        "op": text_column([kind.op for kind in kinds]),
        "bytes": rates.bytes,
        "ranks": one.seen,
        "last_rank": np.where(one.last >= 0, ranks[one.last], -1),
        "skew_ns": np.where(one.seen > 1, _whole(one.skew_ns), -1),
        "transfer_ns": _whole(one.transfer_ns),
        "algbw_gbps": rates.algbw_gbps,
        "busbw_gbps": rates.busbw_gbps,
        "start_ns": _whole(start) + matching.zero_ns,
        "held_ns": np.where(one.is_judged, _whole(one.held_ns), -1),
        "wait_ns": np.where(one.is_judged, _whole(np.nansum(one.wait_ns, axis=0)), -1),
        "end_skew_ns": np.where(one.seen > 1, _whole(one.end_skew_ns), -1),
        "group_size": np.full(width, size, dtype=np.int64),
        "group_desc": _repeat(group.desc, width),
    }
    return Table({name: columns[name] for name in COLLECTIVES})


def _no_collectives() -> Table:
    text, real = {"group", "op", "group_desc"}, {"algbw_gbps", "busbw_gbps"}
    return Table(
        {
            name: text_column([])
            if name in text
            else np.empty(0, dtype=np.float64 if name in real else np.int64)
            for name in COLLECTIVES
        }
    )


def _repeat(text: str, count: int) -> Column:
    return text_column([text] * count)


def _list_blame(matching: Matching, clocks: Clocks, blame: Blame) -> Table:
    is_known = blame.judged > 0
    columns: tuple[Column, ...] = (
        whole_column([one.header.rank for one in matching.ranks]),
        np.where(is_known, blame.times_last, -1),
        np.where(is_known, _whole(blame.caused_ns), -1),
        np.where(is_known, _whole(blame.suffered_ns), -1),
        _whole(clocks.offset_ns),
        _whole(clocks.error_ns),
        np.where(is_known, _whole(blame.peer_wait_ns), -1),
        np.where(np.isnan(clocks.error_ns), np.nan, clocks.drift * 1e6),
        blame.judged,
    )
    return Table.of(_BLAME, columns)


def _list_stragglers(matching: Matching, blame: Blame, found: list[Straggler]) -> Table:
    places = np.array([one.rank for one in found], dtype=np.int64)
    columns: tuple[Column, ...] = (
        whole_column([matching.ranks[one.rank].header.rank for one in found]),
        np.array([one.share for one in found], dtype=np.float64),
        _whole(blame.caused_ns[places]),
        blame.times_last[places],
        whole_column([one.collectives for one in found]),
        np.array([one.p_value for one in found], dtype=np.float64),
        text_column([one.cause for one in found]),
        whole_column([round(one.late_ns) for one in found]),
        whole_column([one.times_late for one in found]),
    )
    return Table.of(_STRAGGLER, columns)


def _list_gaps(matching: Matching) -> Table:
    listed = sorted(matching.gaps.items())
    columns: tuple[Column, ...] = (
        whole_column([key[0] for key, _ in listed]),
        text_column([key[1] for key, _ in listed]),
        text_column([key[2] for key, _ in listed]),
        whole_column([count for _, count in listed]),
    )
    return Table.of(_GAPS, columns)


CROSS_METRIC = CrossMetric(_NAMES, (CALLS,), measure_collectives, slim_calls)


def find_roles(matching: Matching) -> NDArray[np.int64]:
    """Give ranks that make the same calls the same role: replicas, not stages of a pipeline.

    Args:
        matching: The calls of each rank, sends and receives too.

    Returns:
        The number of the role of each rank; -1 for ranks without calls.
    """
    width = len(matching.kinds)
    counts = np.zeros((len(matching.ranks), width), dtype=np.int64)
    for place, rank in enumerate(matching.ranks):
        counts[place] = np.bincount(rank.kind, minlength=width)
    different, inverse, often = np.unique(counts, axis=0, return_inverse=True, return_counts=True)
    role_of = np.full(len(different), -1, dtype=np.int64)
    leads: list[int] = []
    for one in np.argsort(-often, kind="stable").tolist():
        if not different[one].any():
            continue
        alike = (lead for lead in leads if _is_alike(different[lead], different[one]))
        lead = next(alike, None)
        if lead is None:
            role_of[one] = len(leads)
            leads.append(one)
        else:
            role_of[one] = role_of[lead]
    return role_of[inverse.reshape(-1)]


def _is_alike(one: NDArray[np.int64], other: NDArray[np.int64]) -> bool:
    apart = np.abs(one - other)
    return bool((apart <= np.maximum(_APART, _APART_SHARE * np.maximum(one, other))).all())


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
