"""Traces that are kept as Parquet."""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.tracing.data import find_traces, make_event

from whystuck.evidence.errors import UsageError
from whystuck.evidence.traces.events import SPARSE_NAMES, Detail, Trace, TraceEvents
from whystuck.read.traces import cache as trace_cache
from whystuck.read.traces.cache import TraceCache, read_cached_trace
from whystuck.read.traces.files import read_trace_file

TEXT = json.dumps(
    {
        "distributedInfo": {"pg_config": [{"pg_name": "0", "ranks": [0, 1]}]},
        "deviceProperties": [{"id": 0, "name": "NVIDIA B200", "numSms": 148}],
        "traceEvents": [
            make_event("cpu_op", "a", 1, 2, **{"Input Dims": [[1]], "Collective name": "b"}),
            make_event("kernel", "</script>\n", 2, 2, device=0, stream=7, **{"blocks per SM": 2.5}),
            make_event("kernel", "late", 3, -2),
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "t"}},
            {"ph": "M", "name": "process_name", "pid": 1, "tid": 1, "args": {"name": "p"}},
        ],
    }
).encode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "traces" / "rank3.json"
    made.parent.mkdir()
    made.write_bytes(TEXT)
    return made


def assert_same(one: Trace, other: Trace) -> None:
    empty = TraceEvents()
    assert replace(one, events=empty, sparse={}) == replace(other, events=empty, sparse={})
    for name, column in vars(one.events).items():
        np.testing.assert_array_equal(column, getattr(other.events, name), strict=True)
    assert set(one.sparse) == set(other.sparse)
    for name, sparse in one.sparse.items():
        np.testing.assert_array_equal(sparse.event, other.sparse[name].event, strict=True)
        np.testing.assert_array_equal(sparse.value, other.sparse[name].value, strict=True)


@pytest.fixture
def no_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace that is parsed after this is an error."""

    def refuse(*_: object, **__: object) -> Trace:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(trace_cache, "read_trace_file", refuse)


@pytest.mark.parametrize("is_beside", [False, True])
def test_a_kept_trace_is_the_same_and_not_parsed_again(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_beside: bool
) -> None:
    cache = TraceCache(None if is_beside else tmp_path / "cache")
    plain = read_trace_file(path)

    first = read_cached_trace(path, cache=cache)
    monkeypatch.setattr(trace_cache, "read_trace_file", None)
    second = read_cached_trace(path, cache=cache)

    assert_same(first, plain)
    assert_same(second, plain)
    assert second.rank == 3
    beside = sorted(one.name for one in path.parent.iterdir())
    assert beside == ["rank3.json", "rank3.json.whystuck.parquet"][: 1 + is_beside]


def test_nothing_is_written_unless_it_is_asked_for(path: Path) -> None:
    read_trace_file(path)

    assert [one.name for one in path.parent.iterdir()] == ["rank3.json"]


@pytest.mark.parametrize("is_beside", [False, True])
def test_other_content_of_the_same_size_and_time_is_read_anew(
    path: Path, tmp_path: Path, is_beside: bool
) -> None:
    import os

    cache = TraceCache(None if is_beside else tmp_path / "cache")
    read_cached_trace(path, cache=cache)
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    path.write_bytes(TEXT.replace(b'"a"', b'"z"'))
    os.utime(path, ns=times)

    assert read_cached_trace(path, cache=cache).names[0] == "z"
    assert read_cached_trace(path, cache=cache).names[0] == "z"


def test_another_version_is_read_anew(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_cached_trace(path, cache=TraceCache())
    kept = path.with_name(path.name + trace_cache.SUFFIX)
    before = kept.read_bytes()
    monkeypatch.setattr(trace_cache, "VERSION", 999)

    assert_same(read_cached_trace(path, cache=TraceCache()), read_trace_file(path))
    assert kept.read_bytes() != before


def test_a_cache_with_fewer_arguments_is_read_anew(path: Path) -> None:
    lean = read_cached_trace(path, cache=TraceCache(), detail=Detail.LEAN)
    whole = read_cached_trace(path, cache=TraceCache())

    assert "input_dims:text" not in lean.sparse
    assert "input_dims:text" in whole.sparse


@pytest.mark.usefixtures("no_parsing")
def test_a_cache_with_more_arguments_is_taken(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(trace_cache, "read_trace_file", read_trace_file)
        read_cached_trace(path, cache=TraceCache())

    assert len(read_cached_trace(path, cache=TraceCache(), detail=Detail.LEAN).events) == 2


def foreign() -> bytes:
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table({"start_ns": [1, 2]}), sink)
    made: bytes = sink.getvalue().to_pybytes()
    return made


@pytest.mark.parametrize("damage", ["empty", "text", "foreign", "cut", "flipped"])
def test_a_damaged_or_foreign_cache_is_written_anew(path: Path, damage: str) -> None:
    read_cached_trace(path, cache=TraceCache())
    kept = path.with_name(path.name + trace_cache.SUFFIX)
    good = kept.read_bytes()
    middle = len(good) // 2
    flipped = bytes(255 - one for one in good[4:middle])
    made = {
        "empty": b"",
        "text": b"hello",
        "foreign": foreign(),
        "cut": good[:middle],
        "flipped": good[:4] + flipped + good[middle:],
    }
    kept.write_bytes(made[damage])

    assert_same(read_cached_trace(path, cache=TraceCache()), read_trace_file(path))
    assert kept.read_bytes() != made[damage]
    assert [one.name for one in path.parent.iterdir() if one.name.startswith(".")] == []


def test_a_folder_that_cannot_be_written_does_no_harm(path: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")

    trace = read_cached_trace(path, cache=TraceCache(blocked / "cache"))

    assert len(trace.events) == 2


def test_without_pyarrow_there_is_a_hint(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(UsageError, match="needs pyarrow") as caught:
        read_cached_trace(path, cache=TraceCache())
    assert "whystuck[parquet]" in caught.value.hint


def test_real_traces_are_kept_whole(tmp_path: Path) -> None:
    source = find_traces() / "tl_b200_rank0of8" / "eager_trace.json.gz"
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(gzip.decompress(source.read_bytes()), 1))

    read_cached_trace(path, cache=TraceCache())

    assert_same(read_cached_trace(path, cache=TraceCache()), read_trace_file(path))


@pytest.mark.parametrize("names", ["odd", "known"])
def test_a_cache_that_holds_more_than_the_trace_is_not_read(
    path: Path, monkeypatch: pytest.MonkeyPatch, names: str
) -> None:
    # GIVEN a small file beside the trace, of which 2 million rows of many columns would come
    read_cached_trace(path, cache=TraceCache())
    kept = path.with_name(path.name + trace_cache.SUFFIX)
    sound = parquet.read_table(kept)
    zeros = pa.array(np.zeros(2_000_000, dtype=np.int64))
    known = {*sound.column_names, *SPARSE_NAMES}
    chosen = [f"odd{number}" for number in range(70)] if names == "odd" else sorted(known)
    table = pa.table(dict.fromkeys(chosen, zeros), metadata=sound.schema.metadata)
    parquet.write_table(table, kept, compression="zstd")
    assert kept.stat().st_size < 4 << 20
    read: list[str] = []
    monkeypatch.setattr(parquet.ParquetFile, "read", lambda *_: read.append("a column"))

    assert_same(read_cached_trace(path, cache=TraceCache()), read_trace_file(path))
    assert not read
