"""Why nothing ran."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.tracing.data import make_event, make_trace

from whystuck.evidence.traces.events import Trace
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.device.idle import METRIC, SUMMARY_METRIC
from whystuck.tracing.view import TraceView

Work = tuple[int, int, int, int, int | None]  # device, stream, start, length, launch; in µs


def make(works: list[Work]) -> Trace:
    events: list[dict[str, Any]] = []
    for number, (device, stream, start, length, launch) in enumerate(works):
        place = {"device": device, "stream": stream, "correlation": number + 1}
        events.append(make_event("kernel", "gemm", start, length, **place))
        if launch is not None:
            events.append(
                make_event("cuda_runtime", "cudaLaunchKernel", launch, 1, correlation=number + 1)
            )
    # Times count from the first event.
    return make_trace([make_event("cpu_op", "begin", 0, 0), *events])


def causes(trace: Trace) -> list[tuple[int, ...]]:
    return [row[1:] for row in METRIC.measure(TraceView(trace), TraceOptions()).rows()]


def summary(trace: Trace) -> list[tuple[int, ...]]:
    return [row[1:] for row in SUMMARY_METRIC.measure(TraceView(trace), TraceOptions()).rows()]


def test_the_three_causes() -> None:
    trace = make(
        [
            (0, 7, 10, 10, 0),
            (0, 7, 25, 5, 2),  # launched long before: 5 µs that it takes to start
            (0, 7, 60, 10, 40),  # launched after the one before had ended: 30 µs
            (0, 7, 100, 10, 50),  # launched long before, and yet 30 µs of waiting
        ]
    )

    assert causes(trace) == [(0, 7, 30_000, 5_000, 30_000, 0)]
    assert summary(trace) == [(0, 65_000, 30_000, 5_000, 30_000, 0)]


def test_work_without_a_launch_is_no_host_wait() -> None:
    trace = make([(0, 7, 10, 10, 0), (0, 7, 25, 5, None), (0, 7, 100, 5, None)])

    assert causes(trace) == [(0, 7, 0, 5_000, 70_000, 75_000)]


def test_a_launch_at_the_end_of_the_work_before_is_in_time() -> None:
    assert causes(make([(0, 7, 10, 10, 0), (0, 7, 50, 5, 20)])) == [(0, 7, 0, 0, 30_000, 0)]


def test_a_device_is_idle_only_where_none_of_its_streams_runs() -> None:
    trace = make(
        [(0, 7, 0, 10, 0), (0, 8, 5, 25, 0), (0, 7, 40, 10, 35), (1, 7, 0, 5, 0), (1, 7, 9, 5, 1)]
    )

    assert causes(trace) == [
        (0, 7, 30_000, 0, 0, 0),
        (0, 8, 0, 0, 0, 0),
        (1, 7, 0, 4_000, 0, 0),
    ]
    assert summary(trace) == [(0, 10_000, 10_000, 0, 0, 0), (1, 4_000, 0, 4_000, 0, 0)]


WORKS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(7, 8),
        st.integers(0, 80),
        st.integers(0, 20),
        st.none() | st.integers(0, 80),
    ),
    max_size=10,
)


@given(WORKS)
def test_idle_time_is_what_no_work_covers(works: list[Work]) -> None:
    for device, idle, *parts, _ in summary(make(works)):
        mine = [work for work in works if work[0] == device]
        ticks = {at for _, _, start, length, _ in mine for at in range(start, start + length)}
        first = min(start for _, _, start, *_ in mine)
        last = max(start + length for _, _, start, length, _ in mine)
        assert idle == 1000 * (last - first - len(ticks))
        assert sum(parts) == idle


@given(WORKS)
def test_causes_of_streams_are_those_of_their_gaps(works: list[Work]) -> None:
    for device, stream, *found in causes(make(works)):
        mine = [work for work in works if work[:2] == (device, stream)]
        mine.sort(key=lambda one: (one[2], -1 if one[4] is None else one[4]))
        expected = [0, 0, 0, 0]
        for place, (_, _, start, _, launch) in enumerate(mine[1:], 1):
            before = max(one[2] + one[3] for one in mine[:place])
            gap = max(start - before, 0)
            is_host = launch is not None and launch > before
            expected[0 if is_host else 1 if gap < 30 else 2] += 1000 * gap
            expected[3] += 1000 * gap * (launch is None)
        assert found == expected


def test_no_device_work_gives_no_rows() -> None:
    assert causes(make([])) == []
    assert summary(make([])) == []
