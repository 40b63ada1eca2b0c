"""Keeps traces as Parquet beside them or in a folder, so that they are parsed once."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.arrow import import_arrow
from whystuck.evidence.decoding import decode_msgpack
from whystuck.evidence.finding import Gap
from whystuck.evidence.traces.events import (
    SPARSE_NAMES,
    UNKNOWN,
    Detail,
    Sparse,
    Trace,
    TraceDevice,
    TraceEvents,
    TraceGroup,
)
from whystuck.guarded.evidence_files import open_evidence, settle
from whystuck.guarded.folders import file_put, folder_at
from whystuck.parse.traces.schema import TEXT
from whystuck.read.content import most_unpacked
from whystuck.read.traces.files import find_fingerprint, name_trace, read_trace_file

# Raised with every change of what is read of a trace: caches of others are read again.
VERSION = 1
SUFFIX = ".whystuck.parquet"
_ARROW = ("a cache of traces needs", "read them without a cache")
_KEY = b"whystuck-trace"
# What a header may take when it is unpacked: names of hostile traces are long.
_MOST_HEADER_BYTES = 256 << 20
# No event of a trace is shorter, so no cache of it has more rows.
_LEAST_EVENT_BYTES = 8
# The columns of an event take a few times what its text does at most.
_MOST_GROWTH = 4
_COLUMNS = frozenset({*vars(TraceEvents()), *SPARSE_NAMES})


@dataclass(frozen=True)
class TraceCache:
    """Where parsed traces are kept: in a folder, or beside each trace when there is none."""

    folder: Path | None = None

    def place(self, path: Path, fingerprint: str) -> Path:
        """Return the file that keeps a trace."""
        if self.folder is None:
            return path.with_name(path.name + SUFFIX)
        # Traces of many folders have one name.
        return self.folder / f"{path.name}.{fingerprint}{SUFFIX}"


class _Header(msgspec.Struct, frozen=True):
    """What is kept beside the columns."""

    version: int
    fingerprint: str
    detail: int
    rank: int
    world_size: int
    host: str
    vendor: str
    base_ns: int
    names: tuple[str, ...]
    texts: tuple[str, ...]
    thread_names: list[tuple[int, int, str]]
    process_names: dict[int, str]
    process_labels: dict[int, str]
    groups: tuple[TraceGroup, ...]
    devices: tuple[TraceDevice, ...]
    gaps: list[tuple[int | None, str, str]]


def read_cached_trace(
    path: Path,
    artifact: str = "",
    *,
    cache: TraceCache,
    detail: Detail = Detail.ALL,
    rank: int = UNKNOWN,
    host: str = "",
) -> Trace:
    """Read a trace from its cache, or from itself, and then keep it.

    A cache of other content, of another version or with fewer arguments, a damaged one and a file
    that is none are written anew. What cannot be written is left.

    Args:
        path: The trace.
        artifact: The name that citations and gaps give to it; that of the file when left out.
        cache: Where it is kept.
        detail: The arguments of events to have; see `read_trace`.
        rank: The rank to take where neither the trace nor its name tells one.
        host: The host to take where they tell none.

    Returns:
        The trace, as `read_trace_file` returns it.

    Raises:
        ParseError: It is no trace, or nothing here can unpack it.
        OSError: It cannot be read.
        UsageError: pyarrow is not there.
    """
    import_arrow(*_ARROW)
    with open_evidence(path) as stream:
        fingerprint = find_fingerprint(stream)
    artifact = artifact or path.name
    place = cache.place(path, fingerprint)
    most_bytes = most_unpacked(path.lstat().st_size)
    trace = _read(place, artifact, fingerprint, detail, most_bytes)
    if trace is None:
        trace = read_trace_file(path, artifact, detail=detail)
        # A text of a hostile trace may be one that cannot be written.
        with suppress(OSError, ValueError):
            _write(place, trace, fingerprint, detail)
    return name_trace(trace, str(path), rank=rank, host=host)


def _read(
    place: Path, artifact: str, fingerprint: str, detail: Detail, most_bytes: int
) -> Trace | None:
    """Return what a cache keeps; None when it is not that of this content and this version."""
    if not place.is_file():
        return None
    _, parquet = import_arrow(*_ARROW)
    try:
        with (
            open_evidence(settle(place.parent) / place.name) as stream,
            parquet.ParquetFile(stream) as file,
        ):
            if not _can_be_of(file, most_bytes):
                return None
            header = _read_header(file.schema_arrow.metadata or {})
            known = Detail(header.detail)
            if (header.version, header.fingerprint, known & detail) != (
                VERSION,
                fingerprint,
                detail,
            ):
                return None
            columns = {name: file.read([name]).column(0) for name in file.schema_arrow.names}
            return _make_trace(header, columns, artifact)
    except Exception:  # noqa: BLE001 - a damaged file may raise anything; the trace itself is there
        return None


def _can_be_of(file: Any, most_bytes: int) -> bool:  # noqa: ANN401 - an optional module
    """Return whether a trace of so many bytes may have given these columns."""
    names = file.schema_arrow.names
    is_known = len(set(names)) == len(names) and _COLUMNS.issuperset(names)
    rows = file.metadata.num_rows
    most_rows = most_bytes // _LEAST_EVENT_BYTES
    return is_known and rows <= most_rows and rows * len(names) <= most_rows * _MOST_GROWTH


def _read_header(metadata: Mapping[bytes, bytes]) -> _Header:
    unpacked = zlib.decompressobj().decompress(metadata[_KEY], _MOST_HEADER_BYTES)
    return decode_msgpack(unpacked, _Header)


def _make_trace(header: _Header, columns: Mapping[str, Any], artifact: str) -> Trace:
    kinds = {name: column.dtype for name, column in vars(TraceEvents()).items()}
    dense = {}
    for name, kind in kinds.items():
        values = columns[name].to_numpy()
        if values.dtype != kind:
            raise ValueError(f"{name} is of another type")
        dense[name] = values
    events = TraceEvents(**dense)
    _check(events.name, len(header.names))
    sparse = {}
    for name, column in columns.items():
        if name in kinds:
            continue
        rows = np.flatnonzero(column.is_valid().to_numpy())
        sparse[name] = Sparse(rows.astype(np.int64), column.drop_null().to_numpy())
        if name.endswith(TEXT):
            _check(sparse[name].value, len(header.texts))
    return Trace(
        artifact=artifact,
        rank=header.rank,
        world_size=header.world_size,
        host=header.host,
        vendor=header.vendor,
        base_ns=header.base_ns,
        names=header.names,
        texts=header.texts,
        events=events,
        sparse=MappingProxyType(sparse),
        thread_names={(pid, tid): name for pid, tid, name in header.thread_names},
        process_names=header.process_names,
        process_labels=header.process_labels,
        groups=header.groups,
        devices=header.devices,
        gaps=tuple(Gap(rank, artifact, reason) for rank, _, reason in header.gaps),
    )


def _check(positions: NDArray[Any], count: int) -> None:
    """Raise when positions lie outside of a list."""
    if len(positions) and not 0 <= positions.min() <= positions.max() < count:
        raise ValueError("a position is out of range")


def _write(place: Path, trace: Trace, fingerprint: str, detail: Detail) -> None:
    """Write a cache; another process finds all of it, or what was there before."""
    pa, parquet = import_arrow(*_ARROW)
    columns = {name: pa.array(column) for name, column in vars(trace.events).items()}
    for name, sparse in trace.sparse.items():
        values = np.zeros(len(trace.events), dtype=sparse.value.dtype)
        is_missing = np.ones(len(trace.events), dtype=np.bool_)
        values[sparse.event], is_missing[sparse.event] = sparse.value, False
        columns[name] = pa.array(values, mask=is_missing)
    header = zlib.compress(msgspec.msgpack.encode(_make_header(trace, fingerprint, detail)), 1)
    table = pa.table(columns, metadata={_KEY: header})
    place.parent.mkdir(parents=True, exist_ok=True)
    # A cache is as private as the trace may be; what others lay beside theirs is not written to.
    with folder_at(settle(place.parent)) as folder, file_put(folder, place.name) as stream:
        parquet.write_table(table, stream, compression="zstd", compression_level=1)


def _make_header(trace: Trace, fingerprint: str, detail: Detail) -> _Header:
    return _Header(
        version=VERSION,
        fingerprint=fingerprint,
        detail=detail.value,
        rank=trace.rank,
        world_size=trace.world_size,
        host=trace.host,
        vendor=trace.vendor,
        base_ns=trace.base_ns,
        names=trace.names,
        texts=trace.texts,
        thread_names=[(pid, tid, name) for (pid, tid), name in trace.thread_names.items()],
        process_names=dict(trace.process_names),
        process_labels=dict(trace.process_labels),
        groups=trace.groups,
        devices=trace.devices,
        gaps=[(gap.rank, gap.what, gap.reason) for gap in trace.gaps],
    )
