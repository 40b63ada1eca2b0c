"""Times of ops on devices, which op logs do not have, from the logs of NCCL's inspector.

The inspector tells how long the kernel of an op ran on each rank, the wait for late ranks included.
The rank that comes last does not wait: the shortest time of an op is that of its transfer, once the
logs of all its ranks are there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from msgspec.structs import replace

from whystuck.diagnose.algorithms.times.communication import classify_sizes
from whystuck.evidence.ops.log import HOST, Ops, number_columns
from whystuck.evidence.ops.names import find_bus_factor
from whystuck.evidence.ops.nccl_inspector import Column, NcclLog
from whystuck.evidence.sections import Communication, CommunicationRow

SOURCE = "nccl inspector"
_US_PER_MS, _BYTES_PER_US_GB = 1e3, 1e3
# Longer names first: `reduce` begins `reduce_scatter`, too.
_FAMILIES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "send", "recv")


@dataclass(frozen=True)
class _Rows:
    """The ops of all logs, each once: ``comm`` indexes ``comms``, pairs of a hash and a size."""

    comms: list[tuple[str, int]]
    ops: list[str]
    comm: Column
    op: Column
    number: Column
    rank: Column
    size: Column
    time: Column


def add_nccl_times(
    communication: Communication, logs: Sequence[NcclLog], ops: Ops
) -> Communication:
    """Add what NCCL's inspector tells to what op logs tell.

    Args:
        communication: The figures of op logs.
        logs: What the inspector logged.
        ops: The op logs, which tell whose a process is.

    Returns:
        The figures: rows without times have those of the inspector, where it is clear which; what
        fits none is a row of its own, whose group is the communicator where it is not known.
    """
    if not any(len(log) for log in logs):
        return communication
    rows, added = list(communication.rows), []
    names = _name_comms(logs, ops)
    found = list(_measure(_join(logs), names))
    wanted = Counter(_key(row) for row in found)
    open_rows: dict[tuple[str, str, int], list[int]] = {}
    for place, row in enumerate(rows):
        if row.median_ms is None:
            open_rows.setdefault(_key(row), []).append(place)
    for row in found:
        places = open_rows.get(_key(row), [])
        if len(places) == 1 and wanted[_key(row)] == 1:
            rows[places[0]] = _fill(rows[places[0]], row)
        else:
            added.append(row)
    added.sort(key=lambda row: -(row.median_ms or 0) * row.calls)
    return replace(communication, rows=[*rows, *added])


def _key(row: CommunicationRow) -> tuple[str, str, int]:
    family = next((one for one in _FAMILIES if row.op == one or row.op.startswith(f"{one}_")), "")
    return row.group, family or row.op, row.bytes_from


def _fill(row: CommunicationRow, told: CommunicationRow) -> CommunicationRow:
    return replace(
        row,
        median_ms=told.median_ms,
        p99_ms=told.p99_ms,
        transfer_ms=told.transfer_ms,
        algbw_gbps=told.algbw_gbps,
        busbw_gbps=told.busbw_gbps,
        times_by=told.times_by,
    )


def _join(logs: Sequence[NcclLog]) -> _Rows:
    comms: dict[tuple[str, int], int] = {}
    names: dict[str, int] = {}
    parts: list[tuple[Column, ...]] = []
    for log in logs:
        known = [comms.setdefault((one.hash, one.size), len(comms)) for one in log.comms]
        ops = [names.setdefault(one, len(names)) for one in log.ops]
        if len(log):
            ranks = np.array([one.rank for one in log.comms], dtype=np.int64)
            comm = np.array(known, dtype=np.int64)[log.comm]
            op = np.array(ops, dtype=np.int64)[log.op]
            parts.append((comm, op, log.number, ranks[log.comm], log.size_bytes, log.time_us))
    comm, op, number, rank, size, time = (np.concatenate(one) for one in zip(*parts, strict=True))
    # A file may be there twice.
    first, _ = number_columns(comm, op, number, rank, size)
    chosen = np.sort(first)
    columns = (column[chosen] for column in (comm, op, number, rank, size, time))
    return _Rows(list(comms), list(names), *columns)


def _name_comms(logs: Sequence[NcclLog], ops: Ops) -> dict[tuple[str, int], str]:
    """Tell which communicator belongs to which group, where only one group can be its own."""
    owner: dict[tuple[str, int], int] = {(one.host, one.pid): one.rank for one in ops.logs}
    seen: dict[tuple[str, int], set[int]] = {}
    strange = set()
    for comm in {one for log in logs for one in log.comms}:
        rank = owner.get((comm.host, comm.pid))
        if rank is None:
            strange.add((comm.hash, comm.size))
        else:
            seen.setdefault((comm.hash, comm.size), set()).add(rank)
    on_device = np.unique(ops.team[(ops.flags & HOST == 0) & (ops.team >= 0)]).tolist()
    found = {}
    for key, ranks in seen.items():
        teams = {
            ops.teams[place].name
            for place in on_device
            if len(ops.teams[place].members) == key[1] and ranks.issubset(ops.teams[place].members)
        }
        if len(teams) == 1 and key not in strange:
            found[key] = teams.pop()
    return found


def _measure(rows: _Rows, names: dict[tuple[str, int], str]) -> Iterator[CommunicationRow]:
    kind = classify_sizes(rows.size)
    first, inverse = number_columns(rows.comm, rows.op, kind)
    order = np.argsort(inverse, kind="stable")
    bounds = np.searchsorted(inverse[order], np.arange(len(first) + 1)).tolist()
    for place, (start, stop) in zip(first.tolist(), pairwise(bounds), strict=True):
        key = rows.comms[int(rows.comm[place])]
        size_class = int(kind[place])
        row = CommunicationRow(
            op=rows.ops[int(rows.op[place])],
            group=names.get(key, key[0]),
            ranks=key[1],
            bytes_from=4**size_class if size_class >= 0 else 0,
            bytes_to=4 ** (size_class + 1) if size_class >= 0 else 1,
            calls=0,
            bytes=0,
            times_by=SOURCE,
        )
        yield _add_figures(row, rows, order[start:stop])


def _add_figures(row: CommunicationRow, rows: _Rows, chosen: Column) -> CommunicationRow:
    """Add calls, bytes, times and bandwidths of the ops of one kind."""
    _, first, inverse = np.unique(rows.number[chosen], return_index=True, return_inverse=True)
    size = rows.size[chosen][first].astype(np.float64)
    is_message = row.op in {"send", "recv"}
    calls = len(chosen) if is_message else len(first)
    moved = float(rows.size[chosen].sum(dtype=np.float64)) if is_message else float(size.sum())
    row = replace(row, calls=calls, bytes=int(moved))
    time = rows.time[chosen].astype(np.float64)
    known = time[time >= 0]
    if not len(known):
        return replace(row, times_by="")
    row = replace(row, median_ms=_to_ms(np.median(known)), p99_ms=_to_ms(np.percentile(known, 99)))
    if is_message:
        return row
    shortest = np.full(len(first), np.inf)
    np.minimum.at(shortest, inverse, np.where(time >= 0, time, np.inf))
    count = np.bincount(inverse, weights=time >= 0)
    is_whole = (count == row.ranks) & (shortest > 0)
    if not is_whole.any():
        return row
    spent = float(shortest[is_whole].sum())
    algbw = float(size[is_whole].sum()) / spent / _BYTES_PER_US_GB
    factor = find_bus_factor(row.op, row.ranks)
    return replace(
        row,
        transfer_ms=_to_ms(np.median(shortest[is_whole])),
        algbw_gbps=round(algbw, 3),
        busbw_gbps=None if factor is None else round(algbw * factor, 3),
    )


def _to_ms(time_us: float) -> float:
    return round(float(time_us) / _US_PER_MS, 3)
