"""What the time of a rank was spent on: made-up traces with known answers, and real ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.tracing.data import find_traces, make_event, make_trace, read_real

from whystuck.evidence.traces.events import Trace
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.critical.graph import build_graph
from whystuck.tracing.critical.tables import PATH, SUMMARY
from whystuck.tracing.critical.walk import find_longest
from whystuck.tracing.view import TraceView

REAL = (
    "hta_sampled_2rank/rank-0.json.gz",
    "hta_sampled_2rank/rank-1.json.gz",
    "hta_cuda_sync_alexnet/t.json.gz",
    "hta_mi250_minitoy/t.json.gz",
    "tl_b200_rank0of8/eager_trace.json.gz",
    "injected/gpu_8rank_r5/rank5.json.gz",
)


def launch(start: float, us: float, link: int, name: str = "cudaLaunchKernel") -> dict[str, Any]:
    return make_event("cuda_runtime", name, start, us, correlation=link)


def kernel(
    name: str, start: float, us: float, link: int, *, stream: int = 7, kind: str = "kernel"
) -> dict[str, Any]:
    return make_event(kind, name, start, us, device=0, stream=stream, correlation=link)


def find_path(trace: Trace, **keys: Any) -> list[tuple[float, float, str, str]]:
    """The path in us."""
    options = TraceOptions(**keys)
    table = PATH.measure(TraceView(trace, options), options)
    assert tuple(table.columns) == PATH.columns
    return [(start / 1000, end / 1000, *rest) for _, start, end, *rest, _ in table.rows()]


def check_covers(trace: Trace, *, all_steps: bool = False) -> None:
    """Parts follow each other from the first node to the last, and a replay gives those times."""
    options = TraceOptions(all_steps=all_steps)
    view = TraceView(trace, options)
    graph = build_graph(view)
    table = PATH.measure(view, options)
    summary = SUMMARY.measure(view, options)
    length, _ = find_longest(len(graph), graph.src, graph.dst, graph.weight)

    assert (length == graph.time - graph.time[0]).all()
    assert (graph.weight >= 0).all()
    assert (table["end_ns"] > table["start_ns"]).all()
    assert (table["end_ns"][:-1] == table["start_ns"][1:]).all()
    assert int(summary["sum_ns"].sum()) == graph.wall_ns
    if graph.wall_ns:
        assert table["start_ns"][0] == graph.time[0]
        assert table["end_ns"][-1] == graph.time[-1]
        assert summary["share"].sum() == pytest.approx(1)


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("all_steps", [False, True])
def test_every_ns_of_a_real_trace_is_on_the_path(name: str, *, all_steps: bool) -> None:
    check_covers(read_real(name), all_steps=all_steps)


def test_the_host_waits_for_the_kernel_that_it_launched() -> None:
    trace = make_trace(
        [
            make_event("cpu_op", "aten::mm", 0, 20),
            launch(5, 10, 1),
            kernel("gemm", 25, 70, 1),
            launch(30, 70, 2, "cudaStreamSynchronize"),
            make_event("cpu_op", "aten::add", 100, 10),
        ]
    )

    assert find_path(trace) == [
        (0, 5, "host", "aten::mm"),
        (5, 25, "launch", "cudaLaunchKernel"),
        (25, 95, "compute", "gemm"),
        (95, 100, "sync", "cudaStreamSynchronize"),
        (100, 110, "host", "aten::add"),
    ]


def test_a_sync_that_has_nothing_to_wait_for_is_time_of_the_call() -> None:
    trace = make_trace(
        [
            launch(0, 5, 1),
            kernel("gemm", 6, 4, 1),
            make_event("cpu_op", "aten::mm", 5, 10),
            launch(20, 10, 2, "cudaDeviceSynchronize"),
        ]
    )

    assert find_path(trace)[-1] == (20, 30, "sync", "cudaDeviceSynchronize")
    assert not [part for part in find_path(trace) if part[2] == "compute"]


def _list_chain(starts: list[float], us: list[float], streams: list[int]) -> list[dict[str, Any]]:
    """Kernels that were all launched at once, long before they ran."""
    events = [launch(number, 1, number) for number in range(len(starts))]
    for link, (start, length, stream) in enumerate(zip(starts, us, streams, strict=True)):
        events.append(kernel(f"k{link}", start, length, link, stream=stream))
    return events


@pytest.mark.parametrize("early", [0.001, 1, 3])
def test_a_kernel_that_begins_a_little_early_still_waited_for_the_one_before(early: float) -> None:
    starts = [10, 110 - early, 210 - early]
    path = find_path(make_trace(_list_chain(starts, [100, 100 + early, 100], [7, 7, 7])))

    assert [part[2:] for part in path] == [
        ("launch", "cudaLaunchKernel"),
        *(("compute", f"k{number}") for number in range(3)),
    ]
    assert path[1][1] == pytest.approx(starts[1])


def test_work_side_by_side_in_a_stream_waited_for_what_had_ended() -> None:
    """As branches of a graph do."""
    path = find_path(make_trace(_list_chain([10, 111, 112], [100, 30, 100], [7, 7, 7])))

    assert path[1:] == [
        (10, 110, "compute", "k0"),
        (110, 112, "launch", "between two kernels"),
        (112, 212, "compute", "k2"),
    ]


def test_ends_that_were_rounded_up_still_let_others_begin() -> None:
    """The host and another stream go on 1 ns before what they waited for seems to end."""
    events = _list_chain([10, 109.999], [100, 50], [7, 9])
    events.append(launch(30, 129.998, 9, "cudaDeviceSynchronize"))
    events.append(make_event("cpu_op", "aten::add", 170, 10))

    assert [part[2:] for part in find_path(make_trace(events))][1:3] == [
        ("compute", "k0"),
        ("compute", "k1"),
    ]


def test_times_in_whole_us_are_a_us_off() -> None:
    path = find_path(make_trace(_list_chain([10, 109], [100, 50], [7, 9])))

    assert [part[2:] for part in path[1:]] == [("compute", "k0"), ("compute", "k1")]


@pytest.mark.parametrize("has_sync_events", [True, False])
def test_a_stream_waits_for_the_other_one(*, has_sync_events: bool) -> None:
    events = [
        launch(0, 2, 1),
        kernel("gemm", 10, 90, 1),
        launch(2, 1, 2, "cudaEventRecord"),
        launch(3, 1, 3, "cudaStreamWaitEvent"),
        launch(4, 2, 4),
        kernel("ncclDevKernel_AllReduce", 102, 48, 4, stream=9),
        launch(6, 2, 5),
        kernel("relu", 100, 20, 5),
    ]
    waits = {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 2}
    if has_sync_events:
        event = kernel("Stream Wait Event", 4, 1, 3, stream=9, kind="cuda_sync")
        event["args"] |= waits
        events.append(event)

    path = find_path(make_trace(events))

    assert path == [
        (0, 10, "launch", "cudaLaunchKernel"),
        (10, 100, "compute", "gemm"),
        (100, 102, "launch", "between two kernels"),
        (102, 150, "comm", "ncclDevKernel_AllReduce"),
    ]


def test_a_late_wait_needs_the_events_of_syncs() -> None:
    """Long after the other stream ended, only an event tells that it was waited for."""
    events = [
        launch(0, 2, 1),
        kernel("gemm", 10, 90, 1),
        launch(2, 1, 2, "cudaEventRecord"),
        launch(3, 1, 3, "cudaStreamWaitEvent"),
        launch(4, 2, 4),
        kernel("copy", 150, 50, 4, stream=9),
    ]
    wait = kernel("Stream Wait Event", 4, 1, 3, stream=9, kind="cuda_sync")
    wait["args"] |= {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 2}

    assert [part[2] for part in find_path(make_trace([*events, wait]))] == [
        "launch",
        "compute",
        "unknown",
        "compute",
    ]
    assert [part[2] for part in find_path(make_trace(events))][-3:] == ["host", "launch", "compute"]


def test_a_busy_stream_hides_the_host() -> None:
    events = []
    for one in range(10):
        events += [launch(5 * one, 3, one), kernel(f"k{one}", 10 + 50 * one, 49, one)]

    path = find_path(make_trace(events))

    assert path[0] == (0, 10, "launch", "cudaLaunchKernel")
    assert [part[3] for part in path if part[2] == "compute"] == [f"k{one}" for one in range(10)]
    assert {part[3] for part in path[2::2]} == {"between two kernels"}


def test_a_copy_to_pageable_memory_holds_the_host() -> None:
    trace = make_trace(
        [
            launch(0, 5, 1),
            kernel("gemm", 8, 92, 1),
            launch(10, 100, 2, "cudaMemcpyAsync"),
            kernel("Memcpy DtoH (Device -> Pageable)", 101, 5, 2, kind="gpu_memcpy"),
            make_event("cpu_op", "aten::item", 110, 30),
        ]
    )

    assert [part[2] for part in find_path(trace)] == [
        "launch",
        "compute",
        "launch",
        "memory",
        "sync",
        "host",
    ]


def test_an_event_sync_waits_for_what_was_given_before_the_record() -> None:
    sync = kernel("Event Sync", 12, 90, 4, stream=-1, kind="cuda_sync")
    sync["args"] |= {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 2}
    trace = make_trace(
        [
            launch(0, 2, 1),
            kernel("gemm", 10, 90, 1),
            launch(2, 1, 2, "cudaEventRecord"),
            launch(3, 2, 3),
            kernel("relu", 100, 1, 3),
            launch(12, 90, 4, "cudaEventSynchronize"),
            sync,
        ]
    )

    assert find_path(trace)[1:] == [
        (10, 100, "compute", "gemm"),
        (100, 102, "sync", "cudaEventSynchronize"),
    ]


def test_the_backward_thread_works_while_the_main_thread_waits() -> None:
    step = "autograd::engine::evaluate_function: "
    trace = make_trace(
        [
            make_event("user_annotation", "ProfilerStep#1", 0, 200),
            make_event("cpu_op", "aten::mse_loss", 10, 40),
            make_event("cpu_op", step + "MmBackward0", 60, 30, tid=2),
            make_event("cpu_op", step + "AddBackward0", 92, 50, tid=2),
            make_event("cpu_op", "aten::add_", 150, 50),
        ]
    )

    assert find_path(trace) == [
        (0, 10, "host", "ProfilerStep#1"),
        (10, 50, "host", "aten::mse_loss"),
        (50, 60, "host", "ProfilerStep#1"),
        (60, 90, "host", step + "MmBackward0"),
        (90, 92, "host", "autograd engine"),
        (92, 142, "host", step + "AddBackward0"),
        (142, 150, "host", "ProfilerStep#1"),
        (150, 200, "host", "aten::add_"),
    ]


def gloo(start: float, us: float, dispatched: float) -> list[dict[str, Any]]:
    """A collective of the host: the op of the main thread, and the thread that does it."""
    return [
        make_event("cpu_op", "c10d::allreduce_", dispatched, 2),
        make_event("user_annotation", "gloo:all_reduce", start, us, tid=9),
    ]


def test_the_main_thread_waits_for_a_collective_of_the_host() -> None:
    trace = make_trace(
        [
            make_event("user_annotation", "ProfilerStep#1", 0, 200),
            make_event("cpu_op", "aten::mm", 5, 15),
            *gloo(25, 75, 20),
            make_event("cpu_op", "aten::add_", 110, 90),
        ]
    )

    assert find_path(trace) == [
        (0, 5, "host", "ProfilerStep#1"),
        (5, 20, "host", "aten::mm"),
        (20, 25, "launch", "c10d::allreduce_"),
        (25, 100, "comm", "gloo:all_reduce"),
        (100, 110, "sync", "ProfilerStep#1"),
        (110, 200, "host", "aten::add_"),
    ]


def test_a_thread_that_works_on_does_not_wait_for_a_collective() -> None:
    """The next event comes long after the end of the collective: it was waited for by nobody."""
    trace = make_trace(
        [
            make_event("user_annotation", "ProfilerStep#1", 0, 2000),
            *gloo(25, 75, 20),
            make_event("cpu_op", "aten::add_", 1900, 90),
        ]
    )

    assert {part[2] for part in find_path(trace)} == {"host"}


def test_autograd_on_the_main_thread_is_not_another_thread() -> None:
    step = "autograd::engine::evaluate_function: MmBackward0"
    trace = make_trace(
        [
            make_event("cpu_op", "aten::mm", 0, 10),
            make_event("cpu_op", step, 20, 10),
            make_event("cpu_op", "aten::add_", 40, 10),
        ]
    )

    assert [part[2:] for part in find_path(trace)] == [
        ("host", "aten::mm"),
        ("unknown", ""),
        ("host", step),
        ("unknown", ""),
        ("host", "aten::add_"),
    ]


def test_a_launch_into_a_full_queue_waits_for_the_device() -> None:
    events = [make_event("cpu_op", "aten::item", 212, 800)]
    for one in range(4):
        events += [launch(2 * one, 1, one), kernel(f"k{one}", 10 + 100 * one, 100, one)]
    events += [launch(20, 192, 4), kernel("k4", 410, 100, 4)]

    path = find_path(make_trace(events), queue_limit=2)

    assert [part for part in path if part[2] != "launch"] == [
        (10, 110, "compute", "k0"),
        (110, 210, "compute", "k1"),
        (210, 212, "sync", "cudaLaunchKernel"),
        (212, 1012, "host", "aten::item"),
    ]
    unblocked = find_path(make_trace(events))
    assert (20, 212, "host", "cudaLaunchKernel") in unblocked
    assert {part[2] for part in unblocked} == {"host", "unknown"}


def test_fetching_the_next_batch_is_data_loading() -> None:
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    trace = make_trace(
        [
            make_event("user_annotation", name, 0, 50),
            make_event("cpu_op", "aten::stack", 10, 10),
            make_event("cpu_op", "aten::mm", 60, 10),
        ]
    )

    assert find_path(trace) == [
        (0, 10, "data_loading", name),
        (10, 20, "data_loading", "aten::stack"),
        (20, 50, "data_loading", name),
        (50, 60, "unknown", ""),
        (60, 70, "host", "aten::mm"),
    ]


def test_work_whose_launch_is_missing_is_unexplained_before() -> None:
    trace = make_trace([make_event("cpu_op", "aten::mm", 0, 10), kernel("gemm", 50, 10, 77)])

    assert find_path(trace) == [(0, 50, "unknown", ""), (50, 60, "compute", "gemm")]


@pytest.mark.parametrize(
    "events", [[], [make_event("cpu_op", "aten::add", 5, 0)], [kernel("gemm", 3, 2, -1)]]
)
def test_small_traces_have_small_paths(events: list[dict[str, Any]]) -> None:
    trace = make_trace(events)

    check_covers(trace)
    assert len(find_path(trace)) == sum(event["dur"] > 0 for event in events)


def test_the_path_ends_with_the_window() -> None:
    trace = make_trace(
        [
            make_event("python_function", "train.py(1): main", 0, 500),
            make_event("user_annotation", "ProfilerStep#1", 10, 90),
            make_event("user_annotation", "ProfilerStep#2", 100, 90),
            make_event("cpu_op", "aten::mm", 110, 10),
        ]
    )

    assert find_path(trace)[-1] == (10, 100, "host", "ProfilerStep#1")
    assert find_path(trace, all_steps=True)[-1][1] == 500


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int, int]]]:
    count = draw(st.integers(1, 30))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1), st.integers(0, 99))
    edges = draw(st.lists(pairs, max_size=120))
    return count, [(min(a, b), max(a, b), w) for a, b, w in edges if a != b]


@given(graphs())
@settings(max_examples=1000, deadline=None)
def test_the_longest_path_is_that_of_a_plain_search(
    graph: tuple[int, list[tuple[int, int, int]]],
) -> None:
    count, edges = graph
    edges.sort(key=lambda edge: edge[1])
    columns = np.array(edges, dtype=np.int64).reshape(-1, 3)

    length, parent = find_longest(count, columns[:, 0], columns[:, 1], columns[:, 2])

    plain: list[int] = []
    for node in range(count):
        plain.append(max((plain[a] + w for a, b, w in edges if b == node), default=0))
    assert length.tolist() == plain
    for node in range(count):
        rest, at = plain[node], node
        while parent[at] >= 0:
            rest -= edges[parent[at]][2]
            at = edges[parent[at]][0]
        assert rest == 0


def test_edges_that_go_back_are_refused() -> None:
    with pytest.raises(ValueError, match="forward"):
        find_longest(2, np.array([1]), np.array([0]), np.array([5]))


@st.composite
def events(draw: st.DrawFn) -> list[dict[str, Any]]:
    made = []
    times, lengths = st.integers(0, 60), st.integers(0, 20)
    for link in range(draw(st.integers(0, 14))):
        what = draw(
            st.sampled_from(["op", "launch", "kernel", "sync", "copy", "backward", "wait", "gloo"])
        )
        at, us = draw(times), draw(lengths)
        tid = draw(st.integers(1, 3))
        other = draw(st.integers(0, 14))
        if what == "op":
            made.append(make_event("cpu_op", draw(st.sampled_from("abc")), at, us, tid=tid))
        elif what == "backward":
            name = "autograd::engine::evaluate_function: x"
            made.append(make_event("cpu_op", name, at, us, tid=tid))
        elif what == "gloo":
            made += gloo(at, us, dispatched=max(0, at - other))
        elif what in ("launch", "sync"):
            name = draw(st.sampled_from(["cudaLaunchKernel", "cudaMemcpyAsync"]))
            name = "cudaStreamSynchronize" if what == "sync" else name
            made.append({**launch(at, us, link, name), "tid": tid})
        elif what == "wait":
            event = kernel("Stream Wait Event", at, us, link, stream=tid, kind="cuda_sync")
            event["args"]["wait_on_stream"] = other % 3
            event["args"]["wait_on_cuda_event_record_corr_id"] = other
            made.append(event)
        else:
            category = "kernel" if what == "kernel" else "gpu_memcpy"
            made.append(kernel(what, at, us, other, stream=tid, kind=category))
    return made


@given(events(), st.booleans())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_the_events_every_ns_is_on_the_path(
    made: list[dict[str, Any]], all_steps: bool
) -> None:
    check_covers(make_trace(made), all_steps=all_steps)


def test_the_host_bound_set_is_host_bound_as_others_found() -> None:
    """The golden path of another tool on the same trace: 99.7 % of the processor."""
    text = (find_traces() / "golden/hta_sampled_2rank/critical_path_summary.csv").read_text()
    golden = dict(line.split(",") for line in text.splitlines()[2:4])
    options = TraceOptions()
    view = TraceView(read_real("hta_sampled_2rank/rank-0.json.gz"), options)

    table = SUMMARY.measure(view, options)

    shares = dict(zip(table["kind"], table["share"], strict=True))
    host = 100 * (shares["host"] + shares["data_loading"])
    assert host == pytest.approx(float(golden["cpu_bound"]), abs=0.5)
