"""Reads the small records that whystuck itself writes, each by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from whystuck.evidence import records
from whystuck.evidence.node_records import CLAIMS_FILE, HOST_FILE, MEMORY_FILE
from whystuck.parse import node_records
from whystuck.parse import records as parse_records
from whystuck.parse.errors import ParseError
from whystuck.parse.inspection import parse_inspection
from whystuck.walking import Origin

if TYPE_CHECKING:
    from whystuck.reading import Collected


def _take_processes(data: bytes, origin: Origin, found: Collected) -> None:
    found.processes += parse_records.parse_processes(
        data, rank=_rank(origin), worker=origin.worker is not None, artifact=origin.artifact
    )


def _take_beat(data: bytes, origin: Origin, found: Collected) -> None:
    found.beats.append(parse_records.parse_beat(data, rank=_rank(origin), artifact=origin.artifact))


def _take_peers(data: bytes, origin: Origin, found: Collected) -> None:
    waits, counts = parse_records.parse_peers(data, rank=_rank(origin), artifact=origin.artifact)
    found.peer_waits += waits
    found.peer_counts += counts


def _take_skipped(data: bytes, origin: Origin, found: Collected) -> None:
    rank, artifact = _rank(origin), origin.artifact
    found.failed_managers += parse_records.parse_skipped(data, rank=rank, artifact=artifact)


def _take_exception(data: bytes, origin: Origin, found: Collected) -> None:
    found.exceptions.append(
        parse_records.parse_exception(data, rank=_rank(origin), artifact=origin.artifact)
    )


def _take_exit(data: bytes, origin: Origin, found: Collected) -> None:
    found.exits.append(parse_records.parse_exit(data, rank=_rank(origin), artifact=origin.artifact))


def _take_inspection(data: bytes, origin: Origin, found: Collected) -> None:
    inspection, gaps = parse_inspection(data, rank=_rank(origin), artifact=origin.artifact)
    found.inspections.append(inspection)
    found.gaps += gaps


def _take_memory(data: bytes, origin: Origin, found: Collected) -> None:
    rank, artifact = _rank(origin), origin.artifact
    found.memory.append(node_records.parse_memory(data, rank=rank, artifact=artifact))


def _take_host(data: bytes, origin: Origin, found: Collected) -> None:
    found.hosts += node_records.parse_host(data, artifact=origin.artifact)


def _take_claims(data: bytes, origin: Origin, found: Collected) -> None:
    found.claims += node_records.parse_claims(data, artifact=origin.artifact)


def _take_gaps(data: bytes, _origin: Origin, found: Collected) -> None:
    found.gaps += parse_records.parse_gaps(data)


def _rank(origin: Origin) -> int:
    if origin.rank is None:
        raise ParseError("which rank it belongs to cannot be told")
    return origin.rank


RECORD_READERS: dict[str, Callable[[bytes, Origin, Collected], None]] = {
    records.PROC_FILE: _take_processes,
    records.BEAT_FILE: _take_beat,
    records.PEERS_FILE: _take_peers,
    records.SKIPPED_FILE: _take_skipped,
    records.EXCEPTION_FILE: _take_exception,
    records.EXIT_FILE: _take_exit,
    records.INSPECT_FILE: _take_inspection,
    records.GAPS_FILE: _take_gaps,
    MEMORY_FILE: _take_memory,
    HOST_FILE: _take_host,
    CLAIMS_FILE: _take_claims,
    records.INCIDENT_FILE: lambda *_: None,  # read elsewhere, as the next
    records.JOB_FILE: lambda *_: None,
}
