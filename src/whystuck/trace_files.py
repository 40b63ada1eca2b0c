"""Trace files to traces: opens and unpacks them, and tells whose they are."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path, PurePath
from typing import IO, Any

from whystuck.content import (
    BOMB,
    Unpacked,
    is_packed,
    most_unpacked,
    open_packed,
    strip_packed_suffix,
)
from whystuck.evidence.trace import UNKNOWN, Trace
from whystuck.opening import open_evidence
from whystuck.parse.errors import ParseError
from whystuck.parse.memory_timeline import MemoryTimeline, parse_memory_timeline
from whystuck.parse.trace_reader import NO_RANK, PIECE_BYTES, read_trace
from whystuck.parse.trace_schema import Detail

_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 31
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
) -> Trace:
    """Read a Kineto trace, packed or not.

    Args:
        path: The file.
        artifact: The name that citations and gaps give to it; that of the file when left out.
        detail: The arguments of events to decode; see `read_trace`.
        rank: The rank to take where neither the trace nor its name tells one.
        host: The host to take where they tell none.

    Returns:
        The trace. What cannot be read of it is told in its gaps.

    Raises:
        ParseError: It is no trace, or nothing here can unpack it.
        OSError: It cannot be read.
    """
    with open_evidence(path) as stream:
        trace = read_trace(read_pieces(stream), artifact or path.name, detail)
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


def read_pieces(stream: IO[bytes] | Any) -> Iterator[bytes]:  # noqa: ANN401 - anything to read
    """Read a file in pieces, unpacked when it is packed.

    Args:
        stream: An open file, also one of fsspec: only its ``read`` is used.

    Yields:
        The content, all that lies before a damage.

    Raises:
        ParseError: It is damaged behind what came, or nothing here can unpack it.
    """
    head = stream.read(_PACKED_BYTES)
    if is_packed(head):
        source = _Counted(stream, len(head))
        unpack = _unpack_gzip if head.startswith(_GZIP_MAGIC) else _unpack_other
        size = 0
        for piece in unpack(source, head):
            yield piece
            size += len(piece)
            if size > most_unpacked(source.count):
                raise ParseError(BOMB)
    else:
        piece = head
        while piece:
            yield piece
            piece = stream.read(PIECE_BYTES)


class _Counted:
    """A stream that counts what is read of it."""

    def __init__(self, stream: Any, count: int) -> None:  # noqa: ANN401 - anything to read
        self._stream, self.count = stream, count

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._stream.read(size)
        self.count += len(data)
        return data


def _unpack_gzip(stream: _Counted, data: bytes) -> Iterator[bytes]:
    """Unpack any number of members; each byte before a damage comes out."""
    make, errors = _find_inflater()
    unpacker = make(_GZIP_WINDOW)
    is_begun = True
    while data:
        try:
            piece = unpacker.decompress(data, PIECE_BYTES)
        except errors as error:
            raise ParseError(f"cannot be unpacked to its end ({str(error)[:120]})") from error
        if piece:
            yield piece
        if unpacker.eof:
            # Zeros behind a member are padding.
            data = unpacker.unused_data.lstrip(b"\0") or stream.read(_PACKED_BYTES).lstrip(b"\0")
            unpacker, is_begun = make(_GZIP_WINDOW), bool(data)
        else:
            data = unpacker.unconsumed_tail or stream.read(_PACKED_BYTES)
    if is_begun:
        yield from _flush(unpacker, errors)
        raise ParseError("the packed file ends early")


def _flush(unpacker: Any, errors: tuple[type[Exception], ...]) -> Iterator[bytes]:  # noqa: ANN401
    """Yield what an unpacker has not given out yet."""
    with suppress(*errors):
        if piece := unpacker.flush():
            yield piece


def _find_inflater() -> tuple[Any, tuple[type[Exception], ...]]:
    """Return the fastest unpacker that is installed, and what it raises."""
    try:
        module: Any = import_module("isal.isal_zlib")
    except ModuleNotFoundError:
        return zlib.decompressobj, (zlib.error,)
    return module.decompressobj, (zlib.error, module.error)


class _Joined:
    """What was read already, and then the rest of a file."""

    def __init__(self, head: bytes, stream: _Counted) -> None:
        self._head, self._stream = head, stream

    def read(self, size: int = -1) -> bytes:
        if self._head:
            size = len(self._head) if size < 0 else size
            data, self._head = self._head[:size], self._head[size:]
            return data
        return self._stream.read(size)


def _unpack_other(stream: _Counted, head: bytes) -> Iterator[bytes]:
    source: Any = _Joined(head, stream)
    unpacked = Unpacked(open_packed(source, head))
    while piece := unpacked.read(PIECE_BYTES):
        yield piece


def find_fingerprint(stream: IO[bytes] | Any) -> str:  # noqa: ANN401 - anything to read
    """Return what tells the content of a file from any other: a hash of all its bytes."""
    digest = hashlib.sha256()
    size = 0
    while piece := stream.read(PIECE_BYTES):
        digest.update(piece)
        size += len(piece)
    return f"{size:x}-{digest.hexdigest()[:32]}"
