"""The JSON artifacts of an evidence folder, as the tables that rules read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

import msgspec
from msgspec.structs import asdict

from whystuck.evidence.decoding import decode_json
from whystuck.evidence.finding import Gap
from whystuck.evidence.live import (
    Beat,
    Connection,
    Departure,
    ExitRecord,
    FailedManager,
    FileWait,
    PeerCount,
    PeerWait,
    ProcessSample,
    PythonException,
    SkippedCalls,
)
from whystuck.evidence.ops.collectives import Frame
from whystuck.evidence.records import (
    BeatRecord,
    ConnectionEntry,
    ExceptionRecord,
    ExitEntry,
    FrameRecord,
    IncidentRecord,
    JobRecord,
    LeavingRecord,
    PeersRecord,
    ProcRecord,
    SkippedCallEntry,
    SkippedRecord,
    SourceIndex,
)
from whystuck.parse.errors import ParseError
from whystuck.parse.logs.worker_logs import parse_log
from whystuck.parse.weight import check_json

T = TypeVar("T")

# Of all looks at one process, the largest record.
_MAX_VALUES = 1_000_000
# Of a longer message, the first and the last letters are kept.
_HALF_MESSAGE = 16_000
_HEADER = "Traceback (most recent call last):"
_ORIGINAL = f"\nOriginal {_HEADER}"


def decode_record(data: bytes, kind: type[T]) -> T:
    """Decode one JSON artifact.

    Args:
        data: The file.
        kind: The structure of that file.

    Returns:
        The structure.

    Raises:
        ParseError: It is not that JSON.
    """
    check_json(data, _MAX_VALUES)
    try:
        return decode_json(data, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError(f"not readable as {kind.__name__} ({str(error)[:120]})") from error


def parse_incident(data: bytes) -> IncidentRecord:
    """Read ``incident.json``."""
    return decode_record(data, IncidentRecord)


def parse_job(data: bytes) -> JobRecord:
    """Read ``job.json``."""
    return decode_record(data, JobRecord)


def parse_gaps(data: bytes) -> list[Gap]:
    """Read ``gaps.json``."""
    return decode_record(data, list[Gap])


def parse_source_index(data: bytes) -> dict[str, str]:
    """Read ``sources/index.json``: path in the job to file name beside the index."""
    return decode_record(data, SourceIndex).files


def parse_processes(
    data: bytes, *, rank: int, worker: bool, artifact: str
) -> tuple[ProcessSample, ...]:
    """Read ``proc.json`` of a rank or of one of its data-loader workers."""
    return tuple(
        ProcessSample(
            rank=rank,
            pid=sample.pid,
            worker=worker,
            taken_ns=sample.taken_ns,
            state=sample.state,
            wchan=sample.wchan,
            cpu_s=sample.cpu_s,
            read_bytes=sample.read_bytes,
            write_bytes=sample.write_bytes,
            num_threads=sample.num_threads,
            connections=tuple(_make_connection(entry) for entry in sample.connections),
            artifact=artifact,
            children_cpu_s=sample.children_cpu_s,
            switches=sample.switches,
            file_waits=tuple(FileWait(**asdict(wait)) for wait in sample.file_waits),
        )
        for sample in decode_record(data, ProcRecord).samples
    )


def _make_connection(entry: ConnectionEntry) -> Connection:
    return Connection(
        entry.local, entry.remote, entry.unsent_bytes, entry.unread_bytes, entry.is_resending
    )


def parse_beat(data: bytes, *, rank: int, artifact: str) -> Beat:
    """Read ``beat.json`` of a rank."""
    beat = decode_record(data, BeatRecord)
    return Beat(
        rank=rank,
        pid=beat.pid,
        age_s=beat.age_s,
        stale=beat.stale,
        answered_without_gil=beat.answered_without_gil,
        optimizer_steps=beat.optimizer_steps,
        enqueued=beat.enqueued,
        completed=beat.completed,
        p2p_sent=beat.p2p_sent,
        p2p_received=beat.p2p_received,
        groups=tuple((name, tuple(ranks)) for name, ranks in beat.groups.items()),
        artifact=artifact,
    )


def parse_peers(
    data: bytes, *, rank: int, artifact: str
) -> tuple[tuple[PeerWait, ...], tuple[PeerCount, ...]]:
    """Read ``peers.json`` of a rank: what it waits for, and how much it has posted to whom."""
    record = decode_record(data, PeersRecord)
    waits = tuple(
        PeerWait(
            rank=rank,
            kind=entry.kind,
            peer=entry.peer,
            group=entry.group,
            tag=entry.tag,
            is_main=entry.is_main,
            sure=entry.sure,
            count=entry.count,
            frames=_make_frames(entry.frames),
            site=_make_frames(entry.site),
            source=record.source,
            artifact=artifact,
            row=row,
        )
        for row, entry in enumerate(record.waits)
    )
    counts = tuple(
        PeerCount(
            rank=rank,
            kind=entry.kind,
            peer=entry.peer,
            group=entry.group,
            count=entry.count,
            site=_make_frames(entry.site),
            artifact=artifact,
        )
        for entry in record.counts
    )
    return waits, counts


def parse_skipped(data: bytes, *, rank: int, artifact: str) -> tuple[FailedManager, ...]:
    """Read ``skipped.json`` of a rank: collectives that it called and torch never issued."""
    return tuple(
        FailedManager(
            rank=rank,
            group=entry.group,
            members=frozenset(entry.members),
            count=entry.count,
            site=_make_frames(entry.site),
            calls=tuple(_make_skipped(calls) for calls in entry.calls),
            artifact=artifact,
            row=row,
        )
        for row, entry in enumerate(decode_record(data, SkippedRecord).failures)
        if entry.count > 0
    )


def _make_skipped(entry: SkippedCallEntry) -> SkippedCalls:
    return SkippedCalls(
        op=entry.op,
        count=entry.count,
        first_ns=entry.first_ns,
        last_ns=entry.last_ns,
        first_step=entry.first_step,
        last_step=entry.last_step,
        site=_make_frames(entry.site),
    )


def _make_frames(frames: Iterable[FrameRecord]) -> tuple[Frame, ...]:
    return tuple(Frame(frame.name, frame.filename, frame.line) for frame in frames)


def parse_exception(data: bytes, *, rank: int, artifact: str) -> PythonException:
    """Read ``exception.json`` of a rank.

    torch raises an error of a data-loader worker again in the main process, with the first
    traceback as its message: what is in there is the exception.
    """
    record = decode_record(data, ExceptionRecord)
    message = record.message
    if len(message) > 2 * _HALF_MESSAGE:
        message = f"{message[:_HALF_MESSAGE]}\n...\n{message[-_HALF_MESSAGE:]}"
    outer = PythonException(
        rank=rank,
        type=record.type[:_HALF_MESSAGE],
        message=message,
        frames=_make_frames(record.frames),
        time_ns=record.time_ns,
        is_main_thread=record.is_main_thread,
        artifact=artifact,
    )
    _, found, original = message.partition(_ORIGINAL)
    inner = parse_log(_HEADER + original, rank=rank, artifact=artifact)[0] if found else []
    if not inner:
        return outer
    frames = inner[0].frames + outer.frames
    return replace(outer, type=inner[0].type, message=inner[0].message, frames=frames)


def parse_leaving(data: bytes, *, rank: int, artifact: str) -> Departure:
    """Read ``leaving.json`` of a rank."""
    record = decode_record(data, LeavingRecord)
    return Departure(
        rank=rank,
        call=record.call,
        status=record.status,
        frames=_make_frames(record.frames),
        is_main_thread=record.is_main_thread,
        time_ns=record.time_ns,
        artifact=artifact,
    )


def parse_exit(data: bytes, *, rank: int, artifact: str) -> ExitRecord:
    """Read ``exit.json`` of a rank."""
    entry = decode_record(data, ExitEntry)
    return ExitRecord(
        rank=rank,
        pid=entry.pid,
        code=entry.code,
        signal=entry.signal,
        ended_ns=entry.ended_ns,
        after_launcher_kill=entry.after_launcher_kill,
        failed_ns=entry.failed_ns,
        source=entry.source,
        artifact=artifact,
    )
