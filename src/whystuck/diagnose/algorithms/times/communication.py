"""What the ops of a job cost: calls, bytes, times, bandwidths, waits, and who comes last.

Sizes and bandwidths are those of nccl-tests. The size S of an op is the larger of the whole buffers
that a rank gives or gets: for all_gather what it gets of all, for reduce_scatter what it gives to
all. ``algbw = S / t``, and ``busbw = algbw x f``, with n ranks:

    all_reduce                                            f = 2 (n - 1) / n
    all_gather, reduce_scatter, all_to_all, gather, scatter   f = (n - 1) / n
    broadcast, reduce, send                               f = 1

Here t is the transfer time: from the arrival of the last rank to the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from msgspec.structs import replace

from whystuck.diagnose.algorithms.times.op_instances import (
    Instances,
    Numbers,
    Times,
    match_instances,
    number_names,
)
from whystuck.diagnose.algorithms.transfers.post_times import match_transfers
from whystuck.evidence.ops.log import ASYNC, HOST, P2P, Ops, number_columns, slice_logs
from whystuck.evidence.ops.names import find_bus_factor
from whystuck.evidence.sections import Communication, CommunicationRow

_NS_PER_MS, _NS_PER_S = 1e6, 1e9
_CLASS_BITS = 2
# A rank comes last by habit when it does so in this share of at least so many ops.
_MIN_OPS, _MIN_SHARE, _OFTEN = 10, 0.5, 1.5
_MIN_LATE_NS = 100_000.0
_LEAST_GBPS = 1e-3


@dataclass(frozen=True)
class _Costs:
    """What is known of each row of the op logs: the end, half of what is not known of it, bytes.

    ``waited`` is how long a thread waits in the op, ``for_peers`` the part of it before the last
    rank came; all of a send or a receive counts as such.
    """

    end: Times
    error: Times
    size: Numbers
    waited: Times
    for_peers: Times


def measure_communication(ops: Ops) -> Communication:
    """Measure what the ops cost.

    Args:
        ops: The op logs.

    Returns:
        One row for each op, group and class of sizes; the costliest first.
    """
    if not len(ops):
        return Communication()
    instances = match_instances(ops)
    costs = _measure_rows(ops, instances)
    spans = _measure_spans(ops)
    _leave_out_start(ops, costs, spans)
    rows = [*_list_collectives(ops, instances, costs), *_list_transfers(ops, costs)]
    exposed = _share(ops, costs.waited, spans)
    for_peers = _share(ops, costs.for_peers, spans)
    most = max(exposed, key=lambda rank: exposed[rank])
    total_ns = sum(spans.values())
    shown = [
        replace(row, exposed_share=_round(waited / total_ns if total_ns else 0.0))
        for row, waited, _ in sorted(rows, key=lambda item: -item[2])
    ]
    error_ns = instances.clock_error_ns
    return Communication(
        rows=shown,
        span_s=_round(max(spans.values()) / _NS_PER_S),
        exposed_share=_round(float(np.median(list(exposed.values())))),
        exposed_most=_round(exposed[most]),
        exposed_rank=most,
        exposed_for_peers=_round(for_peers[most]),
        clock_error_ms=_round(error_ns / _NS_PER_MS) if np.isfinite(error_ns) else None,
        dropped=sum(log.dropped for log in ops.logs),
    )


def _measure_spans(ops: Ops) -> dict[int, float]:
    """Measure the time that the log of each rank covers: to its last op that is over."""
    spans = {}
    for log, own in zip(ops.logs, slice_logs(ops), strict=True):
        began = ops.enqueued_ns[own]
        if len(began):
            last = max(int(ops.ended_ns[own].max()), int(began.max()))
            spans[log.rank] = float(last - int(began[began > 0].min(initial=last)))
    return spans


def _leave_out_start(ops: Ops, costs: _Costs, spans: dict[int, float]) -> None:
    """Leave out how long ranks wait in their first op: others have not started yet."""
    for log, own in zip(ops.logs, slice_logs(ops), strict=True):
        if own.stop > own.start and not log.dropped:
            wait_ns = float(np.nan_to_num(costs.for_peers[own.start]))
            costs.for_peers[own.start] -= wait_ns
            costs.waited[own.start] -= wait_ns
            spans[log.rank] -= wait_ns


def _share(ops: Ops, waited: Times, spans: Mapping[int, float]) -> dict[int, float]:
    """Return the share of its time that each rank waits."""
    waits = np.bincount(ops.rank, weights=np.nan_to_num(waited))
    return {
        rank: min(1.0, float(waits[rank]) / span_ns) if span_ns else 0.0
        for rank, span_ns in spans.items()
    }


def _measure_rows(ops: Ops, instances: Instances) -> _Costs:
    high = np.where(ops.ended_ns > 0, (ops.ended_ns - ops.enqueued_ns).astype(np.float64), np.nan)
    pending = np.maximum(ops.pending_ns - ops.enqueued_ns, 0).astype(np.float64)
    low = np.where(np.isnan(high), np.nan, np.minimum(pending, high))
    known = ~np.isnan(instances.high)
    rows = instances.rows[known]
    low[rows] = (instances.low - instances.began)[known]
    high[rows] = (instances.high - instances.began)[known]
    end = np.maximum((low + high) / 2, 0)
    is_waited = (ops.flags & (ASYNC | HOST)) == HOST
    waited = np.where(is_waited, end, 0.0)
    for_peers = np.where((ops.flags & P2P) > 0, waited, 0.0)
    late = (instances.maximum(instances.arrived)[instances.number] - instances.began)[known]
    for_peers[rows] = np.clip(np.nan_to_num(late), 0, waited[rows])
    return _Costs(end, (high - low) / 2, _measure_sizes(ops), waited, for_peers)


def _measure_sizes(ops: Ops) -> Numbers:
    """Measure each op by the whole buffer, as nccl-tests do."""
    given = np.array([form.input_bytes for form in ops.forms], dtype=np.float64)[ops.form]
    taken = np.array([form.output_bytes for form in ops.forms], dtype=np.float64)[ops.form]
    members = np.array([len(group.ranks) or 1 for group in ops.groups], dtype=np.float64)
    size = np.maximum(given, taken)
    for op, part, whole in (("gather", given, taken), ("scatter", taken, given)):
        # Only the root has the whole buffer.
        is_one = np.array([form.op == op for form in ops.forms], dtype=np.bool_)[ops.form]
        size = np.where(is_one, np.maximum(whole, part * members[ops.group]), size)
    return np.minimum(size, 1 << 61).astype(np.int64)


_Found = tuple[CommunicationRow, float, float]


def _list_collectives(ops: Ops, instances: Instances, costs: _Costs) -> Iterator[_Found]:
    if not len(instances.rows):
        return
    size = np.maximum.reduceat(costs.size[instances.rows], instances.starts)
    first = instances.rows[instances.starts]
    code = number_names(ops)[ops.form[first]]
    key = ops.team[first], code, classify_sizes(size)
    times = _measure_transfers(instances)
    came = ~np.isnan(instances.maximum(instances.arrived))
    for (_, _, size_class), chosen in _sort(key):
        rows = instances.rows[_spread(instances, chosen)]
        row = _describe(ops, rows, costs, size_class)
        row = replace(row, calls=len(chosen), bytes=int(size[chosen].sum(dtype=np.float64)))
        row = _add_bandwidth(row, times[chosen], size[chosen])
        row = _add_last(ops, row, instances, chosen[came[chosen]])
        yield row, float(np.nansum(costs.waited[rows])), float(np.nansum(costs.end[rows]))


def _sort(key: tuple[Numbers, ...]) -> Iterator[tuple[tuple[int, ...], Numbers]]:
    """Yield each different value of some columns, and where it is."""
    first, inverse = number_columns(*key)
    order = np.argsort(inverse, kind="stable")
    bounds = np.searchsorted(inverse[order], np.arange(len(first) + 1)).tolist()
    for row, (start, stop) in zip(first.tolist(), pairwise(bounds), strict=True):
        yield tuple(int(column[row]) for column in key), order[start:stop]


def _spread(instances: Instances, chosen: Numbers) -> Numbers:
    """Return the places of the rows of some instances."""
    sizes = instances.sizes[chosen]
    before = np.cumsum(sizes) - sizes
    within = np.arange(int(sizes.sum())) - np.repeat(before, sizes)
    return np.asarray(np.repeat(instances.starts[chosen], sizes) + within)


def _list_transfers(ops: Ops, costs: _Costs) -> Iterator[_Found]:
    rows = np.flatnonzero((ops.flags & P2P > 0) & (ops.team >= 0))
    if not len(rows):
        return
    pairs = match_transfers(ops)
    code = number_names(ops)[ops.form[rows]]
    key = ops.team[rows], code, classify_sizes(costs.size[rows])
    for (_, _, size_class), chosen in _sort(key):
        mine = rows[chosen]
        row = _describe(ops, mine, costs, size_class)
        row = replace(row, calls=len(mine), bytes=int(costs.size[mine].sum(dtype=np.float64)))
        if row.op != "send":
            # The end of a receive is that of the transfer; a send may be over before.
            sent = pairs.sent_ns[mine]
            late = np.maximum(sent - ops.enqueued_ns[mine], 0)
            times = np.where(sent > 0, np.maximum(costs.end[mine] - late, 0), np.nan)
            row = _add_bandwidth(row, times, costs.size[mine])
        yield row, float(np.nansum(costs.waited[mine])), float(np.nansum(costs.end[mine]))


def classify_sizes(size: Numbers) -> Numbers:
    """Return the class of sizes: k for 4^k to below 4^(k+1) bytes, -1 for nothing."""
    bits = np.frexp(size.astype(np.float64))[1].astype(np.int64) - 1
    return np.where(size > 0, bits // _CLASS_BITS, -1)


def _describe(ops: Ops, rows: Numbers, costs: _Costs, kind: int) -> CommunicationRow:
    first = int(rows[0])
    team = ops.teams[int(ops.team[first])]
    end = costs.end[rows]
    known = end[~np.isnan(end)]
    error = costs.error[rows]
    return CommunicationRow(
        op=ops.forms[int(ops.form[first])].op or "?",
        group=team.name,
        ranks=len(team.members),
        bytes_from=4**kind if kind >= 0 else 0,
        bytes_to=4 ** (kind + 1) if kind >= 0 else 1,
        calls=0,
        bytes=0,
        times_by="op log" if len(known) else "",
        median_ms=_to_ms(float(np.median(known))) if len(known) else None,
        p99_ms=_to_ms(float(np.percentile(known, 99))) if len(known) else None,
        error_ms=_to_ms(float(np.nanmedian(error))) if len(known) else None,
        async_share=_round(float(((ops.flags[rows] & ASYNC) > 0).mean())),
    )


def _measure_transfers(instances: Instances) -> Times:
    """Return the time from the last arrival to the end of ops that all members came to."""
    end = instances.maximum((instances.low + instances.high) / 2)
    times = np.maximum(end - instances.maximum(instances.arrived), 0)
    return np.where(instances.is_full, times, np.nan)


def _add_bandwidth(row: CommunicationRow, times: Times, size: Numbers) -> CommunicationRow:
    known = ~np.isnan(times)
    if not known.any():
        return row
    row = replace(row, transfer_ms=_to_ms(float(np.median(times[known]))))
    spent = float(times[known].sum())
    moved = float(size[known].sum(dtype=np.float64))
    # A time that is within the error tells nothing of the bandwidth.
    if not moved or not spent or (row.transfer_ms or 0) <= 2 * (row.error_ms or 0):
        return row
    algbw = moved / spent
    if algbw < _LEAST_GBPS:
        return row
    factor = find_bus_factor(row.op, row.ranks)
    return replace(
        row,
        algbw_gbps=_round(algbw),
        busbw_gbps=None if factor is None else _round(algbw * factor),
    )


def _add_last(
    ops: Ops, row: CommunicationRow, instances: Instances, came: Numbers
) -> CommunicationRow:
    """Tell who comes last by habit, as far as the clocks can tell."""
    usable = came[instances.is_full[came] & (instances.sizes[came] > 1)]
    if len(usable) < _MIN_OPS:
        return row
    width = int(instances.sizes[usable][0])
    places = _spread(instances, usable)
    arrived = instances.arrived[places].reshape(-1, width)
    ranks = ops.rank[instances.rows[places]].reshape(-1, width)
    ordered = np.sort(arrived, axis=1)
    late = ordered[:, -1] - ordered[:, -2]
    error_ns = instances.clock_error_ns
    floor = max(_MIN_LATE_NS, 0.0 if np.isnan(error_ns) else 2 * error_ns)
    last = arrived.argmax(axis=1)
    counts = np.bincount(last[late > floor], minlength=width)
    column = int(counts.argmax())
    share = float(counts[column] / len(late))
    # Of two ranks, each is last half of the time by chance.
    if share < max(_MIN_SHARE, _OFTEN / width):
        return row
    mine = late[(last == column) & (late > floor)]
    return replace(
        row,
        last_rank=int(ranks[0, column]),
        last_share=_round(share),
        late_ms=_to_ms(float(np.median(mine))),
    )


def _to_ms(time_ns: float) -> float:
    return round(time_ns / _NS_PER_MS, 3)


def _round(value: float) -> float:
    return round(value, 4)
