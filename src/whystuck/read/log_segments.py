"""Reads a part of a log, block by block, whatever it is packed and encoded with."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from whystuck.guarded.evidence_files import open_evidence
from whystuck.parse.errors import ParseError
from whystuck.parse.logs.compiled import LogTables
from whystuck.parse.logs.parts import LogPart
from whystuck.parse.logs.reader import MAX_LOOKS, MAX_REST, MAX_SAMPLED, LogReader
from whystuck.parse.logs.sampling import HEAD_BYTES
from whystuck.read.content import open_content

BLOCK_BYTES = 1 << 20
# What begins in one part may end in the next one.
_DRAIN_BYTES = 1 << 16


@dataclass(frozen=True)
class Segment:
    """A part of a file: the lines that begin in it.

    ``end`` is None for the last part, which goes on as long as the file does; ``most`` is how many
    bytes may come out of a file that is packed, ``looks`` how many lines may be looked at,
    ``sampled`` how many of each end, and ``data`` the file where it was read already.
    """

    number: int
    path: Path
    start: int = 0
    end: int | None = None
    size: int = 0
    most: int | None = None
    looks: int = MAX_LOOKS
    sampled: int = MAX_SAMPLED
    data: bytes | None = None


@dataclass
class SegmentRead:
    """What came of a part; nothing when it could not be read at all, or was not as it was late."""

    part: LogPart | None
    problem: str = ""
    is_late: bool = False


def read_segment(segment: Segment, tables: LogTables) -> SegmentRead:
    """Read a part of a file.

    Args:
        segment: The part.
        tables: What to look for.

    Returns:
        What was found, and what went wrong.
    """
    problem = ""
    reader = None
    try:
        if segment.start == 0 and segment.end is None:
            reader = LogReader(tables, looks=segment.looks, sampled=segment.sampled)
            kept = None if segment.data is None else _as_utf8(iter([segment.data]))
            for block in kept or read_blocks(segment.path, segment.most):
                reader.feed(block)
        else:
            reader = _read_middle(segment, tables)
    except ParseError as error:
        problem = error.message
    except OSError as error:
        problem = error.strerror or str(error)
    part = reader.finish() if reader is not None else None
    if part is not None and problem and not part.size:
        part = None
    return SegmentRead(part, problem)


def _read_middle(segment: Segment, tables: LogTables) -> LogReader:
    """Read the lines that begin in a part of a file that is not packed."""
    with open_evidence(segment.path) as stream:
        reader = LogReader(tables, stream.read(HEAD_BYTES), segment.looks, segment.sampled)
        place = segment.start
        if place:
            # The line that begins before the part belongs to the one before.
            stream.seek(place - 1)
            line = stream.readline(MAX_REST)
            place += len(line) - 1 if line.endswith(b"\n") else 0
        stream.seek(place)
        end = segment.end
        while end is None or place < end:
            block = stream.read(BLOCK_BYTES if end is None else min(BLOCK_BYTES, end - place))
            if not block:
                return reader
            place += len(block)
            reader.feed(block)
        if place == end:
            stream.seek(place - 1)
            reader.feed(stream.readline(MAX_REST)[1:])
        reader.drain(stream.read(_DRAIN_BYTES))
    return reader


def read_blocks(path: Path, most: int | None = None) -> Iterator[bytes]:
    """Yield a log block by block: unpacked, and as UTF-8 where it is UTF-16.

    Args:
        path: Where it is.
        most: How many bytes may come out of it where it is packed.

    Raises:
        ParseError: It is damaged, or nothing here can unpack it; what comes before the damage is
            yielded first.
        OSError: It cannot be read.
    """
    with open_content(path, most) as stream:
        yield from _as_utf8(iter(lambda: stream.read(BLOCK_BYTES) or b"", b""))


def _as_utf8(blocks: Iterator[bytes]) -> Iterator[bytes]:
    first = next(blocks, b"")
    blocks = chain([first] if first else [], blocks)
    encoding = find_encoding(first)
    if not encoding:
        yield from blocks
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    for block in blocks:
        yield decoder.decode(block).encode("utf-8", "replace")
    yield decoder.decode(b"", final=True).encode("utf-8", "replace")


def find_encoding(head: bytes) -> str:
    """Find an encoding of two bytes a character, as Windows tools write it."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    head = head[:4096]
    pairs = len(head) // 2
    odd, even = head[1::2].count(0), head[::2].count(0)
    if not pairs or max(odd, even) < pairs * 0.9 or min(odd, even):
        return ""
    return "utf-16-le" if odd else "utf-16-be"
