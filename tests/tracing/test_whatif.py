"""What a job would gain: replays of made-up jobs with known answers, and of real ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tracing.data import make_event, make_trace, read_real
from tests.tracing.jobs import all_reduce, make_late_job, make_rank_trace, reduce_job

from whystuck.evidence.traces.events import Trace
from whystuck.evidence.traces.options import Lever
from whystuck.evidence.traces.tables import TraceSummary
from whystuck.tracing.whatif.replay import Meeting, RankGraph, Replay
from whystuck.tracing.whatif.tables import ANSWERS, REPLAY, TABLES


def ask(traces: list[Trace], *levers: Lever) -> TraceSummary:
    return reduce_job(traces, tables=TABLES, only_tables=True, levers=levers)


def gain_us(traces: list[Trace], **keys: Any) -> float:
    """The gain of one lever in µs."""
    summary = ask(traces, Lever(name="asked", **keys))
    (row,) = summary.get(ANSWERS).rows()
    (replay,) = summary.get(REPLAY).rows()
    assert dict(zip(summary.get(REPLAY).columns, replay, strict=True))["error"] == 0
    return float(row[4]) / 1000


LATE = [50.0, 100.0]


@pytest.mark.parametrize(
    ("lever", "gain"),
    [
        # The late rank holds the other one up, until it is no longer the later one.
        ({"classes": ("compute",), "ranks": (1,), "share": 0.1}, 10),
        ({"classes": ("compute",), "ranks": (1,), "share": 0.5}, 50),
        ({"classes": ("compute",), "ranks": (1,), "share": 1}, 50),
        # The early rank waits, however fast it is; but it ends last.
        ({"kernel": "gemm", "ranks": (0,), "share": 1}, 0),
        ({"kernel": "relu", "ranks": (0,), "share": 1}, 20),
        ({"kernel": "^re", "share": 1}, 50),
        # Only the transfer of a collective can be faster, not the wait for others.
        ({"classes": ("comm",), "share": 1}, 10),
        ({"classes": ("comm",), "share": 0.5}, 5),
        ({"links": ("0",), "share": 1}, 10),
        ({"links": ("other",), "share": 1}, 0),
        ({"ranks": (1,), "share": 0.1}, 10),
        ({"kernel": "no such", "share": 1}, 0),
        ({"is_input": True, "share": 1}, 0),
    ],
)
def test_a_lever_gains_what_the_job_no_longer_waits_for(lever: dict[str, Any], gain: float) -> None:
    traces = make_late_job(LATE, last_us=[50, 30])

    assert gain_us(traces, **lever) == pytest.approx(gain, abs=1.01 if "ranks" in lever else 0.01)


@pytest.mark.parametrize("clocks", [(0.0, 1e6), (-3e5, 0.0)])
def test_clocks_of_ranks_change_nothing(clocks: tuple[float, float]) -> None:
    traces = make_late_job(LATE, last_us=[50, 30], clocks=clocks)

    gain = gain_us(traces, classes=("compute",), ranks=(1,), share=0.5)

    assert gain == pytest.approx(50, abs=1.01)


def test_the_host_is_faster_without_its_op_and_what_it_launched() -> None:
    trace = make_trace(
        [
            make_event("cpu_op", "aten::mm", 0, 20),
            make_event("cuda_runtime", "cudaLaunchKernel", 5, 10, correlation=1),
            make_event("kernel", "gemm", 25, 70, device=0, stream=7, correlation=1),
            make_event("cuda_runtime", "cudaStreamSynchronize", 30, 70, correlation=2),
            make_event("cpu_op", "aten::add", 100, 10),
        ]
    )

    assert gain_us([trace], kernel="gemm", share=0.5) == 35
    assert gain_us([trace], op="aten::add", share=1) == 10
    # 5 µs to the launch, and 70 of the kernel; the delay of the launch stays.
    assert gain_us([trace], op="aten::mm", share=1) == 75
    assert gain_us([trace], classes=("launch",), share=1) == 20
    assert gain_us([trace], classes=("host",), share=1) == 15


def test_data_that_comes_at_once_gains_its_wait() -> None:
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    trace = make_trace(
        [
            make_event("user_annotation", "ProfilerStep#1", 0, 100),
            make_event("user_annotation", name, 10, 60),
        ]
    )

    assert gain_us([trace], is_input=True, share=0.5) == 30
    assert gain_us([trace], is_input=True, kernel="x", share=1) == 60


def test_without_a_question_common_levers_are_ranked() -> None:
    table = ask(make_late_job([50, 100, 50], last_us=[30] * 3)).get(ANSWERS)

    gains = {row[:3]: row[4] for row in table.rows()}
    # Launches take their time, whatever they launch.
    assert gains["compute", 1.0, ""] == 128_000
    assert gains["compute", 0.1, ""] == 13_000
    assert gains["kernel gemm", 1.0, ""] == 98_000
    assert gains["comm", 1.0, ""] == 10_000
    assert gains["as fast as the median of its peers", 1.0, "1"] == 50_000
    assert ("as fast as the median of its peers", 1.0, "0") not in gains
    assert list(table["gain_ns"]) == sorted(gains.values(), reverse=True)


@pytest.mark.parametrize("kind", ["host", "gpu"])
def test_a_replay_of_real_ranks_gives_their_time(kind: str) -> None:
    traces = [read_real(f"injected/{kind}_8rank_r5/rank{rank}.json.gz") for rank in range(8)]

    summary = ask(traces, Lever(name="host", classes=("host",), share=0.1))

    (row,) = summary.get(REPLAY).rows()
    replay = dict(zip(summary.get(REPLAY).columns, row, strict=True))
    assert (replay["ranks"], replay["collectives"], replay["broken"]) == (8, 5, 0)
    assert abs(replay["error"]) < 1e-6
    assert 0 < summary.get(ANSWERS)["gain_share"][0] < 0.1


def test_answers_are_only_there_when_they_are_asked_for() -> None:
    summary = reduce_job(make_late_job(LATE))

    assert ANSWERS not in summary.tables
    assert not [name for name in summary.tables if name.startswith("whatif")]


def test_ranks_that_meet_in_another_order_do_not_hang_the_replay() -> None:
    """Traces may contradict each other; the replay goes on, and tells."""
    graphs = [
        RankGraph(
            rank=rank,
            nodes=3,
            src=np.array([0, 1]),
            dst=np.array([1, 2]),
            weight=np.array([5, 5]),
            kind=np.zeros(2),
            is_comm=np.ones(2, dtype=np.bool_),
        )
        for rank in range(2)
    ]
    meetings = [Meeting("a", (0, 1), (0, 1), (1, 1)), Meeting("b", (0, 1), (1, 0), (1, 1))]
    replay = Replay(graphs, meetings)

    ends = replay.run([graph.weight for graph in graphs], [(1, 1), (1, 1)])

    assert replay.broken == 1
    assert max(ends) <= 3


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[list[int]], list[int]]:
    """Work of ranks between collectives, and what these take."""
    ranks, count = draw(st.integers(2, 4)), draw(st.integers(1, 5))
    times = st.integers(1, 50)
    works = [[draw(times) for _ in range(count)] for _ in range(ranks)]
    return works, [draw(times) for _ in range(count)]


@given(jobs(), st.sampled_from([0.1, 0.5, 1.0]), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_a_job_of_steps_is_as_fast_as_its_slowest_ranks(
    job: tuple[list[list[int]], list[int]], share: float, chosen: int
) -> None:
    """Each step takes the longest work and the transfer: what a lever gains can be added up."""
    works, transfers = job
    ranks = len(works)
    chosen %= ranks
    traces = []
    for rank, own in enumerate(works):
        events = [make_event("user_annotation", "run", 0, 1)]
        at = 10
        for number, (work, rest) in enumerate(zip(own, transfers, strict=True)):
            met = at + max(other[number] for other in works)
            for link, event in (
                (2 * number, make_event("kernel", "gemm", at, work, device=0, stream=9)),
                (
                    2 * number + 1,
                    all_reduce(at + work, met + rest - at - work, 0, number=number, world=ranks),
                ),
            ):
                event["args"]["correlation"] = link
                call = make_event(
                    "cuda_runtime", "cudaLaunchKernel", link / 100, 0.001, correlation=link
                )
                events += [call, event]
            at = met + rest
        traces.append(make_rank_trace(rank, events, ranks))
    before = sum(max(one[n] for one in works) for n in range(len(transfers)))
    after = sum(
        max(one[n] * (1 - share * (rank == chosen)) for rank, one in enumerate(works))
        for n in range(len(transfers))
    )

    gain = gain_us(traces, kernel="gemm", ranks=(chosen,), share=share)

    # A stream that is empty earlier waits for the launch, which took 10 µs.
    assert gain == pytest.approx(before - after, abs=0.01)
