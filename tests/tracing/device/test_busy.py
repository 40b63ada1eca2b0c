"""Time of classes of work on devices and streams, against counting every µs."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.tracing.data import make_event, make_trace
from tests.tracing.measuring import measure_rows

from whystuck.evidence.traces.events import Trace
from whystuck.tracing.collectives import overlap
from whystuck.tracing.device import temporal

KINDS = {
    "compute": ("kernel", "gemm"),
    "comm": ("kernel", "ncclDevKernel_AllReduce"),
    "memory": ("gpu_memcpy", "Memcpy DtoH"),
}
Work = tuple[int, int, str, int, int]  # device, stream, class, start, length; in µs
WORKS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(7, 8),
        st.sampled_from(list(KINDS)),
        st.integers(0, 30),
        st.integers(0, 12),
    ),
    max_size=12,
)


def make(works: list[Work]) -> Trace:
    return make_trace(
        [
            make_event(*KINDS[kind], start, length, device=device, stream=stream)
            for device, stream, kind, start, length in works
        ]
    )


def tick(works: list[Work]) -> dict[int, set[str]]:
    """The classes that run in each µs."""
    ticks = defaultdict[int, set[str]](set)
    for *_, kind, start, length in works:
        for at in range(start, start + length):
            ticks[at].add(kind)
    return ticks


def expect(works: list[Work]) -> dict[str, int]:
    ran = list(tick(works).values())
    first, last = min(one[3] for one in works), max(one[3] + one[4] for one in works)
    counts = {
        "wall_ns": last - first,
        "busy_ns": len(ran),
        "idle_ns": last - first - len(ran),
        **{f"{kind}_ns": sum(kind in classes for classes in ran) for kind in KINDS},
        "exposed_comm_ns": sum("comm" in one and "compute" not in one for one in ran),
        "exposed_memory_ns": sum(one == {"memory"} for one in ran),
    }
    return {name: 1000 * count for name, count in counts.items()}


def pick(row: dict[str, Any], names: dict[str, int]) -> dict[str, int]:
    return {name: row[name] for name in names}


@given(WORKS)
def test_times_of_devices(works: list[Work]) -> None:
    rows = measure_rows(temporal.METRIC, make(works))

    assert [row["device"] for row in rows] == sorted({one[0] for one in works})
    for row in rows:
        expected = expect([one for one in works if one[0] == row["device"]])
        assert pick(row, expected) == expected


@given(WORKS)
def test_times_of_streams(works: list[Work]) -> None:
    rows = measure_rows(temporal.STREAM_METRIC, make(works))

    assert [(row["device"], row["stream"]) for row in rows] == sorted({one[:2] for one in works})
    for row in rows:
        mine = [one for one in works if one[:2] == (row["device"], row["stream"])]
        expected = expect(mine)
        assert pick(row, expected) == expected
        assert row["count"] == len(mine)


@given(WORKS)
def test_overlap_of_devices(works: list[Work]) -> None:
    for row in measure_rows(overlap.METRIC, make(works)):
        ran = tick([one for one in works if one[0] == row["device"]]).values()
        comm = sum("comm" in one for one in ran)
        both = sum({"comm", "compute"} <= one for one in ran)
        assert (row["comm_ns"], row["overlap_ns"]) == (1000 * comm, 1000 * both)
        if comm:
            assert row["overlap_pct"] == 100 * both / comm


@given(WORKS)
def test_time_of_each_set_of_classes(works: list[Work]) -> None:
    found = {
        (row["device"], frozenset(row["classes"].split("+"))): row["sum_ns"]
        for row in measure_rows(temporal.CLASS_METRIC, make(works))
    }

    expected = defaultdict[tuple[int, frozenset[str]], int](int)
    for device in {one[0] for one in works}:
        for classes in tick([one for one in works if one[0] == device]).values():
            expected[device, frozenset(classes)] += 1000
    assert found == expected


def test_shares_of_classes_are_of_the_busy_time() -> None:
    rows = measure_rows(
        temporal.CLASS_METRIC, make([(0, 7, "compute", 0, 30), (0, 8, "comm", 20, 20)])
    )

    assert [(row["classes"], row["share"]) for row in rows] == [
        ("compute", 0.5),
        ("comm", 0.25),
        ("compute+comm", 0.25),
    ]


def test_times_too_far_apart_to_add_do_no_harm() -> None:
    far = 9_000_000_000_000_000.0
    events = [
        make_event("kernel", "gemm", start, 1, device=device, stream=7)
        for device in range(4)
        for start in (0.0, far)
    ]

    rows = measure_rows(temporal.METRIC, make_trace(events))

    assert [row["busy_ns"] for row in rows] == [2000] * 4
