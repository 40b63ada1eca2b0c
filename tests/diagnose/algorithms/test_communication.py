"""What ops cost: figures that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.diagnose.op_scenes import Logged
from tests.parse.ops.op_logs import ASYNC, BOOT_NS, MS, NO_END, Ring

from whystuck.diagnose.algorithms.times.communication import measure_communication
from whystuck.evidence.ops.names import find_bus_factor
from whystuck.evidence.sections import Communication, CommunicationRow
from whystuck.parse.ops.header import LogFile
from whystuck.parse.ops.log import parse_op_log
from whystuck.parse.ops.table import merge_op_logs
from whystuck.report.communication import lay_out_communication, render_communication

MIB = 1 << 20
BIG: dict[str, Any] = {"in": [[MIB]], "out": [[MIB]], "in_bytes": 4 * MIB, "out_bytes": 4 * MIB}


def measure(logged: Logged) -> Communication:
    return measure_communication(logged.evidence().ops)


def run(
    logged: Logged,
    calls: int = 20,
    op: str = "all_reduce",
    late: dict[int, int] | None = None,
    **more: Any,
) -> Logged:
    """Call an op every 100 ms; it ends 8 ms after the last rank comes, known to 2 ms."""
    lag = late or {}
    last_ns = max(lag.values(), default=0)
    for call in range(calls):
        start_ns = (2000 + 100 * call) * MS
        for rank in range(logged.world):
            mine_ns = start_ns + lag.get(rank, 0)
            end_ns = start_ns + last_ns + 9 * MS
            logged.op(
                [rank],
                op,
                at_ns=mine_ns,
                takes_ns=end_ns - mine_ns,
                pending_ns=end_ns - 2 * MS,
                **(BIG | more),
            )
    return logged


def only(communication: Communication) -> CommunicationRow:
    (row,) = communication.rows
    return row


def test_figures_of_an_all_reduce() -> None:
    row = only(measure(run(Logged())))

    assert (row.op, row.group, row.ranks, row.calls) == ("all_reduce", "0", 4, 20)
    assert (row.bytes_from, row.bytes_to, row.bytes) == (4 * MIB, 16 * MIB, 80 * MIB)
    assert (row.median_ms, row.p99_ms, row.transfer_ms, row.error_ms) == (8.0, 8.0, 8.0, 1.0)
    assert row.algbw_gbps == pytest.approx(4 * MIB / 8e6, rel=1e-3)
    assert row.busbw_gbps == pytest.approx(4 * MIB / 8e6 * 1.5, rel=1e-3)


def test_wait_for_a_late_rank_is_no_transfer() -> None:
    row = only(measure(run(Logged(), late={2: 20 * MS})))

    assert (row.median_ms, row.transfer_ms) == (28.0, 8.0)
    assert (row.last_rank, row.last_share, row.late_ms) == (2, 1.0, 20.0)


def test_rank_that_comes_last_by_turns_is_not_named() -> None:
    logged = Logged()
    for turn in range(4):
        run(logged, calls=1, late={turn: 20 * MS})
    for turn in range(20):
        run(logged, calls=1, late={turn % 4: 20 * MS})

    assert only(measure(logged)).last_rank == -1


def test_exposed_share_is_the_time_in_synchronous_ops() -> None:
    communication = measure(run(Logged(), late={2: 20 * MS}))

    assert communication.span_s == pytest.approx(1.93, abs=0.03)
    # 28 of 100 ms, on the late rank 8.
    assert communication.exposed_share == pytest.approx(0.29, abs=0.01)
    assert communication.exposed_most == communication.exposed_share
    assert only(communication).exposed_share == pytest.approx(0.24, abs=0.01)


def test_waits_of_asynchronous_ops_are_not_known() -> None:
    communication = measure(run(Logged(), flags=ASYNC))

    assert (only(communication).async_share, communication.exposed_share) == (1.0, 0.0)


def test_end_within_the_error_gives_no_bandwidth() -> None:
    logged = Logged().steps(20)
    row = only(measure(logged))

    assert (row.transfer_ms, row.busbw_gbps) != (None, None)
    assert row.busbw_gbps is None


def test_classes_of_sizes_are_apart() -> None:
    logged = run(run(Logged()), in_bytes=100, out_bytes=100)

    assert sorted((row.bytes_from, row.calls) for row in measure(logged).rows) == [
        (64, 20),
        (4 * MIB, 20),
    ]


def test_op_without_data_has_no_bandwidth() -> None:
    row = only(measure(run(Logged(), op="barrier", in_bytes=0, out_bytes=0)))

    assert (row.bytes_from, row.bytes_to, row.algbw_gbps) == (0, 1, None)


@pytest.mark.parametrize(
    ("op", "given", "taken", "size"),
    [
        ("all_gather", 10, 40, 40),
        ("reduce_scatter_base", 40, 10, 40),
        ("all_to_all_base", 40, 40, 40),
        ("gather", 10, 0, 40),
        ("scatter", 0, 10, 40),
        ("broadcast", 40, 40, 40),
    ],
)
def test_size_is_that_of_the_whole_buffer(op: str, given: int, taken: int, size: int) -> None:
    logged = run(Logged(), calls=1, op=op, in_bytes=given, out_bytes=taken)

    assert only(measure(logged)).bytes == size


@pytest.mark.parametrize(
    ("op", "factor"),
    [
        ("all_reduce", 1.75),
        ("all_reduce_coalesced", 1.75),
        ("all_gather_base", 0.875),
        ("reduce_scatter", 0.875),
        ("all_to_all_base", 0.875),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("send", 1.0),
        ("barrier", None),
    ],
)
def test_factors_are_those_of_nccl_tests(op: str, factor: float | None) -> None:
    assert find_bus_factor(op, 8) == factor


def make_hosts(offset_ns: int) -> list[Ring]:
    rings = []
    for rank in range(2):
        ring = Ring(rank, 2, host=f"n{rank}", offset_ns=BOOT_NS + rank * offset_ns)
        ring.group()
        rings.append(ring)
    return rings


@pytest.mark.parametrize("offset_ms", [0, 300, -40])
def test_clocks_of_hosts_are_compared_by_the_ends_of_ops(offset_ms: int) -> None:
    rings = make_hosts(offset_ms * MS)
    for call in range(20):
        start_ns = (2000 + 100 * call) * MS
        for rank, lag in enumerate((0, 20 * MS)):
            rings[rank].op(at_ns=start_ns + lag, takes_ns=30 * MS - lag, **BIG)
    files = [LogFile(ring.rank, "a", parse_op_log(ring.data())) for ring in rings]
    communication = measure_communication(merge_op_logs(files))
    row = only(communication)

    assert communication.clock_error_ms == pytest.approx(0, abs=0.01)
    assert row.last_rank == 1
    assert row.late_ms == pytest.approx(20, abs=0.01)
    # The end lies between the last arrival and the first look at it.
    assert (row.transfer_ms, row.error_ms) == (5.0, 5.0)


def test_clocks_that_nothing_compares_name_nobody() -> None:
    rings = make_hosts(0)
    for ring in rings:
        for _ in range(20):
            ring.op("broadcast", **BIG)
    files = [LogFile(ring.rank, "a", parse_op_log(ring.data())) for ring in rings]
    communication = measure_communication(merge_op_logs(files))

    assert communication.clock_error_ms is None
    assert (only(communication).last_rank, only(communication).transfer_ms) == (-1, None)


def test_transfer_of_a_message_begins_when_both_ranks_have_come() -> None:
    logged = Logged(2)
    for call in range(5):
        start_ns = (2000 + 100 * call) * MS
        logged.op([0], "send", peer=1, at_ns=start_ns + 30 * MS, takes_ns=MS, **BIG)
        logged.op([1], "recv", peer=0, at_ns=start_ns, takes_ns=41 * MS,
                  pending_ns=start_ns + 39 * MS, **BIG)  # fmt: skip
    recv = next(row for row in measure(logged).rows if row.op == "recv")

    assert (recv.calls, recv.median_ms, recv.transfer_ms) == (5, 40.0, 10.0)
    assert recv.busbw_gbps == recv.algbw_gbps == pytest.approx(4 * MIB / 10e6, rel=1e-3)


def test_device_that_does_not_tell_when_it_began_has_no_transfer_time() -> None:
    logged = Logged(2)
    for ring in logged.rings.values():
        group = ring.group("1", backend="nccl")
        for _ in range(12):
            ring.op(group=group, flags=ASYNC, device="cuda", **BIG)
    row = only(measure(logged))

    assert (row.transfer_ms, row.last_rank) == (None, -1)
    assert row.median_ms is not None


def test_ops_on_devices_whose_ends_nobody_saw_have_no_times() -> None:
    logged = Logged(2)
    for ring in logged.rings.values():
        group = ring.group("1", backend="nccl")
        for _ in range(12):
            ring.op(group=group, flags=NO_END, device="cuda", takes_ns=None, **BIG)
    row = only(measure(logged))

    assert (row.calls, row.median_ms, row.transfer_ms, row.busbw_gbps) == (12, None, None, None)


def test_waits_in_ops_whose_ends_nobody_saw_are_not_called_none() -> None:
    logged = Logged(2)
    for ring in logged.rings.values():
        group = ring.group("1", backend="nccl")
        for _ in range(12):
            ring.op(group=group, flags=NO_END, device="cuda", takes_ns=None, **BIG)
    lines = list(render_communication(measure(logged)))

    assert lines[0].endswith(" s, how long ranks wait is unknown")
    assert lines[2].split()[-2:] == ["-", "-"]
    assert "0%" not in "".join(lines)


def test_op_that_never_ended_has_no_times() -> None:
    row = only(measure(Logged(2).waits([0, 1])))

    assert (row.median_ms, row.p99_ms, row.transfer_ms) == (None, None, None)


def test_no_logs_give_no_figures() -> None:
    assert measure_communication(merge_op_logs([])) == Communication()


def test_table_has_a_line_for_each_kind_of_op() -> None:
    communication = measure(run(Logged(), late={2: 20 * MS}))
    lines = list(render_communication(communication))

    assert lines[0] == "communication: in 1.909 s, ranks wait 28% in synchronous ops"
    assert lines[1].split() == [
        "op", "group", "size", "calls", "median", "p99", "transfer", "GB/s", "waits", "last",
    ]  # fmt: skip
    assert lines[2].split() == [
        "all_reduce", "0", ">=4", "MiB", "20", "28", "28", "8", "0.786", "23.3%", "rank", "2",
        "100%",
    ]  # fmt: skip
    assert max(len(line) for line in lines) <= 95


def test_long_table_is_cut_and_says_so() -> None:
    row = CommunicationRow(
        op="send", group="\x1b[31m0", ranks=2, bytes_from=4, bytes_to=16, calls=1, bytes=4
    )
    many = Communication(rows=[replace_group(row, f"\x1b[31m{n}") for n in range(14)], dropped=7)
    table = lay_out_communication(many)

    assert table is not None
    assert len(table.rows) == 10
    assert any("4 more kinds" in note for note in table.notes)
    assert any("7 older ops" in note for note in table.notes)
    assert "\x1b" not in "".join(render_communication(many))


def replace_group(row: CommunicationRow, group: str) -> CommunicationRow:
    from msgspec.structs import replace as replace_struct

    return replace_struct(row, group=group)


def test_log_of_a_stranger_does_no_harm() -> None:
    ops = Logged(2).steps(3).evidence().ops
    huge = replace(ops.forms[1], input_bytes=(1 << 61) - 1, output_bytes=(1 << 61) - 1)

    measure_communication(replace(ops, forms=(ops.forms[0], huge)))
