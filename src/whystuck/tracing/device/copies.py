"""Copies and fills of memory: how many, how large, how fast."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from whystuck.evidence.table import Table, text_column
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.arrays.segments import Real, Whole, sum_groups
from whystuck.tracing.classes import KernelClass
from whystuck.tracing.metric import Metric, of_devices
from whystuck.tracing.view import TraceView

_COLUMNS = (
    "rank",
    "device",
    "kind",
    "is_pageable",
    "count",
    "bytes",
    "sum_ns",
    "gbps_mean",
    "gbps_max",
)
_SERIES_COLUMNS = ("rank", "device", "kind", "ts_ns", "gbps")
_WAY = re.compile(r"(?:^|[^A-Za-z])([HDPA]to[HDPA])(?:$|[^A-Za-z])")
_LONG_WAY = re.compile(r"^Copy(Host|Device)To(Host|Device)")
_UNKNOWN = -1
# Less than any copy has; the tracer wrote nonsense.
_LEAST_GBPS = 1e-9


@dataclass(frozen=True)
class _Copies:
    """Copies and fills, in the order of the file; ``kind`` is a position in ``kinds``."""

    position: Whole
    kinds: list[str]
    kind: Whole
    is_pageable: Whole
    bytes: Whole
    gbps: Real


def measure_copies(view: TraceView, options: TraceOptions) -> Table:
    """Sum up copies and fills of memory.

    ``kind`` is the way of a copy, such as ``HtoD``, or ``Memset``. ``is_pageable`` is 1 when one
    end of it was memory of the host that is not pinned, 0 when not, -1 when the trace does not
    tell. ``gbps_mean`` is all bytes by all time, in 10^9 bytes a second; copies whose size the
    trace does not tell are left out of it. When there are no others it is NaN, and ``bytes`` -1.

    Args:
        view: The trace.
        options: Not used.

    Returns:
        A row for each device, kind and sort of memory.
    """
    del options
    copies = _find_copies(view)
    device = view.device_place[copies.position]
    keys, group = np.unique(
        (device * max(len(copies.kinds), 1) + copies.kind) * 3 + copies.is_pageable + 1,
        return_inverse=True,
    )
    size = len(keys)
    kind = (keys // 3) % max(len(copies.kinds), 1)
    duration = view.events.duration_ns[view.device_rows[copies.position]]
    is_sized, is_timed = copies.bytes >= 0, ~np.isnan(copies.gbps) & (copies.gbps > 0)
    timed = group[is_timed]
    amount = np.bincount(timed, weights=copies.bytes[is_timed], minlength=size)
    took = np.bincount(
        timed, weights=copies.bytes[is_timed] / copies.gbps[is_timed], minlength=size
    )
    most = np.full(size, np.nan)
    np.fmax.at(most, timed, copies.gbps[is_timed])
    total = sum_groups(copies.bytes[is_sized], group[is_sized], size)
    is_known = np.bincount(group[is_sized], minlength=size) > 0
    columns = (
        view.rank_column(size),
        view.devices[keys // 3 // max(len(copies.kinds), 1)],
        text_column([copies.kinds[one] for one in kind.tolist()]),
        keys % 3 - 1,
        np.bincount(group, minlength=size),
        np.where(is_known, total, _UNKNOWN),
        sum_groups(duration, group, size),
        np.divide(amount, took, out=np.full(size, np.nan), where=took > 0),
        most,
    )
    return Table.of(_COLUMNS, columns)


def measure_copy_series(view: TraceView, options: TraceOptions) -> Table:
    """List how the bandwidth that copies of each kind used changed.

    Copies of one kind that run at the same time add up; those of unknown size are left out.

    Args:
        view: The trace.
        options: Not used.

    Returns:
        A row for each change: the bandwidth from ``ts_ns`` on, in 10^9 bytes a second.
    """
    del options
    copies = _find_copies(view)
    timed = np.flatnonzero(~np.isnan(copies.gbps))
    position, kind = copies.position[timed], copies.kind[timed]
    rows = view.device_rows[position]
    start = view.events.start_ns[rows]
    # A copy of no time would leave no trace.
    time = np.r_[start, np.maximum(view.find_ends(rows), start + 1)]
    change = np.r_[copies.gbps[timed], -copies.gbps[timed]]
    count = np.repeat(np.array([1, -1]), len(rows))
    place = np.tile(view.device_place[position] * max(len(copies.kinds), 1) + kind, 2)
    order = np.lexsort((count, time, place))
    place, time = place[order], time[order]
    running = np.cumsum(change[order])
    # Rounding must not leave any bandwidth where no copy runs.
    is_none = np.cumsum(count[order]) == 0
    first = np.flatnonzero(np.r_[True, place[1:] != place[:-1]][: len(place)])
    lengths = np.diff(np.r_[first, len(place)])
    left = np.repeat(np.r_[0.0, running[first[1:] - 1]] if len(first) else first, lengths)
    columns = (
        view.rank_column(len(time)),
        view.devices[place // max(len(copies.kinds), 1)],
        text_column(copies.kinds)[place % max(len(copies.kinds), 1)],
        time,
        np.where(is_none, 0.0, running - left),
    )
    return Table.of(_SERIES_COLUMNS, columns)


def _find_copies(view: TraceView) -> _Copies:
    position = np.flatnonzero(view.device_class == KernelClass.MEMORY)
    rows = view.device_rows[position]
    names, place = np.unique(view.events.name[rows], return_inverse=True)
    texts = [view.trace.names[name] for name in names.tolist()]
    told = [tell_kind(text) for text in texts]
    kinds = sorted(set(told))
    kind = np.array([kinds.index(one) for one in told], dtype=np.int64)
    pageable = np.array([tell_pageable(text) for text in texts], dtype=np.int64)
    size = view.trace.get("bytes").at(rows).astype(np.int64)
    gbps = view.trace.get("bandwidth").at(rows).astype(np.float64)
    gbps[~np.isfinite(gbps) | (gbps < _LEAST_GBPS)] = np.nan
    duration = view.events.duration_ns[rows]
    # Bytes a ns are GB/s.
    own = np.divide(size, duration, out=np.full(len(rows), np.nan), where=duration > 0)
    return _Copies(
        position,
        kinds,
        kind[place],
        pageable[place],
        size,
        np.where(size < 0, np.nan, np.where(np.isnan(gbps), own, gbps)),
    )


def tell_kind(name: str) -> str:
    """Tell the way of a copy from its name, such as ``HtoD``; else ``Memset``, or the name."""
    if way := _WAY.search(name):
        return way[1]
    if way := _LONG_WAY.match(name):
        return f"{way[1][0]}to{way[2][0]}"
    if "memset" in name.lower() or name.startswith("FillBuffer"):
        return "Memset"
    return name.partition("(")[0].strip()


def tell_pageable(name: str) -> int:
    """Tell from the name of a copy whether memory of the host that is not pinned took part.

    Returns:
        1 or 0, -1 when the name does not tell.
    """
    if "Pageable" in name:
        return 1
    is_told = "Pinned" in name or name.count("Device") > 1 or tell_kind(name) in {"DtoD", "Memset"}
    return 0 if is_told else _UNKNOWN


METRIC = Metric("copies", _COLUMNS, measure_copies, of=of_devices)
SERIES_METRIC = Metric(
    "copy_series", _SERIES_COLUMNS, measure_copy_series, is_default=False, is_per_event=True
)
