"""Trace files to traces: opens and unpacks them, and tells whose they are."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import IO, Any

from whystuck.evidence.traces.events import UNKNOWN, Detail, Trace
from whystuck.guarded.evidence_files import open_evidence
from whystuck.parse.errors import ParseError
from whystuck.parse.traces.memory_timeline import MemoryTimeline, parse_memory_timeline
from whystuck.parse.traces.reader import NO_RANK, PIECE_BYTES, read_trace
from whystuck.read.content import FREE_BYTES, is_packed, most_unpacked, strip_packed_suffix
from whystuck.read.packed import BOMB, Unpacked, open_packed

_PACKED_BYTES = 1 << 18
_RANK = re.compile(r"(?:^|[^a-z]|global[_\-]?)rank[_\-.=]?(\d{1,7})(?!\d)", re.IGNORECASE)
_LOCAL_RANK = re.compile(r"local[_\-]?rank[_\-.=]?\d+", re.IGNORECASE)
_WORKER = re.compile(r"worker[_\-]?(\d{1,7})(?:[._\-]|$)", re.IGNORECASE)
_RANK_FOLDER = re.compile(r"rank[_\-.=]?(\d{1,7})", re.IGNORECASE)
# As `torch.profiler.tensorboard_trace_handler` names files: worker, time, suffix.
_HANDLER_NAME = re.compile(r"(.+?)\.(?:\d{9,20}\.)?pt\.trace\.json")
_HOST_AND_PROCESS = re.compile(r"(.+)_(?:\d+|rank[_\-.]?\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class TraceName:
    """What the name of a trace tells: its rank, -1 when it does not, and its host or nothing."""

    rank: int = UNKNOWN
    host: str = ""


def read_trace_file(
    path: Path,
    artifact: str = "",
    *,
    detail: Detail = Detail.ALL,
    rank: int = UNKNOWN,
    host: str = "",
    free_bytes: int = FREE_BYTES,
) -> Trace:
    """Read a Kineto trace, packed or not.

    Args:
        path: The file.
        artifact: The name that citations and gaps give to it; that of the file when left out.
        detail: The arguments of events to decode; see `read_trace`.
        rank: The rank to take where neither the trace nor its name tells one.
        host: The host to take where they tell none.
        free_bytes: What may come out of a packed one, however small it is.

    Returns:
        The trace. What cannot be read of it is told in its gaps.

    Raises:
        ParseError: It is no trace, or nothing here can unpack it.
        OSError: It cannot be read.
    """
    with open_evidence(path) as stream:
        trace = read_trace(read_pieces(stream, free_bytes), artifact or path.name, detail)
    return name_trace(trace, str(path), rank=rank, host=host)


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
    with open_evidence(path) as stream:
        return parse_memory_timeline(b"".join(read_pieces(stream)))


def name_trace(trace: Trace, name: str, *, rank: int = UNKNOWN, host: str = "") -> Trace:
    """Give a trace the rank and the host that it does not tell itself.

    Args:
        trace: The trace.
        name: The name of its file, with its folders.
        rank: The rank to take where the name tells none.
        host: The host to take where the name tells none.

    Returns:
        The trace with both, as far as they are known.
    """
    told = read_trace_name(name)
    if trace.rank == UNKNOWN:
        rank = told.rank if told.rank != UNKNOWN else rank
        if rank != UNKNOWN:
            gaps = tuple(gap for gap in trace.gaps if gap.reason != NO_RANK)
            trace = replace(trace, rank=rank, gaps=gaps)
    return replace(trace, host=trace.host or told.host or host)


def read_trace_name(name: str) -> TraceName:
    """Tell the rank and the host from the name of a trace.

    A number without a word before it may be a process or a time, and is no rank.

    Args:
        name: The name, with or without folders.

    Returns:
        What it tells.
    """
    path = PurePath(name)
    base = strip_packed_suffix(path.name)
    plain = _LOCAL_RANK.sub("", base)
    host = ""
    if hit := _HANDLER_NAME.fullmatch(base):
        worker = hit[1]
        if (whose := _HOST_AND_PROCESS.fullmatch(worker)) and not _WORKER.match(worker):
            host = whose[1]
    if found := _RANK.search(plain) or _WORKER.match(plain):
        return TraceName(int(found[1]), host)
    if found := _RANK_FOLDER.fullmatch(path.parent.name):
        return TraceName(int(found[1]), host)
    return TraceName(UNKNOWN, host)


def read_pieces(
    stream: IO[bytes] | Any,  # noqa: ANN401 - anything to read
    free_bytes: int = FREE_BYTES,
) -> Iterator[bytes]:
    """Read a file in pieces, unpacked when it is packed.

    Args:
        stream: An open file, also one of fsspec: only its ``read`` is used.
        free_bytes: What may come out of a packed one, however small it is.

    Yields:
        The content, all that lies before a damage.

    Raises:
        ParseError: It is damaged behind what came, or nothing here can unpack it.
    """
    head = stream.read(_PACKED_BYTES)
    if is_packed(head):
        source = _Counted(stream, head)
        unpacked = Unpacked(open_packed(source, head))  # type: ignore[arg-type]
        size = 0
        while piece := unpacked.read(PIECE_BYTES):
            yield piece
            size += len(piece)
            if size > most_unpacked(source.count, free_bytes):
                raise ParseError(BOMB)
    else:
        piece = head
        while piece:
            yield piece
            piece = stream.read(PIECE_BYTES)


class _Counted:
    """What was read of a stream already, and then the rest of it; counts what is read."""

    def __init__(self, stream: Any, head: bytes) -> None:  # noqa: ANN401 - anything to read
        self._stream, self._head, self.count = stream, head, 0

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._head[:size] if size >= 0 else self._head
        self._head = self._head[len(data) :]
        data = data or self._stream.read(size)
        self.count += len(data)
        return data


def find_fingerprint(stream: IO[bytes] | Any) -> str:  # noqa: ANN401 - anything to read
    """Return what tells the content of a file from any other: a hash of all its bytes."""
    digest = hashlib.sha256()
    size = 0
    while piece := stream.read(PIECE_BYTES):
        digest.update(piece)
        size += len(piece)
    return f"{size:x}-{digest.hexdigest()[:32]}"
