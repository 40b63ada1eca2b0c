"""Rules about traces, from tables made by hand: amounts, whom they name, and what is in doubt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystuck.diagnose.engine import diagnose
from whystuck.diagnose.traces.columns import CAUSES
from whystuck.diagnose.traces.cost_rule import parse_place, shorten
from whystuck.evidence.finding import Confidence, Finding, Place, Report, Severity
from whystuck.evidence.model import Evidence
from whystuck.evidence.table import Column, Table, text_column, whole_column
from whystuck.evidence.traces.tables import RankHeader, TraceSummary

MS = 1_000_000


def make_column(values: Sequence[Any]) -> Column:
    if all(isinstance(value, str) for value in values):
        return text_column(list(values))
    if any(isinstance(value, float) for value in values):
        return np.asarray(values, dtype=np.float64)
    return whole_column(list(values))


def make_table(header: str, *rows: tuple[Any, ...]) -> Table:
    names = header.split(",")
    columns = zip(*rows, strict=True) if rows else ((),) * len(names)
    return Table({name: make_column(one) for name, one in zip(names, columns, strict=True)})


def make_steps(shares: Mapping[int, Mapping[str, int]], steps: int = 4, wall: int = 100) -> Table:
    """Steps of `wall` ms; what no cause takes is computation."""
    rows = []
    for rank, causes in shares.items():
        parts = {"compute": wall - sum(causes.values()), **causes}
        values = [parts.get(name, 0) * MS for name in CAUSES]
        rows += [(rank, 10 + step, wall * MS, *values) for step in range(steps)]
    return make_table("rank,step,wall_ns," + ",".join(f"{name}_ns" for name in CAUSES), *rows)


def make_devices(ranks: Sequence[int]) -> Table:
    return make_table("rank,device,wall_ns,busy_ns", *((rank, 0, 1, 1) for rank in ranks))


def make_idle(late: Mapping[int, int], queued: Mapping[int, int] | None = None) -> Table:
    """Idle time in ms for each step of four: the host was late, or work was in the queue."""
    queued = queued or {}
    header = "rank,device,idle_ns,host_wait_ns,kernel_wait_ns,other_ns"
    rows = [
        (rank, 0, (ms + queued.get(rank, 0)) * 4 * MS, ms * 4 * MS, queued.get(rank, 0) * 4 * MS, 0)
        for rank, ms in late.items()
    ]
    return make_table(header, *rows)


def judge(step_time: Table, **tables: Table) -> Report:
    ranks = sorted(set(step_time["rank"].tolist()))
    headers = tuple(RankHeader(rank=rank, events=1, device_events=1) for rank in ranks)
    made = {"step_time": step_time, "temporal_breakdown": make_devices(ranks), **tables}
    return diagnose(Evidence(traces=TraceSummary(headers, made)))


def only(report: Report, code: str) -> Finding:
    (found,) = report.findings
    assert found.code == code
    return found


LATE = "rank,share_of_step,wait_caused_ns,times_last,collectives,p_value,cause,late_ns,times_late"
BLAME = "rank,times_last,wait_caused_ns,wait_suffered_ns,clock_offset_ns,clock_error_ns"


def make_blame(late: int, wait_ms: int, ranks: int = 4) -> Table:
    rows = [
        (rank, 36, wait_ms * MS * 4, 0, 0, 0)
        if rank == late
        else (rank, 4, 0, wait_ms * MS * 4, 0, 0)
        for rank in range(ranks)
    ]
    return make_table(BLAME, *rows)


def judge_late(wait_ms: int, p_value: float, comm_ms: int) -> Report:
    return judge(
        make_steps({rank: {"exposed_comm": comm_ms if rank != 2 else 4} for rank in range(4)}),
        straggler=make_table(
            LATE, (2, 0.1, wait_ms * MS * 4, 36, 40, p_value, "host", wait_ms * MS * 4, 38)
        ),
        rank_blame=make_blame(2, wait_ms),
    )


def test_a_late_rank_is_charged_with_the_wait_and_communication_with_the_rest() -> None:
    report = judge_late(wait_ms=20, p_value=1e-9, comm_ms=24)

    found = only(report, "P504")
    assert found.culprits.ranks == [2]
    assert found.victims.ranks == "0-1,3"
    assert found.severity is Severity.WARNING
    assert found.confidence is Confidence.LIKELY
    assert found.measures["lost_ms_per_step"] == pytest.approx(20)
    assert found.measures["share_of_step"] == pytest.approx(0.15)
    assert found.measures["wait_caused_ms"] == pytest.approx(80)
    assert found.details == {
        "cause": "host", "times_last": 36, "times_late": 38, "collectives": 40, "p_value": 1e-9
    }  # fmt: skip
    assert report.verdict == "slow"


def test_a_late_rank_that_costs_next_to_nothing_is_a_note() -> None:
    # GIVEN waits that are hidden under computation, all but a little
    report = judge_late(wait_ms=20, p_value=1e-9, comm_ms=1)

    found = only(report, "P504")
    assert found.severity is Severity.NOTE
    assert report.verdict == "healthy"


def test_a_late_rank_that_may_be_chance_is_only_possible() -> None:
    assert only(judge_late(20, 0.02, 24), "P504").confidence is Confidence.POSSIBLE


def test_waits_without_a_late_rank_name_nobody() -> None:
    report = judge(
        make_steps({rank: {"exposed_comm": 30} for rank in range(4)}),
        straggler=make_table(LATE),
        rank_blame=make_table(BLAME, *((rank, 10, 80 * MS, 80 * MS, 0, 0) for rank in range(4))),
        comm_ops=make_table(
            "rank,group,op,count,sum_ns,exposed_ns,all_count",
            (0, "tp", "allgather", 1, 85 * MS, 80 * MS, 2),
            (0, "dp", "allreduce", 1, 100 * MS, 90 * MS, 1),
        ),
        collective_groups=make_table(
            "op,group,bytes_to,exposed_ns,wait_ns,transfer_ns,busbw_gbps",
            ("allreduce", "dp", 64, 400 * MS, 360 * MS, 120 * MS, 88.0),
            ("allgather", "tp", 32, 80 * MS, 0, 10 * MS, float("nan")),
            ("send", "pp", 32, 80 * MS, -1, 10 * MS, float("nan")),
        ),
    )

    found = only(report, "P503")
    assert found.culprits.ranks == []
    assert found.culprits.groups == ["dp", "tp"]
    assert found.details["ops"] == ["allreduce", "allgather"]
    assert found.details["wait_share"] == pytest.approx(360 / 490, abs=1e-3)
    assert found.details["busbw_gbps"] == 88.0
    assert "no rank is late throughout" in found.summary


OPS = "rank,group,op,count,sum_ns,exposed_ns,all_count,group_desc"


def judge_groups(tp_ms: int, tp_desc: str = "tp", dp_desc: str = "dp") -> Finding:
    """Four ranks in two `dp` groups of 24 ms a step and two `tp` groups."""
    rows = []
    for rank in range(4):
        for name, ms, desc in (
            (f"dp{rank % 2}", 24, dp_desc),
            (f"tp{rank // 2}", tp_ms, tp_desc),
        ):
            rows.append((rank, name, "all_reduce", 4, ms * 4 * MS, ms * 4 * MS, 5, desc))
    steps = make_steps({rank: {"exposed_comm": 40} for rank in range(4)})
    return only(judge(steps, comm_ops=make_table(OPS, *rows)), "P503")


@pytest.mark.parametrize(
    ("tp_ms", "descs", "said", "cited"),
    [
        (16, ("tp", "dp"), "most of it all_reduce of the 2 dp groups", "24 ms a step on each rank"),
        (30, ("tp", "dp"), "most of it all_reduce of the 2 tp groups", "30 ms a step on each rank"),
        (
            16,
            ("undefined", ""),
            "the largest part all_reduce of group dp0",
            "24 ms a step on each of its 2 ranks",
        ),
    ],
)
def test_what_an_op_costs_is_told_for_the_ranks_that_have_it(
    tp_ms: int, descs: tuple[str, str], said: str, cited: str
) -> None:
    found = judge_groups(tp_ms, *descs)

    assert said in found.summary
    assert any(f"is exposed for {cited}" in one.text for one in found.because)


def test_waits_and_transfer_are_those_of_a_rank_and_not_of_a_group() -> None:
    # GIVEN two groups of two ranks in which they wait, and one of all four in which they do not
    members = {"dp0": (0, 2), "dp1": (1, 3), "all": range(4)}
    rows = [
        (rank, group, "all_reduce", 4, 96 * MS, 96 * MS, 5, "")
        for group, ranks in members.items()
        for rank in ranks
    ]

    report = judge(
        make_steps({rank: {"exposed_comm": 48} for rank in range(4)}),
        comm_ops=make_table(OPS, *rows),
        collective_groups=make_table(
            "op,group,bytes_to,exposed_ns,wait_ns,transfer_ns,busbw_gbps",
            ("all_reduce", "dp0", 64, 96 * MS, 80 * MS, 16 * MS, 88.0),
            ("all_reduce", "dp1", 64, 96 * MS, 80 * MS, 16 * MS, 88.0),
            ("all_reduce", "all", 64, 96 * MS, 0, 96 * MS, 88.0),
        ),
    )

    # Half of what a rank spends is in the group in which it waits.
    found = only(report, "P503")
    assert found.details["wait_share"] == pytest.approx(80 / 192, abs=1e-3)
    assert "waits for others" not in found.summary


@pytest.mark.parametrize(("ms", "severity"), [(2, None), (5, "note"), (10, "warning")])
def test_the_share_decides_about_the_severity(ms: int, severity: str | None) -> None:
    report = judge(make_steps({0: {"data_wait": ms}, 1: {"data_wait": ms}}))

    assert [item.severity for item in report.findings] == ([severity] if severity else [])
    assert report.verdict == ("slow" if severity == "warning" else "healthy")


def test_a_rank_that_waits_more_than_its_peers_is_named() -> None:
    shares = {rank: {"data_wait": 30 if rank == 3 else 1} for rank in range(8)}

    found = only(judge(make_steps(shares)), "P501")

    assert found.culprits.ranks == [3]
    assert found.measures["share_on_ranks"] == pytest.approx(0.3)
    assert found.measures["share_of_step"] == pytest.approx(0.37 / 8, abs=1e-4)
    assert found.severity is Severity.WARNING


def test_short_kernels_are_told_with_their_names_and_only_where_there_are_many() -> None:
    header = "rank,class,name,count,sum_ns,gap_ns"
    rows = [
        (0, "compute", "void at::native::add<float>(int)", 4000, 120 * MS, 8 * MS),
        (0, "compute", "mul", 800, 20 * MS, 0),
        (0, "comm", "ncclAll", 800, 90 * MS, 0),
    ]
    queued = make_idle({0: 0}, {0: 2})
    steps = make_steps({0: {"idle": 2}})

    found = only(judge(steps, short_kernels=make_table(header, *rows), idle_summary=queued), "P505")

    assert found.measures["share_of_step"] == pytest.approx(0.37)
    assert found.details["kernels"] == ["at::native::add", "mul"]
    assert found.details["count_per_step"] == 1200
    few = [(0, "compute", "add", 40, 140 * MS, 0)]
    assert judge(steps, short_kernels=make_table(header, *few)).verdict == "healthy"


def test_exposed_copies_are_told_only_as_far_as_they_are_pageable() -> None:
    header = "rank,device,kind,is_pageable,count,bytes,sum_ns,gbps_mean,gbps_max"
    rows = [
        (0, 0, "HtoD", 1, 4, 40 << 20, 60 * MS, 0.7, 1.0),
        (0, 0, "HtoD", 0, 4, 400 << 20, 20 * MS, 20.0, 24.0),
    ]

    found = only(
        judge(make_steps({0: {"exposed_memory": 20}}), copies=make_table(header, *rows)), "P507"
    )

    assert found.measures["share_of_step"] == pytest.approx(0.15)
    assert found.details["mib_per_step"] == 10
    assert found.because[0].artifact == "copies.csv"
    assert found.because[0].row == 0


def test_the_idle_time_after_a_sync_is_not_charged_to_launches() -> None:
    syncs = make_table(
        "rank,call,op,place,count,sum_ns,idle_after_ns,per_step",
        (0, "cudaStreamSynchronize", "aten::item", "train.py(7): step", 80, 90 * MS, 96 * MS, 20.0),
        (0, "cudaDeviceSynchronize", "", "", 4, 9 * MS, 4 * MS, 1.0),
    )
    steps = make_steps({0: {"host": 20, "idle": 14}})

    report = judge(steps, host_syncs=syncs, idle_summary=make_idle({0: 34}))

    found = {item.code: item for item in report.findings}
    assert found["P506"].measures["share_of_step"] == pytest.approx(0.25)
    assert found["P502"].measures["share_of_step"] == pytest.approx(0.09)
    assert found["P506"].where == [Place(0, "train.py", 7, "step")]
    assert found["P506"].details["per_step"] == 20
    assert report.findings[0] is found["P506"]


def test_without_work_of_devices_nothing_is_called_well() -> None:
    headers = (RankHeader(rank=0, events=5),)

    report = diagnose(Evidence(traces=TraceSummary(headers, {})))

    assert report.verdict == "inconclusive"
    assert {gap.what for gap in report.gaps} == {
        "work of devices in the traces", "profiler steps in the traces"
    }  # fmt: skip


def test_traces_without_events_say_so() -> None:
    report = diagnose(Evidence(traces=TraceSummary((RankHeader(rank=0),), {})))

    assert report.verdict == "inconclusive"
    assert "events in the traces" in {gap.what for gap in report.gaps}


PART = st.integers(min_value=0, max_value=12)
AMOUNT = st.integers(min_value=-1, max_value=500)


@given(
    st.lists(st.fixed_dictionaries(dict.fromkeys(CAUSES[1:], PART)), min_size=1, max_size=5),
    st.lists(AMOUNT, min_size=8, max_size=8),
    st.integers(min_value=0, max_value=4),
)
def test_no_time_is_charged_twice(
    parts: list[dict[str, int]], amounts: list[int], late: int
) -> None:
    ranks = range(len(parts))
    ms = [amount * MS for amount in amounts]
    tables = {
        "idle_summary": make_table(
            "rank,device,idle_ns,host_wait_ns,kernel_wait_ns,other_ns",
            *((rank, 0, ms[0], ms[1], ms[2], ms[3]) for rank in ranks),
        ),
        "host_syncs": make_table(
            "rank,call,op,place,count,sum_ns,idle_after_ns,per_step",
            *((rank, "cudaMemcpy", "", "", 4, ms[4], ms[4], 1.0) for rank in ranks),
        ),
        "compilations": make_table(
            "rank,step,name,count,sum_ns", *((rank, 12, "f", 1, ms[5]) for rank in ranks)
        ),
        "copies": make_table(
            "rank,device,kind,is_pageable,count,bytes,sum_ns",
            *((rank, 0, "HtoD", 1, 4, 99, ms[6]) for rank in ranks),
        ),
        "short_kernels": make_table(
            "rank,class,name,count,sum_ns,gap_ns",
            *((rank, "compute", "k", 900, ms[7], ms[3]) for rank in ranks),
        ),
        "straggler": make_table(
            LATE, (late, 0.1, max(ms[0], 1), 9, 10, 1e-9, "gpu", max(ms[2], 1), 9)
        ),
        "rank_blame": make_blame(late, max(amounts[0], 0), len(parts)),
    }

    report = judge(make_steps(dict(enumerate(parts))), **tables)

    assert sum(item.measures["share_of_step"] for item in report.findings) <= 1.0 + 1e-3
    assert all(item.measures["share_of_step"] >= 0 for item in report.findings)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("/home/ann/train.py(12): train_step", Place(1, "/home/ann/train.py", 12, "train_step")),
        ("train.py:7", Place(1, "train.py", 7, "")),
        ("train.py:7 in step", Place(1, "train.py", 7, "step")),
        ("nn.Module: Linear_0", None),
        ("", None),
    ],
)
def test_places_of_frames_are_read(text: str, place: Place | None) -> None:
    assert parse_place(text, 1) == place


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, F<int>>(int, F<int>)",
         "at::native::vectorized_elementwise_kernel"),
        ("void (anonymous namespace)::softmax_warp_forward<float>(float*)", "softmax_warp_forward"),
        ("x" * 90, "x" * 59 + "…"),
        ("<<", "<<"),
    ],
)  # fmt: skip
def test_names_of_kernels_are_cut_to_what_tells_them_apart(name: str, short: str) -> None:
    assert shorten(name) == short
