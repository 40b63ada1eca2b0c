"""Dumps of recorders that are not the one of torch's own backends, and of odd ops."""

from __future__ import annotations

import pytest
from tests.parse.dumps.builders import as_json, as_pickle, make_config, make_dump, make_entry

from whystuck.evidence.ops.collectives import NO_PEER
from whystuck.parse.dumps.flight_recorder import parse_flight_recorder
from whystuck.parse.dumps.merge import merge_dumps
from whystuck.parse.errors import ParseError


def comms_entry(number: int, group: str, op: str) -> dict[str, object]:
    """Make an entry of torchcomms, which counts over all groups and knows no p2p."""
    return make_entry(
        record_id=number,
        collective_seq_id=number,
        op_id=number,
        process_group=[f"{group}_name", group],
        profiling_name=f"{group}:{op}",
    )


def test_torchcomms_ops_are_counted_in_their_groups() -> None:
    ops = [("a", "all_reduce"), ("b", "send"), ("b", "barrier"), ("a", "all_reduce")]
    entries = [comms_entry(number, *op) for number, op in enumerate(ops)]
    config = make_config(a_name=("a", [0, 1]), b_name=("b", [0]))
    data = as_json(make_dump(entries, pg_config=config, pg_status={}))
    dump = parse_flight_recorder(data, rank=0, artifact="0")

    assert dump.columns.seq.tolist() == [1, 1, 1, 2]
    assert dump.columns.is_p2p.tolist() == [False, True, False, False]
    assert {group.members for group in merge_dumps([dump]).groups} == {(0, 1), (0,)}


def test_torchcomms_ops_of_one_group_keep_their_numbers() -> None:
    entries = [comms_entry(number, "a", "all_reduce") for number in (7, 9)]
    dump = parse_flight_recorder(as_json(make_dump(entries)), rank=0, artifact="0")

    assert dump.columns.seq.tolist() == [7, 9]


def test_torchcomms_ops_without_the_older_ones_are_refused() -> None:
    entries = [comms_entry(number, group, "barrier") for number, group in ((7, "a"), (8, "b"))]

    with pytest.raises(ParseError, match="over all groups"):
        parse_flight_recorder(as_json(make_dump(entries)), rank=0, artifact="0")


def test_hooks_for_any_backend_record_p2p_without_peers_and_count_otherwise() -> None:
    entries = [
        make_entry(profiling_name="c10d:send", p2p_seq_id=4, is_p2p=True, retired=False),
        make_entry(profiling_name="gloo:recv", p2p_seq_id=5, process_group=("1", "x"), pg_id=1),
    ]
    counters = {"0": {"last_enqueued_collective": 77}, "1": {"last_enqueued_collective": 5}}
    data = as_pickle(make_dump(entries, pg_status=counters))
    table = merge_dumps([parse_flight_recorder(data, rank=0, artifact="0")])

    assert table.is_p2p.tolist() == [True, True]
    assert table.seq.tolist() == [4, 5]
    assert table.done.tolist() == [False, True]
    assert [(form.backend, form.label) for form in table.forms] == [
        ("c10d", "send"),
        ("gloo", "recv"),
    ]
    assert {form.source for form in table.forms} == {NO_PEER}
    assert table.statuses.enqueued.tolist() == [5]


def test_unknown_ops_and_backends_are_kept_as_they_are() -> None:
    names = ["newlib:all_magic", "no colon", "hccl:send 1->2", "nccl:recv 1<-x"]
    entries = [make_entry(seq=seq, profiling_name=name) for seq, name in enumerate(names)]
    dump = parse_flight_recorder(as_pickle(make_dump(entries)), rank=0, artifact="0")

    assert [(form.backend, form.label) for form in dump.forms] == [
        ("newlib", "all_magic"),
        ("", "no colon"),
        ("hccl", "send 1->2"),
        ("nccl", "recv 1<-x"),
    ]


def test_versions_may_differ_between_ranks() -> None:
    old = make_entry("barrier", 3)
    for key in ("thread_name", "thread_id", "frames", "timeout_ms", "retired"):
        del old[key]
    new = make_entry("barrier", 3)
    table = merge_dumps(
        [
            parse_flight_recorder(
                as_pickle(make_dump([entry], version=version)), rank=rank, artifact=str(rank)
            )
            for rank, (version, entry) in enumerate((("2.2", old), ("2.10", new)))
        ]
    )

    assert [dump.version for dump in table.dumps] == ["2.2", "2.10"]
    assert table.form[0] == table.form[1]
    assert table.done.tolist() == [False, True]
    assert table.timeout_ms.tolist() == [0, 1_800_000]


def test_zero_and_null_times_are_unknown() -> None:
    entries = [
        make_entry(time_created_ns=value, time_discovered_started_ns=value) for value in (0, None)
    ]
    columns = parse_flight_recorder(as_json(make_dump(entries)), rank=0, artifact="0").columns

    assert columns.created_ns.tolist() == [0, 0]
    assert columns.started.tolist() == [False, False]
