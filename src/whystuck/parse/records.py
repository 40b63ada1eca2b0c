"""The JSON artifacts of an evidence folder, as the tables that rules read."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any, TypeVar, cast

import msgspec

from whystuck.evidence.call_records import (
    ExceptionRecord,
    LeavingRecord,
    PeersRecord,
    SkippedRecord,
    ThreadErrorsRecord,
)
from whystuck.evidence.decoding import decode_json
from whystuck.evidence.finding import Gap
from whystuck.evidence.live import (
    Beat,
    Departure,
    ExitRecord,
    FailedManager,
    PeerCount,
    PeerWait,
    ProcessSample,
    PythonException,
)
from whystuck.evidence.records import (
    BeatRecord,
    ExitEntry,
    IncidentRecord,
    JobRecord,
    ProcRecord,
    SourceIndex,
)
from whystuck.parse.errors import ParseError
from whystuck.parse.logs.worker_logs import parse_log
from whystuck.parse.weight import check_json

_RANGES = re.compile(r"[0-9,-]{0,400}")
_NUMBER = re.compile(r"[0-9]{1,9}")
_MAX_BEGUN = 16

T = TypeVar("T")

# Of all looks at one process, the largest record.
_MAX_VALUES = 1_000_000
# Of a longer message, the first and the last letters are kept.
_HALF_MESSAGE = 16_000
# The probe keeps no more.
_MAX_THREAD_ERRORS = 16
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


def take_fields(kind: type[T], record: object, **more: object) -> T:
    """Return a row for the fields of a record, with more, such as whose it is and where it was."""
    names = {one.name for one in fields(cast("Any", kind))}
    told = {name: getattr(record, name) for name in names - more.keys() if hasattr(record, name)}
    return kind(**told, **more)


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
    samples = decode_record(data, ProcRecord).samples
    return tuple(
        take_fields(ProcessSample, one, rank=rank, worker=worker, artifact=artifact)
        for one in samples
    )


def parse_beat(data: bytes, *, rank: int, artifact: str) -> Beat:
    """Read ``beat.json`` of a rank."""
    beat = decode_record(data, BeatRecord)
    groups = tuple((name, tuple(ranks)) for name, ranks in beat.groups.items())
    begun = tuple(
        (int(name), members)
        for name, members in list(beat.begun_groups.items())[-_MAX_BEGUN:]
        if _NUMBER.fullmatch(name) and _RANGES.fullmatch(members)
    )
    return take_fields(Beat, beat, rank=rank, groups=groups, artifact=artifact, begun_groups=begun)


def parse_peers(
    data: bytes, *, rank: int, artifact: str
) -> tuple[tuple[PeerWait, ...], tuple[PeerCount, ...]]:
    """Read ``peers.json`` of a rank: what it waits for, and how much it has posted to whom."""
    record = decode_record(data, PeersRecord)
    waits = tuple(
        take_fields(PeerWait, one, rank=rank, source=record.source, artifact=artifact, row=row)
        for row, one in enumerate(record.waits)
    )
    counts = (take_fields(PeerCount, one, rank=rank, artifact=artifact) for one in record.counts)
    return waits, tuple(counts)


def parse_skipped(data: bytes, *, rank: int, artifact: str) -> tuple[FailedManager, ...]:
    """Read ``skipped.json`` of a rank: collectives that it called and torch never issued."""
    return tuple(
        take_fields(FailedManager, entry, rank=rank, artifact=artifact, row=row)
        for row, entry in enumerate(decode_record(data, SkippedRecord).failures)
        if entry.count > 0
    )


def parse_exception(data: bytes, *, rank: int, artifact: str) -> PythonException:
    """Read ``exception.json`` of a rank.

    torch raises an error of a data-loader worker again in the main process, with the first
    traceback as its message: what is in there is the exception.
    """
    return _make_exception(decode_record(data, ExceptionRecord), rank, artifact)


def parse_thread_errors(data: bytes, *, rank: int, artifact: str) -> tuple[PythonException, ...]:
    """Read ``thread-errors.json`` of a rank."""
    errors = decode_record(data, ThreadErrorsRecord).errors[:_MAX_THREAD_ERRORS]
    return tuple(_make_exception(one, rank, artifact) for one in errors)


def _make_exception(record: ExceptionRecord, rank: int, artifact: str) -> PythonException:
    message = record.message
    if len(message) > 2 * _HALF_MESSAGE:
        message = f"{message[:_HALF_MESSAGE]}\n...\n{message[-_HALF_MESSAGE:]}"
    outer = PythonException(
        rank=rank,
        type=record.type[:_HALF_MESSAGE],
        message=message,
        frames=record.frames,
        time_ns=record.time_ns,
        is_main_thread=record.is_main_thread,
        thread=record.thread,
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
    return take_fields(Departure, decode_record(data, LeavingRecord), rank=rank, artifact=artifact)


def parse_exit(data: bytes, *, rank: int, artifact: str) -> ExitRecord:
    """Read ``exit.json`` of a rank."""
    return take_fields(ExitRecord, decode_record(data, ExitEntry), rank=rank, artifact=artifact)
