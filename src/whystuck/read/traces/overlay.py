"""Writes a trace again with its critical path or counters drawn in, a piece at a time."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from whystuck.evidence.errors import UsageError
from whystuck.evidence.traces.options import TraceOptions
from whystuck.guarded.remote import fetched, written
from whystuck.parse.errors import ParseError
from whystuck.read.content import open_content
from whystuck.read.traces.files import read_trace_file
from whystuck.read.traces.inputs import TraceInput, find_inputs
from whystuck.tracing.device.counters_trace import list_counter_events
from whystuck.tracing.overlay import find_origin, insert_events, list_path_events
from whystuck.tracing.view import TraceView

# Makes the events to draw in, of a trace and the time 0 of its file.
Maker = Callable[[TraceView, int], Iterable[dict[str, Any]]]
_PIECE_BYTES = 4 << 20
_LEVEL = 3


def write_overlay(
    places: Sequence[str], ranks: Sequence[int], target: str, options: TraceOptions
) -> None:
    """Write a trace with its critical path drawn in.

    Args:
        places: Paths and URLs of traces.
        ranks: Of which rank, where there are several traces.
        target: The path or URL to write; packed with gzip when its name ends in ``.gz``.
        options: How traces are measured.

    Raises:
        UsageError: It is not clear which trace is meant, it cannot be read, or not be written.
    """
    _write_with(list_path_events, places, ranks, target, options)


def _write_with(
    make: Maker, places: Sequence[str], ranks: Sequence[int], target: str, options: TraceOptions
) -> None:
    inputs = [one for one in find_inputs(places)[0] if not one.is_partial]
    one = _choose(inputs, ranks)
    try:
        with fetched(one.place) as path, written(target) as stream:
            _write(make, path, stream, target, options)
    except (ParseError, ValueError) as error:
        raise UsageError(f"{one.artifact}: {error}", hint="give one trace of Kineto") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"cannot write {target}: {reason}", hint="choose another file") from error


def write_counters(places: Sequence[str], target: str, options: TraceOptions) -> None:
    """Write a trace with counter tracks: queues, bandwidth, use of devices, allocated memory.

    Args:
        places: Paths and URLs of traces; one trace.
        target: The path or URL to write; packed with gzip when its name ends in ``.gz``.
        options: How traces are measured.

    Raises:
        UsageError: There are several traces, it cannot be read, or not be written.
    """
    _write_with(list_counter_events, places, (), target, options)


def _choose(inputs: Sequence[TraceInput], ranks: Sequence[int]) -> TraceInput:
    if len(inputs) > 1 and len(ranks) == 1:
        inputs = [one for one in inputs if one.rank == ranks[0]]
    if len(inputs) != 1:
        raise UsageError(
            f"such a file is made of one trace, and there are {len(inputs)}",
            hint="give the file of one rank",
        )
    return inputs[0]


def _write(make: Maker, path: Path, stream: IO[bytes], target: str, options: TraceOptions) -> None:
    trace = read_trace_file(path)
    origin = find_origin(_read(path), trace.base_ns)
    events = make(TraceView(trace, options), origin)
    pieces = insert_events(_read(path), events)
    if not target.endswith(".gz"):
        stream.writelines(pieces)
        return
    with gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=_LEVEL, mtime=0) as packed:
        for piece in pieces:
            packed.write(piece)


def _read(path: Path) -> Iterator[bytes]:
    with open_content(path) as source:
        while piece := source.read(_PIECE_BYTES):
            yield piece
