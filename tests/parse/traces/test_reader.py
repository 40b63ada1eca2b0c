"""Traces of all versions and in all states to columns."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.parse.traces.plain import read_plain, rows_of

from whystuck.evidence.traces.events import (
    SPARSE_NAMES,
    Category,
    Detail,
    Trace,
    TraceDevice,
    TraceGroup,
)
from whystuck.parse.errors import ParseError
from whystuck.parse.traces import reader
from whystuck.parse.traces.reader import read_trace
from whystuck.parse.traces.schema import GROUPS


def event(**keys: Any) -> dict[str, Any]:
    plain = {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::add",
        "pid": 1,
        "tid": 2,
        "ts": 10,
        "dur": 5,
    }
    return {**plain, **keys}


def kernel(**args: Any) -> dict[str, Any]:
    return event(cat="kernel", name="gemm", pid=0, tid=7, args={"device": 0, "stream": 7, **args})


def read(value: Any, *, detail: Detail = Detail.ALL) -> Trace:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return read_trace([text], "t.json", detail)


def read_events(*events: dict[str, Any], **keys: Any) -> Trace:
    return read({"distributedInfo": {"rank": 0}, "traceEvents": list(events), **keys})


def reasons(trace: Trace) -> list[str]:
    return [gap.reason for gap in trace.gaps]


@pytest.fixture
def tiny_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "PIECE_BYTES", 300)


# ---------------------------------------------------------------------------- against a plain one

TEXTS = st.one_of(
    st.sampled_from(['{"ph": "X"', '}, {"ph"', "],", 'a"b\\', "\n},\n{", "<b>", "\0", "ü\u2028"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)
CATEGORIES = st.sampled_from(
    [
        "cpu_op",
        "kernel",
        "Kernel",
        "gpu_memcpy",
        "cuda_runtime",
        "cuda_sync",
        "python_function",
        "x",
    ]
)
# A relative time of Kineto, one since 1970, and one that no float tells to the ns.
TIMES = st.one_of(
    st.integers(0, 10**12),
    st.integers(0, 10**15).map(lambda ns: f"{ns // 1000}.{ns % 1000:03}"),
    st.integers(17 * 10**17, 18 * 10**17).map(lambda ns: f"{ns // 1000}.{ns % 1000:03}"),
    st.integers(17 * 10**17, 18 * 10**17).map(lambda ns: f"{ns // 1000}.{ns // 100 % 10}"),
)
NUMBERS = st.integers(0, 2**40)
ARGUMENTS: dict[str, st.SearchStrategy[Any]] = {
    "External id": NUMBERS,
    "correlation": NUMBERS,
    "device": st.integers(0, 7),
    "stream": st.integers(0, 100),
    "Python id": NUMBERS,
    "Input Dims": st.lists(st.lists(st.integers(0, 5), max_size=2), max_size=3),
    "Collective name": st.sampled_from(["allreduce", "_all_gather"]),
    "In msg nelems": NUMBERS,
    "bytes": NUMBERS,
    "blocks per SM": st.floats(0, 100).map(str),
    "other": TEXTS,
}
# Which events have which: a kernel has no Python id.
HELD = {
    "cpu_op": ("External id", "Input Dims", "Collective name", "In msg nelems", "other"),
    "kernel": ("External id", "correlation", "device", "stream", "bytes", "blocks per SM", "other"),
    "Kernel": ("correlation", "device", "stream", "Collective name", "In msg nelems"),
    "gpu_memcpy": ("device", "stream", "bytes", "correlation"),
    "cuda_runtime": ("correlation", "External id"),
    "cuda_sync": ("device", "stream", "correlation"),
    "python_function": ("Python id",),
    "x": ("External id", "other", "Input Dims"),
}


class Verbatim(float):
    """A number that is written as its text says."""

    def __new__(cls, text: str) -> Self:
        made = super().__new__(cls, text)
        made.text = text
        return made

    text: str

    def __repr__(self) -> str:
        return self.text


@st.composite
def events_of(draw: st.DrawFn) -> dict[str, Any]:
    category = draw(CATEGORIES)
    keys = draw(st.sets(st.sampled_from(HELD[category])))
    arguments = {key: draw(ARGUMENTS[key]) for key in sorted(keys)}
    if "In msg nelems" in arguments:
        arguments.setdefault("Collective name", "broadcast")
    if "blocks per SM" in arguments:
        arguments["blocks per SM"] = Verbatim(str(arguments["blocks per SM"]))
    made: dict[str, Any] = {
        "ph": draw(st.sampled_from(["X", "X", "X", "s", "f", "C"])),
        "cat": category,
        "name": draw(TEXTS),
        "pid": draw(st.integers(0, 9)),
        "tid": draw(st.integers(0, 9)),
        "ts": draw(TIMES),
        "dur": draw(st.integers(0, 10**9).map(lambda ns: f"{ns // 1000}.{ns % 1000:03}")),
        "args": arguments,
    }
    if draw(st.integers(0, 5)) == 0:
        made |= {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]"}
        made["args"] = {"Bytes": draw(NUMBERS)}
    made["ts"] = Verbatim(made["ts"]) if isinstance(made["ts"], str) else made["ts"]
    made["dur"] = Verbatim("0" if made["ph"] == "i" else made["dur"])
    order = draw(st.permutations(list(made)))
    return {key: made[key] for key in order}


@st.composite
def files(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    root: dict[str, Any] = {"schemaVersion": 1, "distributedInfo": {"rank": 0}}
    root = {**root, "traceEvents": draw(st.lists(events_of(), max_size=12)), "traceName": "x"}
    order = draw(st.permutations(list(root)))
    layout = draw(st.sampled_from([(None, None), (None, (",", ":")), (4, None), (0, None)]))
    text = dumps({key: root[key] for key in order}, *layout)
    data = text.encode()
    cuts = sorted(draw(st.sets(st.integers(0, len(data)), max_size=6)))
    bounds = [0, *cuts, len(data)]
    return text, [data[a:b] for a, b in itertools.pairwise(bounds)]


def dumps(value: Any, indent: int | None, separators: tuple[str, str] | None) -> str:
    # The C encoder writes subclasses of float as plain floats; the Python one asks repr.
    made = json.dumps(mark(value), indent=indent, separators=separators, ensure_ascii=False)
    return made.replace('"<<', "").replace('>>"', "")


def mark(value: Any) -> Any:
    if isinstance(value, Verbatim):
        return f"<<{value.text}>>"
    if isinstance(value, dict):
        return {key: mark(one) for key, one in value.items()}
    return [mark(one) for one in value] if isinstance(value, list) else value


@given(files(), st.integers(1, 2000))
def test_random_traces_read_as_a_plain_reader_does(
    file: tuple[str, list[bytes]], piece: int
) -> None:
    text, pieces = file

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "PIECE_BYTES", piece)
        trace = read_trace(pieces)

    assert rows_of(trace) == read_plain(text)
    assert trace.gaps == ()


@given(files(), st.data())
def test_a_cut_file_keeps_the_events_before_the_cut(
    file: tuple[str, list[bytes]], data: st.DataObject
) -> None:
    text, pieces = file
    whole = b"".join(pieces)
    begin = min(whole.index(b'"traceEvents"') + 20, len(whole))
    cut = data.draw(st.integers(begin, len(whole)))

    trace = read_trace([whole[:cut]])

    rows, expected = rows_of(trace), read_plain(text)
    assert rows == expected[: len(rows)]
    whole_events = sum(1 for end in ends_of(whole) if end <= cut)
    phases = [one["ph"] in "Xi" for one in json.loads(text)["traceEvents"]]
    assert len(rows) == sum(phases[:whole_events])


def ends_of(whole: bytes) -> Iterator[int]:
    """Where events end in a file, told by a decoder that goes from one to the next."""
    text = whole.decode("latin-1")
    decoder = json.JSONDecoder(strict=False)
    at = text.index("[", text.index('"traceEvents"')) + 1
    while True:
        while text[at] in " \n,":
            at += 1
        if text[at] == "]":
            return
        _, at = decoder.raw_decode(text, at)
        yield at


# ------------------------------------------------------------------------------------------ schemas


@pytest.mark.parametrize(
    ("ts", "ns"),
    [
        ("1365627862757.064", 1365627862757064),
        ("8796093022207.999", 8796093022207999),
        ("1682725898242567.8", 1682725898242567800),
        ("1682725898242567.123", 1682725898242567123),
        ("1682725898242567.999", 1682725898242567999),
        ("1682725898242567.0006", 1682725898242567001),
        ("1682725898242567", 1682725898242567000),
        ("1.682725898242567123e15", 1682725898242567123),
        ("0", 0),
        ("0.001", 1),
    ],
)
def test_times_are_exact_to_the_nanosecond(ts: str, ns: int) -> None:
    text = f'{{"traceEvents": [{{"ph": "X", "name": "a", "ts": {ts}, "dur": 1.001}}]}}'

    trace = read(text.encode())

    assert trace.base_ns + int(trace.events.start_ns[0]) == ns
    assert trace.events.duration_ns.tolist() == [1001]


def test_base_time_is_the_clock_of_the_host() -> None:
    base = 1735632360000000000

    trace = read_events(event(ts=5.25), baseTimeNanoseconds=base)

    assert (trace.base_ns, trace.events.start_ns.tolist()) == (base, [5250])


@pytest.mark.parametrize(
    "keys", [{}, {"baseTimeNanoseconds": 0}, {"baseTimeNanoseconds": 17 * 10**17}]
)
def test_absolute_times_need_no_base(keys: dict[str, int]) -> None:
    trace = read_events(event(ts=1_700_000_000_000_007), event(ts=1_700_000_000_000_000), **keys)

    assert trace.base_ns == 1_700_000_000_000_000_000
    assert trace.events.start_ns.tolist() == [7000, 0]


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("Kernel", Category.KERNEL),
        ("Memcpy", Category.MEMCPY),
        ("Memset", Category.MEMSET),
        ("Runtime", Category.RUNTIME),
        ("Operator", Category.CPU_OP),
        ("hip_runtime", Category.RUNTIME),
        ("mtia_ccp_events", Category.KERNEL),
        ("xpu_runtime", Category.RUNTIME),
        ("made_up", Category.OTHER),
    ],
)
def test_old_and_new_categories_are_known(name: str, category: Category) -> None:
    assert read_events(event(cat=name)).events.category.tolist() == [category]


def test_old_spellings_of_ids_are_known() -> None:
    old = event(
        cat="Kernel", args={"external id": 4, "Correlation ID": 9, "device": 0, "stream": 1}
    )

    events = read_events(old).events

    assert (events.correlation.tolist(), events.external.tolist()) == ([9], [4])


def test_a_stream_argument_makes_no_device_work() -> None:
    triton = event(name="triton_poi_fused_0", args={"stream": 0, "device": 0, "grid": "1,1,1"})

    events = read_events(triton).events

    assert (events.device.tolist(), events.stream.tolist()) == ([-1], [-1])


@pytest.mark.parametrize(
    ("stream", "number"),
    [(7, 7), ("stream 7", 7), ("0x0", 0), ("12", 12), (4294967295, -1), (None, 7), ("", -1)],
)
def test_streams_are_numbers_and_texts(stream: object, number: int) -> None:
    assert read_events(kernel(stream=stream)).events.stream.tolist() == [number]


def test_addresses_of_streams_get_numbers_of_their_own() -> None:
    events = read_events(
        *(kernel(stream=one) for one in ("0x55d0aa000000", "0x55d0aa000001", "0x55d0aa000000"))
    ).events

    first, second, third = events.stream.tolist()
    assert first == third != second
    assert min(first, second) > 1 << 20


def test_device_work_without_device_and_stream_takes_process_and_thread() -> None:
    events = read_events(event(cat="kernel", pid=3, tid=20)).events

    assert (events.device.tolist(), events.stream.tolist()) == ([3], [20])


def test_texts_as_ids_get_numbers_below_minus_one() -> None:
    events = read_events(event(pid="Spans", tid="PyTorch Profiler"), event(pid="23", tid=-1)).events

    assert len({*events.pid.tolist(), *events.tid.tolist()}) == 4
    assert events.pid[0] < -1
    assert events.tid[0] < -1
    assert (int(events.pid[1]), int(events.tid[1])) == (23, -1)


def test_begins_and_ends_are_joined_innermost_first() -> None:
    phases = [("B", "outer", 1), ("B", "inner", 2.5), ("E", "", 4), ("E", "outer", 9)]

    trace = read_events(*({**event(name=n, ph=p, ts=t), "dur": None} for p, n, t in phases))

    rows = sorted(
        (row["name"], row["start_ns"] - trace.base_ns, row["duration_ns"]) for row in rows_of(trace)
    )
    assert rows == [("inner", 1500, 1500), ("outer", 0, 8000)]
    assert reasons(trace) == []


def test_large_times_are_exact_beside_an_event_without_one() -> None:
    missing = event()
    del missing["ts"]

    trace = read_events(event(ts=1_700_000_000_000_000.2), event(ts=2), missing)

    # A float holds it as .25 only.
    starts = (trace.events.start_ns + trace.base_ns).tolist()
    assert sorted(starts) == [2000, 1_700_000_000_000_000_200]
    assert reasons(trace) == ["1 events have no time or no duration and were left out"]


def test_pairs_without_a_sound_time_are_left_out_and_told() -> None:
    trace = read_events(event(ph="B", ts=1e200), event(ph="E", ts=5))

    assert len(trace.events) == 0
    assert reasons(trace) == ["1 events have no time or no duration and were left out"]


def test_begins_without_an_end_are_told() -> None:
    trace = read_events(event(ph="B"), event(ph="E", tid=9))

    assert len(trace.events) == 0
    assert reasons(trace) == [
        "1 events end without a begin and were left out",
        "1 events begin without an end and were left out",
    ]


@pytest.mark.parametrize(
    "keys", [{"dur": None}, {"ts": None}, {"dur": -3}, {"ts": 1e300}, {"ts": "x"}]
)
def test_events_without_a_sound_time_are_left_out_and_told(keys: dict[str, Any]) -> None:
    trace = read_events(event(), event(**keys), event(name="last"))

    assert [trace.names[name] for name in trace.events.name.tolist()] == ["aten::add", "last"]
    assert len(trace.gaps) == 1
    assert "1 events" in reasons(trace)[0]


def test_names_of_processes_and_threads_are_kept() -> None:
    trace = read_events(
        event(),
        {
            "ph": "M",
            "name": "process_name",
            "pid": 1,
            "tid": 0,
            "ts": 0,
            "args": {"name": "python"},
        },
        {"ph": "M", "name": "process_labels", "pid": 1, "tid": 0, "args": {"labels": "CPU"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "</script>\n"}},
        {"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": 2, "args": {"sort_index": 5}},
    )

    assert trace.process_names == {1: "python"}
    assert trace.process_labels == {1: "CPU"}
    assert trace.thread_names == {(1, 2): "</script>\n"}


def test_allocations_are_instants_of_memory() -> None:
    args = {"Bytes": -512, "Total Allocated": 4096, "Device Type": 1, "Device Id": 0}
    instant = {
        "ph": "i",
        "cat": "cpu_instant_event",
        "name": "[memory]",
        "ts": 3,
        "pid": 1,
        "tid": 1,
    }

    trace = read_events(event(), {**instant, "args": args})

    assert trace.events.category.tolist() == [Category.CPU_OP, Category.MEMORY]
    assert trace.get("memory_bytes").value.tolist() == [-512]
    assert trace.get("memory_bytes").event.tolist() == [1]


def test_counters_keep_all_arguments() -> None:
    args = {"smsp__inst_executed.sum": 12.5, "device": 0}

    trace = read_events(event(), event(cat="cuda_profiler_range", name="gemm", args=args))

    (text,) = (trace.texts[one] for one in trace.get("counters:text").value.tolist())
    assert json.loads(text) == args
    assert trace.get("counters:text").event.tolist() == [1]


def test_detail_leaves_arguments_out() -> None:
    op = event(args={"Input Dims": [[1]], "Sequence number": 3, "Collective name": "broadcast"})

    assert set(read({"traceEvents": [op]}, detail=Detail.LEAN).sparse) == {"collective:text"}
    assert read({"traceEvents": [op]}, detail=Detail.NONE).sparse == {}
    assert {"input_dims:text", "autograd_sequence"} <= set(read({"traceEvents": [op]}).sparse)


def test_every_argument_belongs_to_a_detail() -> None:
    grouped = [column for columns in GROUPS.values() for column in columns]

    assert sorted([*grouped, "counters:text"]) == sorted(SPARSE_NAMES)


def test_header_facts_are_read_before_and_behind_the_events() -> None:
    groups = [
        {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "ranks": [0, 1]},
        {"pg_name": "1", "ranks": "[1, 3]"},
        {"pg_name": "2", "ranks": []},
    ]
    card = {
        "id": 1,
        "name": "NVIDIA B200",
        "numSms": 148,
        "warpSize": 32,
        "maxThreadsPerMultiprocessor": 2048,
        "totalGlobalMem": 191503138816,
    }
    root = {
        "deviceProperties": [card],
        "traceEvents": [event()],
        "distributedInfo": {"rank": 3, "world_size": 8, "pg_config": groups},
        "hostname": "n7",
    }

    trace = read(root)

    assert (trace.rank, trace.world_size, trace.host, trace.vendor) == (3, 8, "n7", "cuda")
    assert trace.groups == (
        TraceGroup("0", "default_pg", "cuda:nccl", (0, 1)),
        TraceGroup("1", "", "", (1, 3)),
        TraceGroup("2"),
    )
    assert trace.devices == (TraceDevice(1, "NVIDIA B200", 148, 32, 2048, 191503138816),)
    assert trace.gaps == ()


@pytest.mark.parametrize(
    ("keys", "events", "vendor"),
    [
        ({"deviceProperties": [{"id": 0, "name": "AMD Instinct MI300X"}]}, [event()], "rocm"),
        ({}, [event(cat="cuda_runtime", name="hipLaunchKernel")], "rocm"),
        ({}, [event(cat="cuda_runtime", name="cudaLaunchKernel")], "cuda"),
        ({}, [event(cat="Kernel")], "cuda"),
        ({}, [event(cat="mtia_runtime")], "mtia"),
        ({}, [event(cat="xpu_runtime")], "xpu"),
        ({}, [event(cat="privateuse1_runtime")], "npu"),
        ({}, [event()], "cpu"),
        ({}, [], "cpu"),
    ],
)
def test_vendor_follows_from_devices_and_categories(
    keys: dict[str, Any], events: list[dict[str, Any]], vendor: str
) -> None:
    assert read_events(*events, **keys).vendor == vendor


# ------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is empty"),
        (b"hello", "it is no JSON"),
        (b'{"a": 1}', "it has no traceEvents"),
        (b'{"a": 1', "it is no whole JSON, and has no traceEvents"),
        (b'{"a": {"traceEvents": []}}', "it has no traceEvents"),
        (rb'{"a": "\"traceEvents\": ["}', "it has no traceEvents"),
        (b"[1, 2, 3]", "it is a list, but not one of trace events"),
        (b'[["a", 1], [{"x": 2}]]', "it is a list, but not one of trace events"),
        (b"[]", "it is a list, but not one of trace events"),
        (b"\x80\x04\x95", "it is no JSON"),
    ],
)
def test_what_is_no_trace_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(ParseError, match=f"^{reason}$".replace("[", r"\[")):
        read(data)


@pytest.mark.parametrize("count", [0, 1])
def test_few_events_are_a_trace(count: int) -> None:
    trace = read_events(*[event()] * count)

    assert (len(trace.events), trace.gaps, len(trace.events.pid)) == (count, (), count)


def test_a_list_at_the_top_is_a_trace() -> None:
    trace = read([event(), event(name="b")])

    assert len(trace.events) == 2
    assert reasons(trace) == ["it tells no rank"]


def test_a_list_without_its_end_keeps_its_events() -> None:
    trace = read(json.dumps([event(), event()]).encode()[:-1] + b",")

    assert len(trace.events) == 2
    assert "it ends early: 2 events were read, and the last 0 bytes are of none" in reasons(trace)


def test_traces_behind_each_other_are_one_when_they_are_of_one_rank() -> None:
    one, two = (
        json.dumps({"distributedInfo": {"rank": 0}, "traceEvents": [event(name=n)]}) for n in "ab"
    )
    other = json.dumps({"distributedInfo": {"rank": 1}, "traceEvents": [event()]})

    joined = read((one + "\n" + two).encode())
    parted = read((one + other).encode())

    assert (joined.names, joined.gaps) == (("a", "b"), ())
    assert parted.names == ("a",)
    assert reasons(parted) == ["another trace follows in the same file and was not read"]


def test_of_very_many_traces_behind_each_other_the_first_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader, "_MOST_TRACES", 3)
    one = json.dumps({"distributedInfo": {"rank": 0}, "traceEvents": [event()]}).encode()

    assert (len(read(one * 3).events), read(one * 3).gaps) == (3, ())
    trace = read(one * 4)
    assert len(trace.events) == 3
    assert reasons(trace) == ["more than 3 traces follow each other in it: the first are read"]


@pytest.mark.usefixtures("tiny_pieces")
@pytest.mark.parametrize("blanks", [0, 1, 63, 64, 65, 1000, 5000])
def test_blanks_between_events_are_passed_over(blanks: int) -> None:
    one = json.dumps(event()).encode()
    text = (b"," + b" \n" * blanks).join([one] * 20)
    trace = read(b'{"distributedInfo":{"rank":0},"traceEvents":[%b%b]}' % (b" " * blanks, text))

    assert (len(trace.events), trace.gaps) == (20, ())


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "nan", "-inf"])
def test_constants_that_are_no_json_count_as_unknown(word: str) -> None:
    text = json.dumps(
        {"traceEvents": [kernel(**{"blocks per SM": 2.5}), kernel(**{"blocks per SM": 777})]}
    )

    trace = read(text.replace("777", word).encode())

    assert len(trace.events) == 2
    assert trace.get("blocks_per_sm").event.tolist() == [0]
    assert trace.get("blocks_per_sm").value.tolist() == [2.5]


@pytest.mark.parametrize(
    ("bad", "name"),
    [
        (b"a\xffb", "a\ufffdb"),
        (b"a\nb\x00\x1f", "a\nb\x00\x1f"),
        (b"a\\ud800b", "a?b"),
        (b"\\\\", "\\"),
        (b'\\"}, {\\"ph\\": \\"X\\"', '"}, {"ph": "X"'),
        (b"NaN, x: NaN]", "NaN, x: NaN]"),
        (b"</script><!--", "</script><!--"),
        (b"x" * 1_000_000, "x" * 1_000_000),
    ],
)
@pytest.mark.usefixtures("tiny_pieces")
def test_hostile_names_are_read_and_spoil_no_other_event(bad: bytes, name: str) -> None:
    text = json.dumps({"traceEvents": [event(), event(name="BAD"), *[event(name="z")] * 9]})

    trace = read(text.encode().replace(b"BAD", bad))

    names = [trace.names[one] for one in trace.events.name.tolist()]
    assert names == ["aten::add", name, *["z"] * 9]
    assert reasons(trace) == ["it tells no rank"]


@pytest.mark.parametrize(
    "bad",
    [
        b'{"ph": "X", "name": 5, "ts": 1, "dur": 1, "pid": null, "tid": [1], "args": 7}',
        b'{"ph": "X", "name": "a", "ts": "1.5", "dur": true, "pid": 1.5, "tid": {}}',
        b'{"ph": "X", "name": null, "ts": 1, "dur": 2, "args": {"correlation": [1], "stream": {}}}',
        b'{"ph": "X", "ts": 1, "dur": 2, "args": {"External id": 123456789012345678901234567890}}',
        b'{"ph": "X", "ph": "X", "ts": 5, "ts": 1, "dur": 2}',
        b'{"ph": "X", "cat": "kernel", "ts": 1, "dur": 2, "pid": 99999999999, "tid": -7}',
    ],
)
def test_odd_types_spoil_no_event(bad: bytes) -> None:
    text = json.dumps({"traceEvents": [event(name="x"), 777, event(name="z")]}).encode()

    trace = read(text.replace(b"777", bad))

    assert len(trace.events) == 3
    assert int(trace.events.start_ns[1]) + trace.base_ns in (1000, 1500)
    assert {"x", "z"} <= set(trace.names)


@pytest.mark.parametrize("bad", [b"777", b'"x"', b"null", b"[1]", b'{"ph": "X", "ts": 1 "dur": 2}'])
def test_what_is_no_event_is_left_out(bad: bytes) -> None:
    text = json.dumps({"traceEvents": [event(name="x"), 777, event(name="z")]}).encode()

    assert read(text.replace(b"777", bad)).names == ("x", "z")


def test_deep_nesting_is_left_out_and_told() -> None:
    deep = b'{"ph": "X", "ts": 1, "dur": 1, "args": {"x": %b%b}}' % (b"[" * 99999, b"]" * 99999)
    text = json.dumps({"traceEvents": [event(name="x"), 777]}).encode()

    trace = read(text.replace(b"777", deep))

    assert trace.names == ("x",)
    assert "1 events are no JSON and were left out" in reasons(trace)


@pytest.mark.usefixtures("tiny_pieces")
def test_an_event_larger_than_a_piece_is_read() -> None:
    trace = read_events(event(), event(args={"note": ["}, {", "y" * 5000]}), event(name="end"))

    assert len(trace.events) == 3


def test_keys_cut_off_behind_the_events_are_told() -> None:
    text = json.dumps({"traceEvents": [event()], "traceName": "a" * 50}).encode()

    trace = read(text[:-20])

    assert len(trace.events) == 1
    assert any(reason.startswith("it ends early: 1 events were read") for reason in reasons(trace))


def test_damage_of_the_source_ends_the_trace_there() -> None:
    text = json.dumps({"traceEvents": [event(), event()]}).encode()

    def pieces() -> Iterator[bytes]:
        yield text[:-30]
        raise ParseError("the packed file ends early")

    trace = read_trace(pieces())

    assert len(trace.events) == 1
    assert any("(the packed file ends early): 1 events were read" in one for one in reasons(trace))
