"""Times of ops on devices from NCCL's inspector, in the table of what communication costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.op_scenes import Logged
from tests.parse.ops.nccl_logs import make_log, make_op, make_transfer
from tests.parse.ops.op_logs import NO_END

from whystuck.diagnose.algorithms.times.communication import measure_communication
from whystuck.diagnose.algorithms.times.nccl_times import add_nccl_times
from whystuck.evidence.sections import Communication, CommunicationRow
from whystuck.parse.ops.nccl_inspector import parse_nccl_inspector
from whystuck.pipeline import diagnose_paths
from whystuck.report.communication import render_communication

MIB = 1 << 20


def run_on_devices(op: str = "all_reduce", calls: int = 12, size: int = MIB) -> Logged:
    """Run an op of two ranks on devices, whose ends no op log has."""
    logged = Logged(2)
    for ring in logged.rings.values():
        group = ring.group("1", backend="nccl")
        for _ in range(calls):
            ring.op(op, group=group, flags=NO_END, device="cuda", takes_ns=None,
                    in_bytes=size, out_bytes=size)  # fmt: skip
    return logged


def tell(logged: Logged, *logs: bytes) -> Communication:
    """Return what op logs and these logs of the inspector tell together."""
    ops = logged.evidence().ops
    told = [parse_nccl_inspector(data) for data in logs]
    return add_nccl_times(measure_communication(ops), told, ops)


def log_of(logged: Logged, rank: int, *ops: dict[str, Any], **more: Any) -> bytes:
    """Make the log of a rank, with the process that its op log names."""
    own = next(log for log in logged.evidence().ops.logs if log.rank == rank)
    return make_log(*ops, rank=rank, host=own.host, pid=own.pid, **more)


def only(communication: Communication) -> CommunicationRow:
    (row,) = communication.rows
    return row


@pytest.mark.parametrize("version", ["v4.0", "v4.3"])
def test_row_without_times_has_those_of_the_inspector(version: str) -> None:
    logged = run_on_devices()
    early = [make_op(number=one, time_us=900) for one in range(12)]
    late = [make_op(number=one, time_us=500) for one in range(12)]
    row = only(
        tell(
            logged,
            log_of(logged, 0, *early, version=version),
            log_of(logged, 1, *late, version=version),
        )
    )

    assert (row.group, row.calls, row.times_by) == ("1", 12, "nccl inspector")
    # The rank that comes last waits for nobody.
    assert (row.median_ms, row.transfer_ms) == (0.7, 0.5)
    assert row.algbw_gbps == row.busbw_gbps == pytest.approx(MIB / 500e3, rel=1e-3)


def test_logs_of_some_ranks_tell_no_transfer() -> None:
    logged = run_on_devices()
    row = only(tell(logged, log_of(logged, 0, make_op())))

    assert (row.median_ms, row.transfer_ms, row.algbw_gbps) == (0.5, None, None)


def test_same_file_twice_counts_once() -> None:
    logged = run_on_devices()
    data = log_of(logged, 0, make_op())

    assert tell(logged, data, data) == tell(logged, data)


def test_names_of_c10d_and_of_nccl_meet() -> None:
    logged = run_on_devices("all_gather_base", size=2 * MIB)
    row = only(tell(logged, log_of(logged, 0, make_op("AllGather", size=MIB))))

    assert (row.op, row.median_ms) == ("all_gather_base", 0.5)


def test_two_kinds_that_are_one_in_nccl_stay_apart() -> None:
    logged = run_on_devices("all_gather")
    for ring in logged.rings.values():
        ring.op("all_gather_base", group=ring.group("1", backend="nccl"), flags=NO_END,
                device="cuda", takes_ns=None, in_bytes=MIB, out_bytes=MIB)  # fmt: skip
    communication = tell(logged, log_of(logged, 0, make_op("AllGather", size=MIB // 2)))

    assert [row.times_by for row in communication.rows] == ["", "", "nccl inspector"]


def test_processes_that_nobody_knows_make_rows_of_their_own() -> None:
    logged = run_on_devices()
    data = make_log(make_op(), host="elsewhere", pid=5, name="0xabc")
    known, own = tell(logged, data).rows

    assert (known.median_ms, known.times_by) == (None, "")
    assert (own.group, own.ranks, own.median_ms) == ("0xabc", 2, 0.5)


def test_two_communicators_of_one_group_fill_nothing() -> None:
    logged = run_on_devices()
    logs = [log_of(logged, 0, make_op(), name=name) for name in ("0x1", "0x2")]

    assert [row.times_by for row in tell(logged, *logs).rows][:1] == [""]


def test_messages_have_times_and_no_bandwidth() -> None:
    row = only(tell(Logged(2), make_log(make_transfer(), make_transfer(number=2))))

    assert (row.op, row.calls, row.bytes) == ("send", 2, 8192)
    assert (row.median_ms, row.transfer_ms) == (0.04, None)


def test_times_of_the_host_are_unknown() -> None:
    logged = run_on_devices()
    row = only(tell(logged, log_of(logged, 0, make_op(coll_timing_source="collective_cpu"))))

    assert (row.median_ms, row.times_by) == (None, "")


def test_times_of_op_logs_stay() -> None:
    logged = Logged(2).steps(12)
    before = measure_communication(logged.evidence().ops)

    assert tell(logged, log_of(logged, 0, make_op(size=64))).rows[0] == before.rows[0]


def test_table_says_which_times_are_unknown_and_whose_the_others_are() -> None:
    logged = run_on_devices()
    for ring in logged.rings.values():
        ring.op("broadcast", group=ring.group("1", backend="nccl"), flags=NO_END, device="cuda",
                takes_ns=None, in_bytes=64, out_bytes=64)  # fmt: skip
    text = "\n".join(render_communication(tell(logged, log_of(logged, 0, make_op()))))

    assert "times are unknown, as no end was seen: broadcast of 1" in text
    assert "times of the kernels alone, by NCCL's inspector: all_reduce of 1" in text


def test_logs_alone_give_a_table(tmp_path: Path) -> None:
    for rank in range(2):
        ops = [make_op(number=one, time_us=500 + 400 * rank) for one in range(4)]
        (tmp_path / f"n0-pid{rank}.log").write_bytes(make_log(*ops, rank=rank))
    report = diagnose_paths([tmp_path])

    assert only(report.communication).transfer_ms == 0.5
    assert next(render_communication(report.communication)) == "communication, by NCCL's inspector"


def test_figures_of_any_size_are_only_figures() -> None:
    huge = make_log(make_op("AllGather", size=1 << 61, time_us=1e15), make_op(time_us=0), size=1)
    rows = tell(Logged(2), huge).rows

    assert {row.op for row in rows} == {"all_gather", "all_reduce"}
    assert rows[0].bytes <= 1 << 61
