"""The collectives of one rank: what each was, when it ran, and what came before it."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.table import Column, Table, text_column
from whystuck.evidence.traces.events import UNKNOWN, Detail, Trace
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.arrays.intervals import Union, cover, unite
from whystuck.tracing.classes import KernelClass
from whystuck.tracing.collectives.forms import Form, find_forms, read_argument, text_at
from whystuck.tracing.collectives.members import (
    IS_DIGEST,
    number_text,
)
from whystuck.tracing.collectives.ops import (
    PAIR_OPS,
)
from whystuck.tracing.collectives.rows import CommRows, Rows, find_candidates, find_comm_rows
from whystuck.tracing.metric import Metric
from whystuck.tracing.view import TraceView

_COLUMNS = (
    "rank",
    "group",
    "group_size",
    "sequence",
    "comms_id",
    "order",
    "device",
    "stream",
    "op",
    "dtype",
    "bytes",
    "in_bytes",
    "out_bytes",
    "start_ns",
    "end_ns",
    "launch_ns",
    "exposed_ns",
    "own_ns",
    "own_compute_ns",
    "members",
    "group_desc",
    "peer",
    "group_key",
    "kind_key",
    "number",
)


def measure_collective_calls(view: TraceView, options: TraceOptions) -> Table:
    """List the collectives of a rank.

    All steps are taken, the last one too: a collective that is there is there as a whole.

    ``bytes`` is the size as nccl-tests counts it. ``order`` counts the collectives of a group, or
    of a stream where the group is unknown. ``exposed_ns`` is the part in which nothing else ran.
    ``own_ns`` is the time since the collective before it on the stream that the rank did not
    spend in communication alone: what it needed for itself to get here, whoever it had waited for;
    ``own_compute_ns`` is how much of it the device worked. ``group_key``, ``kind_key`` and
    ``number`` are what ranks are matched by: the group, what was done, and which one it was.

    Args:
        view: The trace.
        options: Names of kernels that communicate.

    Returns:
        A row a collective, by start; sends and receives too.
    """
    if view.cut_ns is not None:
        view = TraceView(view.trace, msgspec.structs.replace(options, all_steps=True))
    rows = find_comm_rows(view)
    forms, form = find_forms(view, rows)
    events, work = view.events, rows.work
    start, end = events.start_ns[work], view.end_ns[work]
    stream = events.stream[work].astype(np.int64)
    device = events.device[work].astype(np.int64)
    columns: dict[str, Column] = {name: _spread(forms, name, form) for name in Form._fields}
    key = _key_streams(columns["group_key"], device, stream)
    sequence, comms_id, number = _number_calls(view.trace, rows)
    columns |= {
        "rank": view.rank_column(len(work)),
        "sequence": sequence,
        "comms_id": comms_id,
        "number": number,
        "order": _count_order(key, np.isin(columns["op"], list(PAIR_OPS))),
        "device": device,
        "stream": stream,
        "start_ns": start,
        "end_ns": end,
        "launch_ns": np.where(rows.launch >= 0, events.start_ns[rows.launch], UNKNOWN),
        "peer": _find_peers(view.trace, rows, columns["op"]),
        "group_key": key,
    }
    columns |= _measure_own(view, rows)
    return Table({name: columns[name] for name in _COLUMNS})


def _spread(forms: list[Form], name: str, form: Rows) -> Column:
    values: list[Any] = [getattr(one, name) for one in forms]
    column = np.array(values, dtype=np.int64) if name in _WHOLE else text_column(values)
    spread: Column = column[form]
    return spread


_WHOLE = ("group_size", "bytes", "in_bytes", "out_bytes", "group_key", "kind_key")


def _number_calls(trace: Trace, rows: CommRows) -> tuple[Column, Column, Column]:
    """Return what the trace numbers calls by: `Seq`, `Comms Id`, and one number from them."""
    sequence = read_argument(trace, "sequence", rows)
    sequence = np.where(sequence < IS_DIGEST, sequence, UNKNOWN)
    place = read_argument(trace, "comms_id:text", rows)
    unique, inverse = np.unique(place, return_inverse=True)
    texts = [text_at(trace.texts, one) for one in unique.tolist()]
    keys = np.array([number_text(text) if text else UNKNOWN for text in texts], dtype=np.int64)
    number = np.where(sequence >= 0, sequence, keys[inverse] if len(keys) else UNKNOWN)
    return sequence, text_column(texts)[inverse], number


def _find_peers(trace: Trace, rows: CommRows, op: Column) -> NDArray[np.int64]:
    source, target = read_argument(trace, "src_rank", rows), read_argument(trace, "dst_rank", rows)
    peer = np.where(op == "send", target, np.where(op == "recv", source, UNKNOWN))
    return peer.astype(np.int64)


def _key_streams(key: Column, device: Rows, stream: Rows) -> NDArray[np.int64]:
    """Give the calls of unknown groups the key of their stream: the first that was used, and so on.

    The numbers of streams may differ between ranks.
    """
    unknown = np.flatnonzero(key == UNKNOWN)
    if not len(unknown):
        return key
    place = (device[unknown] << 32) + stream[unknown]
    streams, first, inverse = np.unique(place, return_index=True, return_inverse=True)
    ordinal = np.empty(len(streams), dtype=np.int64)
    ordinal[np.argsort(first)] = np.arange(len(streams))
    keys = np.array([number_text("stream", k) for k in range(len(streams))], dtype=np.int64)
    key = key.copy()
    key[unknown] = keys[ordinal[inverse]]
    return key


def _count_order(key: NDArray[np.int64], is_pair: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Count the collectives of each key, and apart from them its sends and receives."""
    code = np.unique(key, return_inverse=True)[1] * 2 + is_pair
    by_code = np.argsort(code, kind="stable")
    codes = code[by_code]
    begin = np.searchsorted(codes, codes)
    order = np.empty(len(code), dtype=np.int64)
    order[by_code] = np.arange(len(code)) - begin
    return order


def _measure_own(view: TraceView, rows: CommRows) -> dict[str, Column]:
    """Measure what came before each call, and what ran beside it."""
    events, work = view.events, rows.work
    start, end = events.start_ns[work], view.end_ns[work]
    device = events.device[work].astype(np.int64)
    chain = (device << 32) + events.stream[work]
    before = _find_end_before(chain, start, end)
    exposed = np.full(len(work), UNKNOWN, dtype=np.int64)
    own, own_compute = exposed.copy(), exposed.copy()
    for one in np.unique(device).tolist():
        mine = device == one
        compute, active = _unite_device(view, rows, one)
        is_first = before[mine] == _NOTHING_BEFORE
        stop = start[mine]
        begin = np.where(is_first, stop, np.minimum(before[mine], stop))
        worked = cover(compute, stop) - cover(compute, begin)
        waited = cover(active, stop) - cover(active, begin) - worked
        own[mine] = np.where(is_first, UNKNOWN, stop - begin - waited)
        if rows.is_device:
            own_compute[mine] = np.where(is_first, UNKNOWN, worked)
            alone = end[mine] - stop - cover(compute, end[mine]) + cover(compute, stop)
            exposed[mine] = alone
    return {"exposed_ns": exposed, "own_ns": own, "own_compute_ns": own_compute}


_NOTHING_BEFORE = np.iinfo(np.int64).min


def _find_end_before(chain: Rows, start: Rows, end: Rows) -> NDArray[np.int64]:
    """Return where the calls before each one on the same stream have ended."""
    before = np.full(len(start), _NOTHING_BEFORE, dtype=np.int64)
    for one in np.unique(chain).tolist():
        mine = np.flatnonzero(chain == one)
        mine = mine[np.argsort(start[mine], kind="stable")]
        before[mine[1:]] = np.maximum.accumulate(end[mine])[:-1]
    return before


def _unite_device(view: TraceView, rows: CommRows, device: int) -> tuple[Union, Union]:
    """Return when a device worked for itself, and when it did anything."""
    events = view.events
    if not rows.is_device:
        comm = unite(events.start_ns[rows.work], view.end_ns[rows.work])
        return unite(comm.start[:0], comm.end[:0]), comm
    on_device = events.device[view.device_rows] == device
    every = view.device_rows[on_device]
    alone = every[view.device_class[on_device] != KernelClass.COMM]
    return (
        unite(events.start_ns[alone], view.end_ns[alone]),
        unite(events.start_ns[every], view.end_ns[every]),
    )


METRIC = Metric(
    "collective_calls",
    _COLUMNS,
    measure_collective_calls,
    is_per_event=True,
    of=find_candidates,
    # Older traces tell sizes by the shapes of inputs only.
    detail=Detail.LEAN | Detail.SHAPES,
)
