"""Which call launched which work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.tracing.data import make_event, make_trace

from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.device.launching import find_older
from whystuck.tracing.view import TraceView


def call(
    name: str, start: float, us: float, correlation: int, kind: str = "cuda_runtime"
) -> dict[str, Any]:
    return make_event(kind, name, start, us, correlation=correlation)


def kernel(start: float, us: float, correlation: int, **args: int) -> dict[str, Any]:
    given = {"device": 0, "stream": 7, **args}
    return make_event("kernel", "gemm", start, us, correlation=correlation, **given)


def find_launches(events: list[dict[str, Any]]) -> list[int]:
    launches: list[int] = TraceView(make_trace(events)).launch_rows.tolist()
    return launches


def test_the_outer_of_two_calls_counts() -> None:
    events = [
        call("cuLaunchKernel", 2, 3, 5, "cuda_driver"),
        call("cudaLaunchKernel", 1, 9, 5),
        call("cuOther", 6, 2, 5, "cuda_driver"),
        kernel(20, 1, 5),
    ]

    assert find_launches(events) == [1]


def test_a_graph_launches_many_kernels_with_one_correlation() -> None:
    events = [call("cudaGraphLaunch", 0, 3, 9), *(kernel(at, 1, 9) for at in (5, 7, 9))]

    assert find_launches(events) == [0, 0, 0]


def test_a_correlation_that_is_used_again_means_the_last_call_before() -> None:
    events = [
        call("cudaLaunchKernel", 0, 2, 5),
        call("cudaLaunchKernel", 100, 2, 5),
        call("cudaLaunchKernel", 50, 2, 6),
        kernel(10, 1, 5),
        kernel(110, 1, 5),
        kernel(40, 1, 6),  # the clock of the device is behind
        kernel(60, 1, 7),
    ]

    assert find_launches(events) == [0, 1, 2, -1]


def test_zero_is_no_correlation_when_many_calls_have_it() -> None:
    calls = [call("cudaLaunchKernel", at, 1, 0) for at in (0, 5)]

    assert find_launches([*calls, kernel(9, 1, 0)]) == [-1]
    assert find_launches([calls[0], kernel(9, 1, 0)]) == [0]


def test_work_without_correlation_has_no_launch() -> None:
    events = [call("cudaLaunchKernel", 0, 1, 3), make_event("kernel", "gemm", 3, 1)]

    assert find_launches(events) == [-1]


def test_what_runs_first_and_has_no_launch_is_older_than_the_trace() -> None:
    start = np.array([5, 10, 20, 8, 30, 1])
    launches = np.array([-1, 3, -1, -1, -1, -1])
    stream = np.array([0, 0, 0, 1, 1, 2])

    older = find_older(start, launches, stream)

    assert older.tolist() == [True, False, False, True, False, True]


@pytest.mark.parametrize("linked", [True, False])
def test_nothing_is_older_when_launches_are_all_known_or_all_unknown(*, linked: bool) -> None:
    launches = np.array([0, 1] if linked else [-1, -1])

    assert not find_older(np.array([1, 2]), launches, np.array([0, 0])).any()


def test_the_window_ends_where_the_last_step_begins_on_the_host() -> None:
    steps = [
        make_event("user_annotation", "ProfilerStep#4", 0, 50),
        make_event("user_annotation", "ProfilerStep#5", 50, 50),
        # The same step as the device saw it, later: it is no step of the host.
        make_event("gpu_user_annotation", "ProfilerStep#5", 90, 50, device=0, stream=7),
    ]
    events = [
        *steps,
        call("cudaLaunchKernel", 10, 1, 1),
        call("cudaLaunchKernel", 40, 1, 2),
        call("cudaLaunchKernel", 60, 1, 3),
        kernel(2, 1, 99),  # of a step before the trace
        kernel(15, 1, 1),
        kernel(30, 1, 98),
        kernel(70, 1, 2),
        kernel(80, 1, 3),
        kernel(81, 1, 97),
    ]
    trace = make_trace(events)

    view = TraceView(trace)

    assert trace.events.correlation[view.device_rows].tolist() == [1, 98, 2]
    everything = TraceView(trace, TraceOptions(all_steps=True))
    assert trace.events.correlation[everything.device_rows].tolist() == [99, 1, 98, 2, 3, 97]


def test_a_step_that_is_listed_twice_is_one() -> None:
    steps = [make_event("user_annotation", "ProfilerStep#4", at, 50) for at in (0, 50)]

    assert TraceView(make_trace(steps)).cut_ns is None


def test_devices_and_streams_may_be_told_by_process_and_thread_only() -> None:
    events = [
        make_event("kernel", "gemm", 0, 1, pid=3, tid=7),
        make_event("kernel", "gemm", 5, 1, pid=3, tid=20, device=1, stream=9),
        make_event("kernel", "gemm", 9, 1, pid="GPU", tid="queue"),
    ]

    view = TraceView(make_trace(events))

    assert view.device.tolist() == [3, 1, -1]
    assert view.stream.tolist() == [7, 9, -1]
    assert view.queues.device.tolist() == [-1, 1, 3]
    assert view.queues.place.tolist() == [2, 1, 0]
