"""Op logs: what comes back of a sound one, of one in use, and of one that a stranger made."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.parse.ops.op_logs import (
    BOOT_NS,
    FORM,
    GROUP,
    HEADER_BYTES,
    MS,
    P2P,
    RECORD,
    SITE,
    THREAD,
    Ring,
)

from whystuck.evidence.ops.log import Ops
from whystuck.parse.errors import ParseError
from whystuck.parse.ops.clocks import choose_newest
from whystuck.parse.ops.header import LogFile
from whystuck.parse.ops.log import parse_op_log
from whystuck.parse.ops.table import merge_op_logs


def read(*rings: Ring) -> Ops:
    return merge_op_logs(
        LogFile(ring.rank, f"rank-{ring.rank}/ops.ring", parse_op_log(ring.data()))
        for ring in rings
    )


def make_ring(rank: int = 0, ops: int = 3, **more: int) -> Ring:
    ring = Ring(rank, **more)  # type: ignore[arg-type]
    ring.group()
    for _ in range(ops):
        ring.op()
    return ring


def test_ops_come_back_with_all_that_was_recorded() -> None:
    ring = make_ring(1, ops=1)
    group = ring.group("7", [3, 1], base=5, backend="nccl", generation=2, step=9)
    ring.op(
        "send", group=group, line=44, peer=0, tag=6, step=12, takes_ns=None, pending_ns=2000 * MS,
        started_ns=1500 * MS,
    )  # fmt: skip
    ops = read(ring)

    assert ops.rank.tolist() == [1, 1]
    assert ops.number.tolist() == [1, 2]
    named = ops.groups[int(ops.group[1])]
    assert (named.name, named.ranks, named.backend, named.base) == ("7", (3, 1), "nccl", 5)
    assert (named.generation, named.step) == (2, 9)
    form = ops.forms[int(ops.form[1])]
    assert (form.op, form.peer, form.tag, form.input_sizes) == ("send", 0, 6, ((4,),))
    assert (form.dtypes, form.input_bytes, form.device) == (("float32",), 16, "cpu")
    assert ops.sites[int(ops.site[1])].frames[0].line == 44
    assert ops.threads[int(ops.thread[1])].native_id == 101
    assert (int(ops.step[1]), int(ops.flags[1]) & P2P, int(ops.source[1])) == (12, P2P, -1)
    assert ops.enqueued_ns.tolist() == [BOOT_NS + 1010 * MS, BOOT_NS + 1020 * MS]
    assert ops.done_ns.tolist() == [BOOT_NS + 1011 * MS, 0]
    assert (ops.started_ns[1], ops.pending_ns[1]) == (BOOT_NS + 1500 * MS, BOOT_NS + 2000 * MS)
    log = ops.logs[0]
    assert (log.rank, log.host, log.pid, log.world_size) == (1, "n0", 7, 4)
    assert (log.dropped, log.torn, log.lost_values) == (0, 0, 0)


def test_ring_that_wrapped_tells_what_it_lost() -> None:
    ops = read(make_ring(ops=100))

    assert ops.number.tolist() == list(range(37, 101))
    assert (ops.logs[0].dropped, ops.logs[0].torn) == (36, 0)


def test_record_that_was_being_written_is_left_out_and_counted() -> None:
    ring = make_ring(ops=5)
    ring.records[2] = ring.records[2][:-8] + struct.pack("<Q", 0)
    ops = read(ring)

    assert ops.number.tolist() == [1, 2, 4, 5]
    assert ops.logs[0].torn == 1


def test_slot_of_a_writer_that_was_held_up_holds_nothing_of_this_round() -> None:
    ring = make_ring(ops=64 + 5)
    stale = RECORD.unpack(ring.records[2])
    ring.records[2] = RECORD.pack(3, *stale[1:-1], 3)
    ops = read(ring)

    assert ops.number.tolist() == [6, *range(7, 67), 68, 69]
    assert (ops.logs[0].dropped, ops.logs[0].torn) == (5, 1)


def test_file_that_ends_early_keeps_its_whole_records() -> None:
    data = make_ring(ops=5).data()
    log = parse_op_log(data[: HEADER_BYTES + (1 << 16) + 3 * RECORD.size + 5])

    assert log.columns["number"].tolist() == [1, 2, 3]


def test_wall_clock_that_runs_faster_is_followed() -> None:
    ring = make_ring(ops=2, begin_ns=0, end_ns=2_000_000 * MS, drift_ns=100 * MS)
    ring.op(at_ns=1_000_000 * MS)

    assert int(read(ring).enqueued_ns[2]) == BOOT_NS + 1_000_050 * MS


def test_wall_clock_that_was_set_counts_as_it_is_at_the_end() -> None:
    ring = make_ring(ops=1, drift_ns=3_600_000 * MS)

    assert int(read(ring).enqueued_ns[0]) == BOOT_NS + 3_600_000 * MS + 1010 * MS


def test_processes_of_one_host_share_its_clock() -> None:
    early = make_ring(0, ops=1, drift_ns=0)
    late = make_ring(1, ops=1, drift_ns=1, end_ns=500_000 * MS)
    other = replace(make_ring(2, ops=1), host="n1", offset_ns=BOOT_NS + 5 * MS)
    ops = read(early, late, other)

    assert ops.enqueued_ns[0] == ops.enqueued_ns[1]
    assert ops.enqueued_ns[2] == ops.enqueued_ns[0] + 5 * MS


def test_hosts_of_one_name_that_began_at_other_times_have_clocks_of_their_own() -> None:
    first = make_ring(0, ops=1)
    second = make_ring(1, ops=1, offset_ns=BOOT_NS - 900_000 * MS)
    ops = read(first, second)

    assert ops.enqueued_ns[0] - ops.enqueued_ns[1] == 900_000 * MS


def test_equal_groups_and_forms_of_ranks_are_one() -> None:
    ops = read(*(make_ring(rank) for rank in (2, 0, 1)))

    assert (len(ops.groups), len(ops.forms), len(ops.sites), len(ops.threads)) == (2, 2, 2, 4)
    assert ops.rank.tolist() == [0] * 3 + [1] * 3 + [2] * 3


def test_group_that_was_made_again_is_told_from_the_one_before() -> None:
    ring = make_ring()
    again = ring.group()
    ring.op(group=again, seq=1)
    ops = read(ring)

    assert [ops.groups[number].life for number in ops.group.tolist()] == [0, 0, 0, 1]


def test_newest_log_of_a_rank_is_chosen() -> None:
    old, new = (make_ring(end_ns=end_ns) for end_ns in (5_000 * MS, 9_000 * MS))
    files = [LogFile(0, name, parse_op_log(ring.data())) for name, ring in (("b", new), ("a", old))]
    kept, passed = choose_newest(files)

    assert ([file.artifact for file in kept], passed) == (["b"], [(0, "a")])


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[",
        b"\xff\xfe",
        b'{"name": 5}',
        b'{"ranks": [-1]}',
        b'{"ranks": [99999999999999999999]}',
        b'{"op": "x", "in": [[-4]], "tag": 1e400}',
        b'{"frames": [["f"]], "in": 3, "ranks": "0"}',
        b"[" * 10_000,
    ],
)
@pytest.mark.parametrize("kind", [GROUP, FORM, SITE, THREAD])
def test_value_that_is_damaged_is_unknown_and_keeps_its_number(kind: int, payload: bytes) -> None:
    ring = Ring()
    ring.value(kind, payload)
    ring.group()
    ring.op(group=ring.counts[GROUP])
    ops = read(ring)

    assert ops.groups[int(ops.group[0])].name == "0"
    assert ops.forms[int(ops.form[0])].op == "all_reduce"
    assert ops.sites[int(ops.site[0])].frames[0].line == 10


def test_numbers_beyond_the_values_are_unknown() -> None:
    ring = make_ring(ops=1)
    record = list(RECORD.unpack(ring.records[0]))
    record[7:11] = [4_000_000_000, 9, 60_000, 60_000]
    ring.records[0] = RECORD.pack(*record)
    ops = read(ring)

    assert [int(ops.form[0]), int(ops.site[0]), int(ops.group[0]), int(ops.thread[0])] == [0] * 4


def test_times_out_of_range_are_unknown() -> None:
    ring = make_ring(ops=1)
    record = list(RECORD.unpack(ring.records[0]))
    record[1:6] = [-5, (1 << 63) - 1, -(1 << 63), 1 << 61, 7]
    ring.records[0] = RECORD.pack(*record)
    ops = read(ring)

    assert [ops.enqueued_ns[0], ops.returned_ns[0], ops.started_ns[0], ops.pending_ns[0]] == [0] * 4


def test_longer_records_of_a_newer_version_are_read() -> None:
    ring = make_ring(ops=5)
    data = bytearray(ring.data())
    at = HEADER_BYTES + (1 << 16)
    records = [data[at + 96 * slot : at + 96 * (slot + 1)] for slot in range(64)]
    struct.pack_into("<I", data, 12, 128)
    longer = bytes(data[:at]) + b"".join(bytes(record) + bytes(32) for record in records)

    assert parse_op_log(longer).columns["number"].tolist() == [1, 2, 3, 4, 5]


HEADER_WORDS = st.sampled_from(
    [0, 1, 95, 96, 97, 4096, 1 << 16, (1 << 31) - 1, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
)


@given(st.lists(st.tuples(st.integers(0, 14), HEADER_WORDS), min_size=1, max_size=4))
def test_header_of_any_numbers_is_read_or_refused(changes: list[tuple[int, int]]) -> None:
    data = bytearray(make_ring().data())
    for word, value in changes:
        if word < 2:
            struct.pack_into("<I", data, 8 + 4 * word, value & 0xFFFFFFFF)
        else:
            struct.pack_into("<Q", data, 8 * word, value)
    check(bytes(data))


@given(st.lists(st.tuples(st.integers(0, 60_000), st.binary(min_size=1, max_size=24)), max_size=8))
def test_bytes_of_any_kind_are_read_or_refused(changes: list[tuple[int, bytes]]) -> None:
    ring = make_ring(ops=30, values_bytes=2048)
    data = bytearray(ring.data())
    for at, piece in changes:
        start = at % len(data)
        data[start : start + len(piece)] = piece
    check(bytes(data))


@given(st.integers(0, 12_000))
def test_file_of_any_length_is_read_or_refused(length: int) -> None:
    check(make_ring(values_bytes=2048).data()[:length])


def check(data: bytes) -> None:
    try:
        log = parse_op_log(data)
    except ParseError:
        return
    ops = merge_op_logs([LogFile(0, "a", log), LogFile(1, "b", log)])
    assert len(ops) == 2 * len(log)
    assert (ops.enqueued_ns >= 0).all()
    assert (np.diff(log.columns["number"]) > 0).all()
    assert log.torn >= 0
    assert log.dropped >= 0
    for numbers, values in (
        (ops.group, ops.groups),
        (ops.form, ops.forms),
        (ops.site, ops.sites),
        (ops.thread, ops.threads),
    ):
        assert not len(numbers) or 0 <= numbers.min() <= numbers.max() < len(values)


@pytest.mark.parametrize(
    ("looked_ns", "seen_ms"), [(0, 60_000), (50_000 * MS, 50_000), (70_000 * MS, 60_000)]
)
def test_a_log_tells_all_until_the_last_look_and_no_longer(looked_ns: int, seen_ms: int) -> None:
    ring = make_ring()
    ring.end_ns = BOOT_NS + 60_000 * MS
    data = bytearray(ring.data())
    struct.pack_into("<q", data, 120, looked_ns and BOOT_NS + looked_ns)

    log = parse_op_log(bytes(data))

    assert log.seen_ns == BOOT_NS + seen_ms * MS
    assert log.last_clock.monotonic_ns == BOOT_NS + 60_000 * MS


def test_sizes_that_one_rank_could_not_tell_are_unknown_of_all() -> None:
    rings = [make_ring(rank, ops=1) for rank in range(2)]
    unsized: dict[str, Any] = {"in": [], "out": [], "dtypes": [], "in_bytes": -1, "out_bytes": -1}
    rings[0].op(**unsized)
    rings[1].op()
    rings[0].op("send", peer=1, **unsized)
    rings[1].op("recv", peer=0)
    ops = read(*rings)
    assert {form.input_bytes for form in ops.forms[1:]} == {-1}
    assert {(form.input_sizes, form.dtypes) for form in ops.forms} == {((), ())}


def test_members_told_as_runs_are_expanded_within_limits() -> None:
    ring = Ring()
    ring.group("0", [], runs=[[0, 2048, 2], [1, 3, -1 + 3]])
    for runs in ([[0, 1 << 19, 1]], [[0, 1 << 17, 1]] * 3, [[5, 7, -1]], [[-1, 2, 1]]):
        ring.group("hostile", [], runs=runs)
    ops = read(ring)
    groups = parse_op_log(ring.data()).groups
    assert groups[1].ranks == (*range(0, 4096, 2), 1, 3, 5)
    assert [group.ranks for group in groups[2:]] == [()] * 4
    assert ops.logs[0].lost_values == 4


def test_values_that_no_op_uses_can_be_passed_over() -> None:
    ring = Ring()
    for name in ("1", "2", "1", "3", "1"):
        ring.group(name, [0, 1])
    ring.value(1, b"damaged")
    ring.op("all_reduce")
    ring.op("broadcast")
    ring.op("broadcast", group=ring.group("1", [0, 1]))
    every = parse_op_log(ring.data())
    used = parse_op_log(ring.data(), newest=1, only_used=True)
    assert used.columns["group"].tolist() == every.columns["group"][-1:].tolist()
    (number,) = used.columns["group"].tolist()
    assert used.groups[number] == every.groups[number]
    assert used.groups[number].life == 3
    assert {group.name for group in used.groups} == {"", "1"}
    (form,) = used.columns["form"].tolist()
    assert used.forms[form] == every.forms[form]
    assert {one.op for one in used.forms} == {"", "broadcast"}
    assert (len(used.groups), used.lost_values) == (len(every.groups), every.lost_values) == (8, 1)
