"""A trace with its critical path drawn in: a track of its own, and arrows from part to part."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from whystuck.tracing.critical.kinds import KIND_NAMES, PathKind
from whystuck.tracing.critical.tables import find_path, name_parts, view_graph
from whystuck.tracing.view import TraceView

# Far above the numbers of processes, and of the sort keys that Kineto gives to devices.
_PID = 99_000_001
_FIRST_FLOW = 1 << 40
_FLOW = "critical_path"
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*"?(\d+)[^\d]')
_LIST = re.compile(rb"\s*\[")
_KEEP = 256
_AT_ONCE = 4096


def list_path_events(view: TraceView, origin_ns: int) -> list[dict[str, Any]]:
    """Make the events of the critical path.

    Args:
        view: The trace.
        origin_ns: The time 0 of the file, on the clock of ``Trace.base_ns``.

    Returns:
        Names of the track, an event a part, and the two ends of an arrow wherever the path goes
        from one thread or stream to another. ``ts`` and ``dur`` are ns.
    """
    graph = view_graph(view)
    parts = find_path(graph)
    names = name_parts(view, parts.name).tolist()
    shift = view.trace.base_ns - origin_ns
    start = (parts.start + shift).tolist()
    end = (parts.end + shift).tolist()
    kinds = [KIND_NAMES[PathKind(kind)] for kind in parts.kind.tolist()]
    made: list[dict[str, Any]] = [
        _name("process_name", "name", "critical path"),
        _name("process_sort_index", "sort_index", -1),
        _name("thread_name", "name", "critical path"),
    ]
    for name, kind, begin, finish in zip(names, kinds, start, end, strict=True):
        made.append(
            {
                "ph": "X",
                "cat": _FLOW,
                "name": name or kind,
                "pid": _PID,
                "tid": 0,
                "ts": begin,
                "dur": finish - begin,
                "args": {"kind": kind},
            }
        )
    where = _places(view)
    made += _list_arrows(where, start)
    return made


def _name(name: str, key: str, value: str | int) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": _PID, "tid": 0, "args": {key: value}}


def _encode(event: dict[str, Any]) -> str:
    """Write an event; its times are ns, of which a float of µs since 1970 would lose some."""
    times = [(key, event.pop(key)) for key in ("ts", "dur") if key in event]
    written = [f', "{key}": {ns // 1000}.{ns % 1000:03d}' for key, ns in times]
    return json.dumps(event)[:-1] + "".join(written) + "}"


def _places(view: TraceView) -> list[tuple[int, int] | None]:
    """Return the process and thread of the trace on which each part of the path is."""
    graph = view_graph(view)
    parts, events = find_path(graph), view.events
    on_thread, on_stream = parts.bound >= 0, parts.piece >= 0
    row = np.full(len(parts), -1, dtype=np.int64)
    row[on_thread] = graph.timeline.row[parts.bound[on_thread]]
    row[on_stream] = graph.work.row[parts.piece[on_stream]]
    pids, tids = events.pid[row].tolist(), events.tid[row].tolist()
    # Numbers below -1 stand for texts of the file, to which nothing can be drawn.
    return [
        (pid, tid) if one >= 0 and pid >= 0 and tid >= 0 else None
        for one, pid, tid in zip(row.tolist(), pids, tids, strict=True)
    ]


def _list_arrows(where: list[tuple[int, int] | None], start: list[int]) -> Iterator[dict[str, Any]]:
    flow = _FIRST_FLOW
    for number in range(1, len(where)):
        before, behind = where[number - 1], where[number]
        if before is None or behind is None or before == behind:
            continue
        shape = {"cat": _FLOW, "name": _FLOW, "id": flow, "ts": start[number]}
        yield {"ph": "s", **shape, "pid": before[0], "tid": before[1]}
        yield {"ph": "f", "bp": "e", **shape, "pid": behind[0], "tid": behind[1]}
        flow += 1


def find_origin(pieces: Iterable[bytes], base_ns: int) -> int:
    """Tell which time the 0 of a file is: that of its ``baseTimeNanoseconds``, or 1970.

    Args:
        pieces: The content of the file.
        base_ns: The base time that was read of it.

    Returns:
        ``base_ns``, or 0.
    """
    rest = b""
    for piece in pieces:
        text = rest + piece
        found = _BASE.search(text)
        if found:
            return base_ns if int(found[1]) == base_ns else 0
        rest = text[-_KEEP:]
    return 0


def insert_events(pieces: Iterable[bytes], events: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    """Insert events into a trace while it is copied; nothing of it is changed.

    Args:
        pieces: The content of the file.
        events: What goes in front of its events; ``ts`` and ``dur`` are ns.

    Yields:
        The content with them.

    Raises:
        ValueError: There is no list of events.
    """
    source = iter(pieces)
    head, is_start, found = b"", True, None
    for piece in source:
        head += piece
        found = _EVENTS.search(head) or (_LIST.match(head) if is_start else None)
        if found and head[found.end() :].strip():
            break
        if not found and len(head) > _KEEP:
            yield head[:-_KEEP]
            head, is_start = head[-_KEEP:], False
    if found is None:
        raise ValueError("it has no traceEvents")
    yield head[: found.end()]
    rest = head[found.end() :]
    is_empty = rest.lstrip().startswith(b"]")
    separator, made = "\n", iter(events)
    while some := [_encode(dict(event)) for event in islice(made, _AT_ONCE)]:
        yield (separator + ",\n".join(some)).encode()
        separator = ",\n"
    yield b"\n" if is_empty or separator == "\n" else b",\n"
    yield rest
    yield from source
