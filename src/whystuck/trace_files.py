"""Trace files to traces: opens them, and hands their bytes to the parser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from whystuck.content import open_content
from whystuck.evidence.trace import Trace
from whystuck.parse.memory_timeline import MemoryTimeline, parse_memory_timeline
from whystuck.parse.trace_reader import read_trace

_PIECE_BYTES = 8 * 1024 * 1024


def read_trace_file(path: Path, artifact: str = "") -> Trace:
    """Read a Kineto trace, packed or not.

    Args:
        path: The file.
        artifact: The name that citations and gaps give to it; that of the file when left out.

    Returns:
        The trace. What cannot be read of it is told in its gaps.

    Raises:
        ParseError: It is no trace, or nothing here can unpack it.
        OSError: It cannot be read.
    """
    return read_trace(_read_pieces(path), artifact or path.name)


def read_memory_timeline_file(path: Path) -> MemoryTimeline:
    """Read ``memory_timeline.raw.json`` of torch's memory profiler, packed or not.

    Args:
        path: The file.

    Returns:
        Memory over time.

    Raises:
        ParseError: It is no such file, or nothing here can unpack it.
        OSError: It cannot be read.
    """
    return parse_memory_timeline(b"".join(_read_pieces(path)))


def _read_pieces(path: Path) -> Iterator[bytes]:
    with open_content(path) as stream:
        while piece := stream.read(_PIECE_BYTES):
            yield piece
