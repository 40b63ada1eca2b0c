"""The critical path across ranks: it goes through the rank that came last."""

from __future__ import annotations

import pytest
from tests.tracing.data import make_event, read_real
from tests.tracing.jobs import all_reduce, make_late_job, make_rank_trace, reduce_job

from whystuck.evidence.table import Table
from whystuck.evidence.traces.tables import TraceSummary
from whystuck.tracing.critical.job import PATH, SUMMARY


def list_path(summary: TraceSummary) -> list[tuple[int, float, float, str, str]]:
    """The path in µs."""
    table = summary.get(PATH)
    assert tuple(table.columns) == ("rank", "start_ns", "end_ns", "kind", "name")
    return [
        (rank, start / 1000, end / 1000, kind, name)
        for rank, start, end, kind, name in table.rows()
    ]


def check_covers(table: Table) -> None:
    assert table["start_ns"][0] == 0
    assert (table["end_ns"][:-1] == table["start_ns"][1:]).all()
    assert (table["end_ns"] > table["start_ns"]).all()


@pytest.mark.parametrize("clocks", [(), (0, 1e6), (2.5e5, 0)])
def test_the_path_runs_through_the_late_rank(clocks: tuple[float, ...]) -> None:
    """Rank 0 waits for rank 1, and ends last: its wait is not on the path, rank 1's work is."""
    path = list_path(reduce_job(make_late_job([50, 100], last_us=[50, 30], clocks=clocks)))

    assert path == [
        (1, 0, 1, "host", "ProfilerStep#1"),
        (1, 1, 10, "launch", "cudaLaunchKernel"),
        (1, 10, 110, "compute", "gemm"),
        (1, 110, 120, "comm", "all_reduce 0"),
        (0, 120, 170, "compute", "relu"),
    ]


def test_sums_are_by_rank_and_kind() -> None:
    summary = reduce_job(make_late_job([50, 100], last_us=[50, 30])).get(SUMMARY)

    rows = {(rank, kind): (length, share) for rank, kind, length, share in summary.rows()}
    assert rows[1, "compute"] == (100_000, pytest.approx(100 / 170))
    assert rows[0, "compute"] == (50_000, pytest.approx(50 / 170))
    assert sum(length for length, _ in rows.values()) == 170_000
    assert summary["share"].sum() == pytest.approx(1)


def test_a_rank_that_is_never_last_is_not_on_the_path() -> None:
    """What the late rank did before is on it: here, its host."""
    late = [
        make_event("user_annotation", "ProfilerStep#1", 0, 105),
        make_event("cpu_op", "aten::cat", 0, 100),
        make_event("cuda_runtime", "cudaLaunchKernel", 101, 1, correlation=1),
        all_reduce(110, 10, 1, number=1),
    ]
    early = [
        make_event("user_annotation", "ProfilerStep#1", 0, 8),
        make_event("cuda_runtime", "cudaLaunchKernel", 2, 1, correlation=1),
        all_reduce(5, 115, 1, number=1),
    ]

    path = list_path(reduce_job([make_rank_trace(0, early), make_rank_trace(1, late)]))

    assert path == [
        (1, 0, 101, "host", "aten::cat"),
        (1, 101, 110, "launch", "cudaLaunchKernel"),
        (1, 110, 120, "comm", "all_reduce 0"),
    ]


def test_waits_of_several_collectives_are_followed() -> None:
    """Rank 0 is late for the first, rank 1 for the second."""
    times = {0: [(0, 80), (90, 20)], 1: [(0, 10), (90, 70)]}
    ends = [90, 170]
    traces = []
    for rank, works in times.items():
        events = [make_event("user_annotation", "ProfilerStep#1", 0, 4)]
        for number, ((start, us), end) in enumerate(zip(works, ends, strict=True)):
            for place, (name, begin, length) in enumerate(
                [("gemm", start + 2, us - 2), ("", start + us, end - start - us)]
            ):
                link = 2 * number + place
                events.append(
                    make_event("cuda_runtime", "cudaLaunchKernel", link / 4, 0.1, correlation=link)
                )
                if name:
                    events.append(
                        make_event(
                            "kernel", name, begin, length, device=0, stream=9, correlation=link
                        )
                    )
                else:
                    events.append(all_reduce(begin, length, link, number=number))
        traces.append(make_rank_trace(rank, events))

    path = list_path(reduce_job(traces))

    found = [(rank, kind) for rank, _, _, kind, _ in path if kind in ("compute", "comm")]
    assert found == [(0, "compute"), (0, "comm"), (1, "compute"), (1, "comm")]


def test_one_rank_alone_has_its_own_path() -> None:
    (trace, _) = make_late_job([50, 100])

    path = list_path(reduce_job([trace]))

    assert {part[0] for part in path} == {0}
    assert path[-1][2] == 150


def test_no_events_give_no_path() -> None:
    summary = reduce_job([make_rank_trace(0, []), make_rank_trace(1, [])])

    assert len(summary.get(PATH)) == 0
    assert len(summary.get(SUMMARY)) == 0


@pytest.mark.parametrize("kind", ["host", "gpu"])
def test_every_ns_of_a_real_job_is_on_its_path(kind: str) -> None:
    traces = [read_real(f"injected/{kind}_8rank_r5/rank{rank}.json.gz") for rank in range(8)]

    summary = reduce_job(traces)

    check_covers(summary.get(PATH))
    assert summary.get(SUMMARY)["share"].sum() == pytest.approx(1)


def test_ranks_without_devices_wait_for_each_other_too() -> None:
    """gloo does a collective on a thread of its own, and the main thread waits in silence."""
    traces = []
    for rank, work in enumerate([30, 100]):
        events = [
            make_event("user_annotation", "ProfilerStep#1", 0, 160),
            make_event("cpu_op", "aten::mm", 1, work - 1),
            make_event("cpu_op", "c10d::allreduce_", work, 2),
            make_event("user_annotation", "gloo:all_reduce", work + 5, 120 - work - 5, tid=9),
            make_event("cpu_op", "aten::add_", 125, 35 - 5 * rank),
        ]
        events[2]["args"] = {"Input Dims": [[1024]], "Input type": ["float"]}
        traces.append(make_rank_trace(rank, events))

    path = list_path(reduce_job(traces))

    assert [part for part in path if part[3] in ("comm", "sync", "launch")] == [
        (1, 100, 105, "launch", "c10d::allreduce_"),
        (1, 105, 120, "comm", "all_reduce"),
        (0, 120, 125, "sync", "ProfilerStep#1"),
    ]
    assert {part[0] for part in path if part[2] <= 120} == {1}
    assert {part[0] for part in path if part[1] >= 120} == {0}
