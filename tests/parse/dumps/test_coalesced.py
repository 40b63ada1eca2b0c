from __future__ import annotations

import pytest
from tests.parse.dumps.builders import Entry, as_pickle, make_dump, make_entry, make_p2p

from whystuck.parse.dumps.fast.columns import Columns
from whystuck.parse.dumps.flight_recorder import parse_flight_recorder

NEVER: dict[str, object] = {"retired": False, "state": "scheduled"}
OVER: dict[str, object] = {
    "retired": True,
    "state": "completed",
    "time_discovered_started_ns": 5,
    "time_discovered_completed_ns": 9,
}


def read(entries: list[Entry], version: str) -> Columns:
    data = as_pickle(make_dump(entries, version=version))
    return parse_flight_recorder(data, rank=0, artifact="0").columns


def p2p_batch(seq: int, record: int, **end: object) -> list[Entry]:
    return [
        make_p2p("send 0->1", seq, record),
        make_p2p("recv 0<-1", seq, record + 1),
        make_p2p("coalesced", seq, record + 2, op_id=record + 1, **end),
    ]


@pytest.mark.parametrize("version", ["2.4", "2.10"])
def test_ops_of_a_p2p_batch_are_over_when_its_closing_entry_is(version: str) -> None:
    columns = read(p2p_batch(1, 0, **OVER) + p2p_batch(2, 3), version)

    assert columns.done.tolist() == [True] * 3 + [False] * 3
    assert columns.started.tolist() == [True] * 3 + [False] * 3
    assert columns.started_ns.tolist() == [5] * 3 + [0] * 3
    assert columns.completed_ns.tolist() == [9] * 3 + [0] * 3


def test_single_ops_keep_their_own_state() -> None:
    entries = [
        make_p2p("send 0->1", 1, 0, **OVER),
        make_p2p("send 0->1", 2, 1),
        make_p2p("recv 0<-1", 3, 2, **OVER),
    ]

    assert read(entries, "2.9").done.tolist() == [True, False, True]


def test_each_op_of_a_batch_of_collectives_is_over_with_its_end() -> None:
    entries = [
        make_entry("broadcast", 7, record_id=0, profiling_name="nccl:broadcast", **NEVER),
        make_entry("broadcast", 7, record_id=1, profiling_name="nccl:broadcast", **NEVER),
        make_entry("x", 7, record_id=2, profiling_name="nccl:ALLGATHER_coalesced", **OVER),
        make_entry("all_reduce", 8, record_id=3, profiling_name="nccl:all_reduce", **NEVER),
    ]

    assert read(entries, "2.7").done.tolist() == [True, True, True, False]


def test_before_2_7_only_the_end_of_a_batch_of_collectives_is_recorded() -> None:
    entries = [make_entry("x", 7, profiling_name="nccl:coalesced", **OVER)]

    assert read(entries, "2.4").done.tolist() == [True]


def test_groups_and_kinds_of_one_number_are_not_mixed() -> None:
    entries = [
        make_p2p("send 0->1", 1, 0),
        make_entry("all_reduce", 1, record_id=1, **NEVER),
        make_p2p("coalesced", 1, 2, process_group=("1", "other"), **OVER),
    ]

    assert read(entries, "2.10").done.tolist() == [False, False, True]


def test_dump_of_active_ops_leaves_out_the_end_of_a_batch_that_is_over() -> None:
    over = p2p_batch(1, 10)[:2]
    active = p2p_batch(2, 20)

    assert read(over + active, "2.9").done.tolist() == [True, True, False, False, False]
    # Nothing was recorded after these two, as far as the dump tells.
    assert read(over, "2.9").done.tolist() == [False, False]


def test_a_batch_may_hold_a_single_op() -> None:
    single = [make_p2p("recv 0<-1", 1, 10)]
    active = p2p_batch(2, 20)

    assert read(single + active, "2.9").done.tolist() == [True, False, False, False]
    # In a job that does not batch, an op without an end of its own is pending.
    alone = [make_p2p("recv 0<-1", 1, 10), make_p2p("send 0->1", 4, 20)]
    assert read(alone, "2.9").done.tolist() == [False, False]


def test_the_counter_tells_that_the_last_batch_is_over() -> None:
    entries = p2p_batch(3, 10)[:2]
    status = {"0": {"last_enqueued_collective": 3, "last_completed_collective": 3}}
    data = as_pickle(make_dump(entries, version="2.9", pg_status=status))

    done = parse_flight_recorder(data, rank=0, artifact="0").columns.done
    assert done.tolist() == [True, True]
