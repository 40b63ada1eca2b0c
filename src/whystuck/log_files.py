"""Reads logs of any size and packing: a map over files and parts of files behind an executor."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from whystuck.content import open_content
from whystuck.evidence.finding import Gap
from whystuck.parse.errors import ParseError
from whystuck.parse.log_join import LogInput
from whystuck.parse.log_names import read_log_name
from whystuck.parse.log_reader import LogPart, LogReader, LogTables
from whystuck.parse.log_tables import LogTable, join_logs

WHAT = "log"
# How many bytes are read and how many there are.
Progress = Callable[[int, int], None]

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class LogPath:
    """One log: where it is, what to cite, and whose it surely is."""

    path: Path
    artifact: str
    rank: int | None = None
    node: str = ""


@dataclass
class LogsRead:
    """What came of some logs."""

    table: LogTable
    gaps: list[Gap] = field(default_factory=list)


def read_logs(paths: Sequence[LogPath], tables: LogTables | None = None) -> LogsRead:
    """Read the logs of one job.

    Args:
        paths: The logs.
        tables: What to look for; our signatures when left out.

    Returns:
        What they tell together, and what could not be read.
    """
    tables = tables or LogTables()
    gaps: list[Gap] = []
    sources = []
    for one in paths:
        part, problem = read_part(one.path, tables)
        if problem:
            gaps.append(Gap(one.rank, WHAT, f"{one.artifact}: {problem}"))
        if part is not None:
            name = read_log_name(one.artifact)
            modified_ns = _find_modified(one.path)
            sources.append(LogInput(one.artifact, part, name, one.rank, one.node, modified_ns))
    return LogsRead(join_logs(sources, tables.signatures), gaps)


def read_part(path: Path, tables: LogTables) -> tuple[LogPart | None, str]:
    """Read one log.

    Args:
        path: Where it is.
        tables: What to look for.

    Returns:
        What was found, None when nothing could be read; and what went wrong, if anything.
    """
    reader = LogReader(tables)
    problem = ""
    size = 0
    try:
        for block in read_blocks(path):
            size += len(block)
            reader.feed(block)
    except ParseError as error:
        problem = error.message
    except OSError as error:
        problem = error.strerror or str(error)
    return (reader.finish() if size or not problem else None), problem


def read_blocks(path: Path) -> Iterator[bytes]:
    """Yield a log block by block: unpacked, and as UTF-8 where it is UTF-16.

    Args:
        path: Where it is.

    Raises:
        ParseError: It is damaged, or nothing here can unpack it; what comes before the damage is
            yielded first.
        OSError: It cannot be read.
    """
    with open_content(path) as stream:
        first = stream.read(_BLOCK_BYTES) or b""
        encoding = _find_encoding(first)
        if not encoding:
            while first:
                yield first
                first = stream.read(_BLOCK_BYTES) or b""
            return
        decoder = codecs.getincrementaldecoder(encoding)("replace")
        while first:
            yield decoder.decode(first).encode("utf-8", "replace")
            first = stream.read(_BLOCK_BYTES) or b""
        yield decoder.decode(b"", final=True).encode("utf-8", "replace")


def _find_encoding(head: bytes) -> str:
    """Find an encoding of two bytes a character, as Windows tools write it."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    pairs = len(head[:4096]) // 2
    if pairs and head[1:4096:2].count(0) > 0.9 * pairs and not head[:4096:2].count(0):
        return "utf-16-le"
    if pairs and head[:4096:2].count(0) > 0.9 * pairs and not head[1:4096:2].count(0):
        return "utf-16-be"
    return ""


def _find_modified(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
