"""Traces of several ranks are merged into one that a viewer can show."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tracing.data import find_traces, make_event

from whystuck.cli import main
from whystuck.parse.traces import merge as merging
from whystuck.parse.traces.merge import (
    PidSpace,
    RankShift,
    merge_rank,
    read_ns,
    read_outline,
    write_ns,
)
from whystuck.parse.traces.raw import Event, RawEvents
from whystuck.read.traces.files import read_trace_file

Json = dict[str, Any]


def collective(number: int, start_us: float, us: float, shift_us: float) -> Json:
    args = {
        "device": 0,
        "stream": 7,
        "correlation": number,
        "External id": number,
        "Collective name": "allreduce",
        "Process Group Name": "0",
        "Group size": 2,
        "In msg nelems": 100,
        "Out msg nelems": 100,
        "dtype": "Float",
        "Seq": number,
    }
    name = "ncclDevKernel_AllReduce_Sum_f32"
    return make_event("kernel", name, start_us + shift_us, us, pid=0, tid=7, **args)


def rank_trace(rank: int, shift_us: float = 0.0, base_ns: int = 10**18) -> Json:
    """A rank with 30 collectives; rank 1 comes 20 us later to each, and all end together."""
    events: list[Json] = [
        {"ph": "M", "name": "process_name", "pid": 4000, "tid": 0, "ts": 0, "args": {"name": "py"}},
        {
            "ph": "M",
            "name": "process_sort_index",
            "pid": 0,
            "tid": 0,
            "ts": 0,
            "args": {"sort_index": 5_000_000},
        },
        {
            "ph": "X",
            "cat": "Trace",
            "name": "PyTorch Profiler (0)",
            "pid": "Spans",
            "tid": "PyTorch Profiler",
            "ts": shift_us,
            "dur": 4000,
        },
    ]
    for number in range(30):
        start = 100.0 * number + 10 * (number % 3)
        launch = make_event(
            "cuda_runtime",
            "cudaLaunchKernel",
            start + shift_us,
            3,
            correlation=number,
            pid=4000,
            tid=4000,
        )
        flow = {"cat": "ac2g", "name": "ac2g", "id": number}
        late = 20.0 * rank
        events += [
            launch,
            collective(number, start + 10 + late, 50 - late, shift_us),
            {"ph": "s", "pid": 4000, "tid": 4000, "ts": start + shift_us, **flow},
            {"ph": "f", "pid": 0, "tid": 7, "ts": start + 10 + late + shift_us, "bp": "e", **flow},
        ]
    return {
        "schemaVersion": 1,
        "distributedInfo": {"rank": rank, "world_size": 2, "backend": "nccl"},
        "baseTimeNanoseconds": base_ns,
        "traceEvents": events,
        "traceName": f"rank{rank}.json",
    }


def write(folder: Path, traces: list[Json]) -> Path:
    folder.mkdir(exist_ok=True)
    for number, trace in enumerate(traces):
        (folder / f"worker{number}.pt.trace.json").write_text(json.dumps(trace, indent=1))
    return folder


def merge(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[Json, str]:
    assert main(["trace", "merge", *words]) == 0
    data = Path(words[-1]).read_bytes()
    text = gzip.decompress(data) if words[-1].endswith(".gz") else data
    return json.loads(text, parse_constant=pytest.fail), capsys.readouterr().err


def check_merged(merged: Json) -> None:
    """What every merged trace keeps to."""
    names: dict[Any, str] = {}
    for event in merged["traceEvents"]:
        assert isinstance(event["pid"], int)
        if event["ph"] == "M" and event["name"] == "process_name":
            assert event["pid"] not in names, "two ranks share a process"
            names[event["pid"]] = event["args"]["name"]
    assert {event["pid"] for event in merged["traceEvents"]} == set(names)
    assert all(name.startswith("rank ") for name in names.values())
    rank = {pid: name.partition(":")[0] for pid, name in names.items()}
    ends: dict[tuple[Any, ...], list[Json]] = {}
    for event in merged["traceEvents"]:
        if event["ph"] in "sf":
            ends.setdefault((event["cat"], event["name"], event["id"]), []).append(event)
    for key, pair in ends.items():
        assert Counter(event["ph"] for event in pair) == {"s": 1, "f": 1}, key
        assert len({rank[event["pid"]] for event in pair}) == 1
    assert all(event.get("ts", 0) >= 0 for event in merged["traceEvents"])


def starts(merged: Json, rank: int) -> list[float]:
    names = {
        event["pid"]: event["args"]["name"]
        for event in merged["traceEvents"]
        if event["ph"] == "M" and event["name"] == "process_name"
    }
    return [
        event["ts"] + event["dur"]
        for event in merged["traceEvents"]
        if event.get("cat") == "kernel" and names[event["pid"]].startswith(f"rank {rank}:")
    ]


def test_clocks_that_are_apart_are_aligned_by_the_ends_of_collectives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "in", [rank_trace(0), rank_trace(1, 800_000.0)])

    merged, told = merge(capsys, str(folder), "-o", str(tmp_path / "out.json"))

    check_merged(merged)
    assert "ranks 0-1 aligned by the ends of collectives" in told
    assert starts(merged, 0) == pytest.approx(starts(merged, 1), abs=1)


def test_the_clocks_of_hosts_are_taken_when_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # One base is 5 ms later, so that the same times are.
    folder = write(tmp_path / "in", [rank_trace(0), rank_trace(1, 0.0, 10**18 + 5_000_000)])

    merged, told = merge(capsys, str(folder), "--clocks", "host", "-o", str(tmp_path / "out.json"))

    check_merged(merged)
    assert "each trace by the clock of its host" in told
    late = [b - a for a, b in zip(starts(merged, 0), starts(merged, 1), strict=True)]
    assert late == pytest.approx([5000] * 30, abs=0.01)
    assert merged["baseTimeNanoseconds"] == 10**18


def test_ranks_are_chosen_and_the_metadata_of_each_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "in", [rank_trace(rank) for rank in (0, 1, 2, 3)])

    merged, told = merge(
        capsys, str(folder), "--ranks", "1,3-4", "-o", str(tmp_path / "out.json.gz")
    )

    check_merged(merged)
    ranks = merged["whystuck"]["merged"]
    assert [one["rank"] for one in ranks] == [1, 3]
    assert ranks[0]["keys"]["distributedInfo"]["backend"] == "nccl"
    assert ranks[0]["keys"]["traceName"] == "rank1.json"
    assert "none was found" in told
    order = [
        event["args"]["sort_index"]
        for event in merged["traceEvents"]
        if event["name"] == "process_sort_index"
    ]
    assert len(set(order)) > 2


def test_nothing_of_an_event_is_lost_but_what_must_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "in", [rank_trace(0), rank_trace(1)])

    merged, _ = merge(capsys, str(folder), "-o", str(tmp_path / "out.json"))

    kept = [event for event in merged["traceEvents"] if event["ph"] == "X"]
    original = [
        event for rank in (0, 1) for event in rank_trace(rank)["traceEvents"] if event["ph"] == "X"
    ]
    assert len(kept) == len(original)
    for one, other in zip(kept, original, strict=True):
        for key in ("name", "cat", "tid", "dur"):
            assert one.get(key) == other.get(key)
        differing = {"correlation", "External id"}
        for key, value in other.get("args", {}).items():
            if key not in differing:
                assert one["args"][key] == value
    numbers = Counter(
        event["args"]["correlation"] for event in kept if event.get("cat") == "kernel"
    )
    assert set(numbers.values()) == {1}


def test_the_merged_trace_can_be_read_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "in", [rank_trace(0), rank_trace(1)])
    out = tmp_path / "out.json.gz"

    merge(capsys, str(folder), "-o", str(out))

    assert sum(name.startswith("nccl") for name in read_trace_file(out).names) == 1
    assert len(read_trace_file(out).events) == 2 * 61


@pytest.mark.parametrize("name", ["hta_sampled_2rank", "injected/gpu_8rank_r5"])
def test_real_traces_are_merged(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = find_traces() / name

    merged, told = merge(capsys, str(folder), "--ranks", "0,1,5", "-o", str(tmp_path / "out.json"))

    check_merged_real(merged)
    assert told.splitlines()[-1].startswith("clocks: ")
    total = 0
    for one in merged["whystuck"]["merged"]:
        whole = json.loads(gzip.decompress((folder / one["artifact"]).read_bytes()))
        total += sum(event["ph"] == "X" for event in whole["traceEvents"])
    assert sum(event["ph"] == "X" for event in merged["traceEvents"]) == total


def check_merged_real(merged: Json) -> None:
    """As `check_merged`, for traces that were sampled: flows may lack an end."""
    events = merged["traceEvents"]
    flows = [event for event in events if event["ph"] in "sf"]
    ends = Counter((event["cat"], event["id"], event["ph"]) for event in flows)
    assert set(ends.values()) <= {1}
    check_merged({**merged, "traceEvents": [one for one in events if one["ph"] not in "sf"]})


def test_what_is_no_json_is_mended_or_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = (
        '{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1.5, "dur": 2, '
        '"args": {"x": NaN, "text": "say \\"correlation\\": 5"}},'
        '{"ph": "X", "name": }, {"ph": "X", "cat": "cpu_op", "name": "b", "pid": 1, "tid": 1, '
        '"ts": 3, "dur": 1}'
    )
    path = tmp_path / "odd.json"
    path.write_text(f'{{"schemaVersion": 1, "traceEvents": [{events}')

    merged, told = merge(capsys, str(path), "-o", str(tmp_path / "out.json"))

    named = [event for event in merged["traceEvents"] if event["ph"] == "X"]
    assert [event["name"] for event in named] == ["a", "b"]
    assert named[0]["args"] == {"x": None, "text": 'say "correlation": 5'}
    assert "1 events cannot be read" in told
    assert "it ends early" in told


def test_mistakes_end_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "in", [rank_trace(0)])
    own = folder / "worker0.pt.trace.json"
    out = str(tmp_path / "out.json")

    assert main(["trace", "merge", str(tmp_path / "none"), "-o", out]) == 2
    assert main(["trace", "merge", str(folder), "--ranks", "7", "-o", out]) == 2
    assert main(["trace", "merge", str(folder), "--ranks", "a", "-o", out]) == 2
    assert main(["trace", "merge", str(folder), "-o", str(own)]) == 2
    assert json.loads(own.read_text())["schemaVersion"] == 1
    assert not Path(out).exists()
    assert capsys.readouterr().err.count("hint:") == 4


def test_no_more_than_some_pieces_are_held() -> None:
    read = 0

    def pieces() -> Iterator[bytes]:
        nonlocal read
        yield b'{"traceEvents": ['
        for number in range(1000):
            read += 1
            event = {"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": number, "dur": 1}
            yield (b"," if number else b"") + json.dumps(event).encode()
        yield b"]}"

    parts = merge_rank(pieces(), RankShift(0, 0, 0), PidSpace())

    next(parts)
    assert read <= 2


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["ph", "name", "args", "pid", "[{", '"']),
            st.recursive(
                st.text('a"\\{[]},:', max_size=5) | st.integers() | st.none(),
                lambda inner: st.lists(inner, max_size=2),
                max_leaves=4,
            ),
            min_size=1,
        ),
        max_size=6,
    ),
    st.integers(1, 40),
    st.sampled_from([None, 1]),
)
def test_any_cut_into_pieces_gives_the_same_events(
    events: list[Json], size: int, indent: int | None
) -> None:
    text = json.dumps({"a": [{"x": 1}], "traceEvents": events, "z": {"b": []}}, indent=indent)
    data = text.encode()

    raw = RawEvents((data[at : at + size] for at in range(0, len(data), size)), Event)
    found = [
        json.loads(json.dumps({k: json.loads(bytes(v)) for k, v in one.items()}))
        for some in raw
        for one in some
    ]

    assert found == events
    assert raw.keys == {"a": [{"x": 1}], "z": {"b": []}}
    assert raw.is_whole


@given(st.integers(-(10**18), 10**18))
def test_times_are_kept_to_the_ns(value: int) -> None:
    assert read_ns(write_ns(value)) == value


def test_times_in_other_forms_are_read() -> None:
    assert read_ns(b"1.5e3") == 1_500_000
    assert read_ns(b'"x"') is None
    assert read_ns(b"4203669603187.439") == 4_203_669_603_187_439


@pytest.mark.parametrize(
    ("times", "first_ns"),
    [
        (
            (b"1700000000000000.123", b"1700000000000000.122", b"1700000000000001"),
            17 * 10**17 + 122,
        ),
        ((b"5", b"-2.5", b"1e3"), -2500),
        ((b"7", b'"x"'), 7000),
        ((b"7", b"null"), 7000),
        ((b"7", b"1e999", b"-1e999"), 7000),
        ((b'"x"',), None),
    ],
)
def test_the_earliest_time_is_told_to_the_ns(
    times: tuple[bytes, ...], first_ns: int | None
) -> None:
    events = b",".join(b'{"ph":"X","name":"a","ts":%b}' % time for time in times)
    named = b'{"ph":"M","name":"process_name","ts":-9999}'
    outline = read_outline([b'{"traceEvents":[%b,%b]}' % (events, named)])

    assert (outline.first_ns, outline.events) == (first_ns, len(times) + 1)


def test_what_stands_behind_a_trace_is_not_its_own() -> None:
    one = b'{"a":1,"traceEvents":[{"ph":"X","ts":1}],"b":2}\n'
    outline = read_outline([one + b'{"c":' + b"[" * 1000 + one * 1000])

    assert outline.keys == {"a": 1, "b": 2}


def test_not_all_of_very_many_processes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "_MOST_NAMED", 3)
    events = b",".join(b'{"ph":"X","pid":%d,"ts":1}' % pid for pid in range(10))
    parts = merge_rank([b'{"traceEvents":[%b]}' % events], RankShift(0, 0, 0), PidSpace())

    assert b",".join(parts).count(b'"process_name"') == 3
