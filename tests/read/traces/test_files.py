"""Trace files: packed, damaged, and whose they are."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import fsspec
import pytest
from tests.tracing.data import find_traces, make_event

from whystuck.evidence.traces.events import Trace
from whystuck.parse.errors import ParseError
from whystuck.parse.traces import reader
from whystuck.parse.traces.reader import read_trace
from whystuck.read.content import open_content, read_head
from whystuck.read.traces import files as trace_files
from whystuck.read.traces.files import (
    TraceName,
    find_fingerprint,
    name_trace,
    read_pieces,
    read_trace_file,
    read_trace_name,
)

COUNT = 4000


def make_text(count: int = COUNT, **keys: Any) -> bytes:
    # Numbers that do not repeat, so that it packs badly and is read in many pieces.
    events = [
        make_event(
            "cpu_op", f"op{n % 7}", n * 7919 % 99991, 1, **{"External id": n * 104729 % 999983}
        )
        for n in range(count)
    ]
    return json.dumps({**keys, "traceEvents": events}).encode()


TEXT = make_text()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "PIECE_BYTES", 1 << 15)
    monkeypatch.setattr(trace_files, "PIECE_BYTES", 1 << 15)
    monkeypatch.setattr(trace_files, "_PACKED_BYTES", 1 << 12)


def pack_zstd(data: bytes) -> bytes:
    if sys.version_info >= (3, 14):
        from compression import zstd

        return zstd.compress(data)
    zstandard = pytest.importorskip("zstandard")
    packed: bytes = zstandard.ZstdCompressor().compress(data)
    return packed


@pytest.fixture(params=["isal", "zlib"])
def inflater(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Unpack gzip with isal, and as where it is not installed."""
    if request.param == "isal":
        pytest.importorskip("isal")
    else:
        missing: ModuleType | None = None
        monkeypatch.setitem(sys.modules, "isal.isal_zlib", missing)
    return str(request.param)


def write(folder: Path, data: bytes, name: str = "rank0.json") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def reasons(trace: Trace) -> list[str]:
    return [gap.reason for gap in trace.gaps]


@pytest.mark.usefixtures("inflater")
@pytest.mark.parametrize("name", ["rank0.json", "rank0.json.gz", "rank0"])
def test_gzip_is_told_by_its_content(tmp_path: Path, name: str) -> None:
    trace = read_trace_file(write(tmp_path, gzip.compress(TEXT), name))

    assert (len(trace.events), trace.gaps) == (COUNT, ())


@pytest.mark.usefixtures("inflater")
def test_members_of_gzip_are_one_file(tmp_path: Path) -> None:
    third = len(TEXT) // 3
    parts = [TEXT[:third], TEXT[third : 2 * third], b"", TEXT[2 * third :]]

    trace = read_trace_file(write(tmp_path, b"".join(map(gzip.compress, parts)) + bytes(999)))

    assert (len(trace.events), trace.gaps) == (COUNT, ())


@pytest.mark.usefixtures("inflater")
@pytest.mark.parametrize("share", [0.3, 0.7, 0.999])
def test_truncated_gzip_keeps_all_events_that_can_be_unpacked(tmp_path: Path, share: float) -> None:
    packed = gzip.compress(TEXT)
    packed = packed[: int(len(packed) * share)]

    trace = read_trace_file(write(tmp_path, packed))

    unpacked = b"".join(pieces_before_damage(packed))
    expected = unpacked.count(b"}}")
    assert expected > COUNT * share * 0.8
    assert len(trace.events) == expected
    (reason,) = reasons(trace)
    assert f"(the packed file ends early)): {expected} events were read" in reason


def pieces_before_damage(packed: bytes) -> list[bytes]:
    import zlib

    return [zlib.decompressobj(31).decompress(packed)]


@pytest.mark.usefixtures("inflater")
def test_damaged_gzip_keeps_the_events_before_the_damage(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(TEXT))
    middle = len(packed) // 2
    packed[middle : middle + 500] = bytes(500)

    trace = read_trace_file(write(tmp_path, bytes(packed)))

    assert COUNT // 4 < len(trace.events) < COUNT
    assert any("cannot be unpacked to its end" in reason for reason in reasons(trace))


@pytest.mark.usefixtures("inflater")
def test_what_follows_a_packed_trace_is_told(tmp_path: Path) -> None:
    trace = read_trace_file(write(tmp_path, gzip.compress(TEXT) + b"garbage"))

    assert len(trace.events) == COUNT
    (reason,) = reasons(trace)
    assert reason.startswith("it is damaged behind its events")


def test_zstd_is_unpacked(tmp_path: Path) -> None:
    trace = read_trace_file(write(tmp_path, pack_zstd(TEXT)))

    assert (len(trace.events), trace.gaps) == (COUNT, ())


def test_truncated_zstd_keeps_events(tmp_path: Path) -> None:
    packed = pack_zstd(TEXT)

    trace = read_trace_file(write(tmp_path, packed[: len(packed) // 2]))

    assert 0 < len(trace.events) < COUNT
    assert any("ends early" in reason for reason in reasons(trace))


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, pack_zstd])
def test_small_packed_file_that_is_cut_off_is_sound_up_to_there(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    # More than a block of zstd, and less than anything is read at once.
    text = make_text()[:400_000]
    packed = pack(text)
    path = write(tmp_path, packed[: len(packed) * 2 // 3])

    head = read_head(path)
    with open_content(path) as stream:
        begun = stream.read(1 << 20)
    pieces = b"".join(take_sound(read_pieces(io.BytesIO(path.read_bytes()))))

    assert head == text[: len(head)]
    assert len(head) > 40_000
    for sound in (begun, pieces):
        assert sound == text[: len(sound)]
        assert len(sound) > len(text) // 3


def take_sound(pieces: Iterator[bytes]) -> Iterator[bytes]:
    with suppress(ParseError):
        yield from pieces


def test_head_of_a_damaged_packed_file_is_sound_up_to_the_damage(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(TEXT[:60_000]))
    packed[4000:] = bytes(len(packed) - 4000)

    head = read_head(write(tmp_path, bytes(packed)))

    assert len(head) > 8_000
    assert TEXT.startswith(head[:8_000])


def test_files_of_fsspec_are_read() -> None:
    files = fsspec.filesystem("memory")
    with files.open("/traces/rank3.json.gz", "wb") as stream:
        stream.write(gzip.compress(TEXT))

    with files.open("/traces/rank3.json.gz", "rb") as stream:
        trace = name_trace(read_trace(read_pieces(stream)), "memory://traces/rank3.json.gz")

    assert (len(trace.events), trace.rank, trace.gaps) == (COUNT, 3, ())


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no regular file"):
        read_trace_file(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_trace_file(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("name", "rank", "host"),
    [
        ("rank0.json", 0, ""),
        ("rank-12.json.gz", 12, ""),
        ("trace_rank_3.json", 3, ""),
        ("traces/rank7_trace.json.zst", 7, ""),
        ("out/rank5/trace.json", 5, ""),
        ("worker0.1699999999999.pt.trace.json", 0, ""),
        ("gpu-node-3_12345.1699999999999999999.pt.trace.json.gz", -1, "gpu-node-3"),
        ("gpu-node-3_12345.pt.trace.json", -1, "gpu-node-3"),
        ("node7_rank12.1699999999999.pt.trace.json", 12, "node7"),
        ("my_host_rank12.1699999999999.pt.trace.json", 12, "my_host"),
        ("global_rank4_local_rank0.json", 4, ""),
        ("local_rank0.json", -1, ""),
        ("4037.json", -1, ""),
        ("trace_20261121.json", -1, ""),
        ("trace.json", -1, ""),
        ("franks2.json", -1, ""),
        ("benchmark_result_2869224_1695835535_trace.json", -1, ""),
        ("<b>\n rank1.json", 1, ""),
    ],
)
def test_names_tell_rank_and_host_but_no_process_and_no_date(
    name: str, rank: int, host: str
) -> None:
    assert read_trace_name(name) == TraceName(rank, host)


def test_the_trace_knows_its_rank_better_than_its_name(tmp_path: Path) -> None:
    told = write(tmp_path, make_text(1, distributedInfo={"rank": 4}), "rank7.json")
    untold = write(tmp_path, make_text(1), "rank7_2.json")
    nameless = write(tmp_path, make_text(1), "trace.json")

    assert read_trace_file(told, rank=9).rank == 4
    assert read_trace_file(untold, rank=9).rank == 7
    assert read_trace_file(nameless, rank=9, host="n1").rank == 9
    assert read_trace_file(nameless, rank=9, host="n1").host == "n1"
    assert reasons(read_trace_file(nameless)) == ["it tells no rank"]


def test_fingerprints_tell_content_apart() -> None:
    one, two = (find_fingerprint(io.BytesIO(b"a" * 5_000_000 + end)) for end in (b"a", b"b"))

    assert one != two
    assert one == find_fingerprint(io.BytesIO(b"a" * 5_000_001))


@pytest.mark.parametrize(
    "name", ["hta_sampled_2rank/rank-1.json.gz", "hta_mi250_minitoy/t.json.gz"]
)
@pytest.mark.usefixtures("inflater")
def test_real_traces_are_read_without_a_loss(name: str) -> None:
    path = find_traces() / name

    trace = read_trace_file(path)

    root = json.loads(gzip.decompress(path.read_bytes()))
    timed = [event for event in root["traceEvents"] if event["ph"] == "X"]
    assert len(trace.events) == len(timed)
    assert [trace.names[one] for one in trace.events.name.tolist()] == [
        one["name"] for one in timed
    ]
    assert {*reasons(trace)} <= {"it tells no rank"}


def test_a_timeline_of_memory_is_no_trace() -> None:
    with pytest.raises(ParseError, match="not one of trace events"):
        read_trace_file(find_traces() / "hta_memory_timeline" / "memory_timeline.raw.gz")
