"""Work that waits on streams."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tracing.data import make_event, make_trace
from tests.tracing.measuring import measure_rows

from whystuck.evidence.traces.events import Trace
from whystuck.tracing.device.queue_length import METRIC, SERIES_METRIC

Launch = tuple[int, int, int]  # stream, start of the launch, wait; in µs


def make(launches: list[Launch]) -> Trace:
    events: list[dict[str, Any]] = []
    for number, (stream, start, wait) in enumerate(launches, 1):
        events.append(make_event("cuda_runtime", "cudaLaunchKernel", start, 1, correlation=number))
        place = {"device": 0, "stream": stream, "correlation": number}
        events.append(make_event("kernel", "gemm", start + wait, 2, **place))
    return make_trace(events)


def test_the_length_goes_up_with_launches_and_down_with_starts() -> None:
    trace = make([(7, 0, 10), (7, 2, 10), (7, 12, 3), (8, 0, 1)])

    series = [
        (row["stream"], row["ts_ns"], row["length"]) for row in measure_rows(SERIES_METRIC, trace)
    ]

    assert series[:6] == [
        (7, 0, 1),
        (7, 2_000, 2),
        (7, 10_000, 1),
        (7, 12_000, 2),  # launched when the other starts: it is launched first
        (7, 12_000, 1),
        (7, 15_000, 0),
    ]
    assert series[6:] == [(8, 0, 1), (8, 1_000, 0)]


def test_the_mean_over_time_is_not_that_over_changes() -> None:
    (row,) = measure_rows(METRIC, make([(7, 0, 100), (7, 98, 3)]))

    assert (row["points"], row["mean"], row["max"]) == (4, 1.0, 2)
    assert row["time_mean"] == (98 * 1 + 2 * 2 + 1 * 1) / 101
    assert row["span_ns"] == 101_000


def test_every_full_queue_counts() -> None:
    trace = make([(7, 0, 10), (7, 1, 9), (8, 20, 10), (8, 25, 6)])

    rows = measure_rows(METRIC, trace, queue_limit=2)

    assert [(row["stream"], row["full_ns"]) for row in rows] == [(7, 9_000), (8, 5_000)]


def test_a_device_whose_clock_is_behind_gives_lengths_below_zero() -> None:
    (row,) = measure_rows(METRIC, make([(7, 10, -5)]))

    assert (row["min"], row["max"]) == (-1, 0)


LAUNCHES = st.lists(
    st.tuples(st.integers(7, 8), st.integers(0, 30), st.integers(0, 12)), max_size=10
)


@given(LAUNCHES, st.integers(1, 3))
def test_figures_are_those_of_counting(launches: list[Launch], limit: int) -> None:
    for row in measure_rows(METRIC, make(launches), queue_limit=limit):
        mine = [(at, at + wait) for stream, at, wait in launches if stream == row["stream"]]
        edges = sorted([(at, -1) for at, _ in mine] + [(at, 1) for _, at in mine])
        lengths = [-sum(change for _, change in edges[: place + 1]) for place in range(len(edges))]
        assert row["mean"] == pytest.approx(statistics.mean(lengths))
        assert row["std"] == pytest.approx(statistics.stdev(lengths))
        first, last = edges[0][0], edges[-1][0]
        ticks = [sum(at <= tick < start for at, start in mine) for tick in range(first, last)]
        assert row["span_ns"] == 1000 * len(ticks)
        assert row["full_ns"] == 1000 * sum(length >= limit for length in ticks)
        if ticks:
            assert row["time_mean"] == pytest.approx(statistics.mean(ticks))


def test_work_without_launches_gives_no_rows() -> None:
    trace = make_trace([make_event("kernel", "gemm", 0, 1, device=0, stream=7)])

    assert measure_rows(METRIC, trace) == []
    assert measure_rows(SERIES_METRIC, trace) == []
    assert measure_rows(METRIC, make_trace([])) == []
