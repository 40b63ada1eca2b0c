"""Reads logs of any size and packing: a map over parts of files, in as many processes as cores."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path

from whystuck.evidence.collector import collector_paused
from whystuck.evidence.finding import Gap
from whystuck.guarded.evidence_files import FileStatus, look_at, open_evidence
from whystuck.parse.logs.compiled import LogTables, load_tables
from whystuck.parse.logs.log_inputs import LogInput
from whystuck.parse.logs.owners.names import read_log_name
from whystuck.parse.logs.parts import merge_parts
from whystuck.parse.logs.reader import LEAST_LOOKS, LEAST_SAMPLED, MAX_LOOKS, MAX_SAMPLED
from whystuck.parse.logs.tables import LogTable, join_logs
from whystuck.read.budget import Deadline, count_cpus
from whystuck.read.content import is_packed, most_unpacked, share_free
from whystuck.read.log_segments import Segment, SegmentRead, find_encoding, read_segment
from whystuck.read.pool import (
    Progress,
    can_fork,
    forked,
    map_parts,
    tell_nobody,
)
from whystuck.tracing.arrays.allocation import keep_freed_memory

WHAT = "log"
# Larger files are read in parts of this size, side by side.
SEGMENT_BYTES = 1 << 27
# Small files are handed out together.
_CHUNK_BYTES = 1 << 23
# What may come out of all logs together beyond forty times their size.
_ALL_FREE_BYTES = 1 << 29
# Below this, starting processes takes longer than reading.
_POOL_FROM_BYTES = 1 << 25
# The start and the end of each are looked at line by line, which takes as long as to read so much.
_FILE_COST_BYTES = 1 << 16


@dataclass(frozen=True)
class LogPath:
    """One log: where it is, what to cite, and whose it surely is.

    ``status`` is what the disk says of it, and ``data`` all of it, where they are known already.
    """

    path: Path
    artifact: str
    rank: int | None = None
    node: str = ""
    status: FileStatus | None = None
    data: bytes | None = None


@dataclass
class LogsRead:
    """What came of some logs; ``late`` is how many were not read, as it took too long."""

    table: LogTable
    gaps: list[Gap] = field(default_factory=list)
    late: int = 0


_LATE = SegmentRead(None, is_late=True)


def read_logs(
    paths: Sequence[LogPath],
    tables: LogTables | None = None,
    *,
    progress: Progress | None = None,
    executor: Executor | None = None,
    deadline: Deadline | None = None,
) -> LogsRead:
    """Read the logs of one job.

    Args:
        paths: The logs.
        tables: What to look for; our signatures when left out.
        progress: Called with the number of bytes that are read, and of all.
        executor: Where to read them; processes of this machine when left out.
        deadline: When to read no more; their own when left out.

    Returns:
        What they tell together, and what could not be read.
    """
    # Blocks are made and dropped all the time: this is a fifth of the CPU of large logs.
    keep_freed_memory()
    # What is read has no cycles: to look for them takes 2 s of 20,000 logs.
    with collector_paused():
        tables = tables or load_tables()
        return _read_all(paths, tables, progress or tell_nobody, executor, deadline)


def _read_all(
    paths: Sequence[LogPath],
    tables: LogTables,
    progress: Progress,
    executor: Executor | None,
    deadline: Deadline | None,
) -> LogsRead:
    free = share_free(len(paths), total=_ALL_FREE_BYTES)
    looks = max(LEAST_LOOKS, MAX_LOOKS // max(1, len(paths)))
    sampled = max(LEAST_SAMPLED, MAX_SAMPLED // max(1, len(paths)))
    found = [one.status or _look(one.path) for one in paths]
    segments = [
        Segment(
            number, one.path, start, end, size, most_unpacked(size, free), looks, sampled, one.data
        )
        for number, (one, status) in enumerate(zip(paths, found, strict=True))
        for start, end, size in _cut(one.path, status.size)
    ]
    read: dict[int, list[SegmentRead]] = {}
    deadline = deadline or Deadline(one.path for one in paths)
    done = _read_segments(segments, tables, progress, executor, deadline)
    for segment, result in zip(segments, done, strict=True):
        read.setdefault(segment.number, []).append(result)
    gaps, sources = list[Gap](), []
    for number, one in enumerate(paths):
        problem = next((result.problem for result in read[number] if result.problem), "")
        if problem:
            gaps.append(Gap(one.rank, WHAT, f"{one.artifact}: {problem}"))
        parts = [result.part for result in read[number] if result.part is not None]
        if parts:
            name = read_log_name(one.artifact)
            part = merge_parts(parts)
            modified_ns = found[number].modified_ns
            sources.append(LogInput(one.artifact, part, name, one.rank, one.node, modified_ns))
            if part.left_out:
                what = f"{part.left_out} lines or tracebacks left out: repeated, or too many"
                gaps.append(Gap(one.rank, WHAT, f"{one.artifact}: {what}"))
    late = sum(any(result.is_late for result in results) for results in read.values())
    return LogsRead(join_logs(_order(sources), tables.signatures), gaps, late)


def _order(sources: Sequence[LogInput]) -> list[LogInput]:
    """Put what was rotated away before what came after it."""
    places: dict[str, int] = {}
    for source in sources:
        places.setdefault(source.name.base, len(places))
    return sorted(sources, key=lambda one: (places[one.name.base], -one.name.rotation))


def _look(path: Path) -> FileStatus:
    try:
        return look_at(path)
    except OSError:
        return FileStatus(0, 0)


def _cut(path: Path, size: int) -> Iterator[tuple[int, int | None, int]]:
    """Cut a file into parts that can be read side by side: start, end and size of each."""
    try:
        if size > SEGMENT_BYTES:
            with open_evidence(path) as stream:
                head = stream.read(4096)
            if not is_packed(head) and not find_encoding(head):
                starts = range(0, size - SEGMENT_BYTES // 2, SEGMENT_BYTES)
                for start, end in zip(starts, [*starts[1:], None], strict=True):
                    yield start, end, (end or size) - start
                return
    except OSError:
        size = 0
    yield 0, None, size


def _read_segments(
    segments: Sequence[Segment],
    tables: LogTables,
    progress: Progress,
    executor: Executor | None,
    deadline: Deadline,
) -> list[SegmentRead]:
    size = sum(segment.size for segment in segments)
    workers = min(count_cpus(), len(segments))
    cost = size + _FILE_COST_BYTES * len(segments)
    is_small = workers <= 1 or cost < _POOL_FROM_BYTES or deadline.is_over
    if executor is None and (is_small or not can_fork()):
        parts = [(segment, segment.size) for segment in segments]
        read = functools.partial(read_segment, tables=tables)
        return [one or _LATE for one in map_parts(None, read, parts, progress, deadline)]
    chunks = [(chunk, sum(segment.size for segment in chunk)) for chunk in _make_chunks(segments)]
    if executor is not None:
        # What is compiled cannot be sent: workers elsewhere look for our signatures.
        results = map_parts(executor, read_chunk, chunks, progress, deadline)
    else:
        _forked[:] = [tables]
        try:
            with forked(workers) as pool:
                results = map_parts(pool, read_chunk, chunks, progress, deadline)
        finally:
            _forked.clear()
    return [
        one
        for result, (chunk, _) in zip(results, chunks, strict=True)
        for one in result or [_LATE] * len(chunk)
    ]


# What a worker finds when it is forked.
_forked: list[LogTables] = []


def read_chunk(segments: Sequence[Segment]) -> list[SegmentRead]:
    """Read some parts; this is what a worker does.

    Args:
        segments: The parts.
    """
    if not _forked:
        _forked.append(LogTables())
    return [read_segment(segment, _forked[0]) for segment in segments]


def _make_chunks(segments: Sequence[Segment]) -> list[list[Segment]]:
    chunks: list[list[Segment]] = []
    filled = _CHUNK_BYTES
    for segment in segments:
        if filled >= _CHUNK_BYTES:
            chunks.append([])
            filled = 0
        chunks[-1].append(segment)
        filled += segment.size + _FILE_COST_BYTES
    return chunks
