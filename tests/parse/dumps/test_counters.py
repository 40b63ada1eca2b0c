from __future__ import annotations

from typing import Any

from tests.parse.dumps.builders import Entry, as_json, as_pickle, make_config, make_dump, make_entry

from whystuck.evidence.ops.collectives import Collectives
from whystuck.parse.dumps.flight_recorder import RankDump, parse_flight_recorder
from whystuck.parse.dumps.merge import merge_dumps


def status(enqueued: int) -> dict[str, int]:
    return {
        "last_enqueued_collective": enqueued,
        "last_started_collective": -1,
        "last_completed_collective": enqueued - 1,
    }


def read(rank: int, entries: list[Entry], **changes: Any) -> RankDump:
    data = as_pickle(make_dump(entries, **changes))
    return parse_flight_recorder(data, rank=rank, artifact=f"_dump_{rank}")


def rows(table: Collectives) -> list[tuple[int, str, int, int]]:
    found = table.statuses
    return [
        (int(rank), table.groups[group].name, int(enqueued), int(completed))
        for rank, group, enqueued, completed in zip(
            found.rank, found.group, found.enqueued, found.completed, strict=True
        )
    ]


def test_entries_tell_which_group_a_counter_counts() -> None:
    entry = make_entry(pg_id=3, process_group=("7", "TP"))
    table = merge_dumps([read(0, [entry], pg_status={"3": status(5), "4": status(9)})])

    assert rows(table) == [(0, "7", 5, 4)]


def test_numbers_of_json_are_text() -> None:
    entry = make_entry(process_group=["0", "default_pg"])
    counters = {"0": {key: str(value) for key, value in status(5).items()}}
    data = as_json(make_dump([entry], pg_status=counters))
    table = merge_dumps([parse_flight_recorder(data, rank=0, artifact="0")])

    assert rows(table) == [(0, "0", 5, 4)]


def test_dump_without_entries_is_a_dump_and_its_counters_are_read() -> None:
    config = make_config(**{"0": ("default_pg", [0, 1]), "5": ("TP", [0]), "12": ("DP", [0, 1])})
    other = make_config(**{"0": ("default_pg", [0, 1]), "6": ("TP", [1]), "12": ("DP", [0, 1])})
    counters = {"0": status(1), "2": status(2), "9": status(3)}
    entry = make_entry(pg_id=9, process_group=("12", "DP"))
    table = merge_dumps(
        [
            read(0, [], pg_config=config, pg_status=counters),
            read(1, [entry], pg_config=other, pg_status=counters),
        ]
    )

    assert [(dump.rank, dump.artifact) for dump in table.dumps] == [(0, "_dump_0"), (1, "_dump_1")]
    assert rows(table) == [
        (0, "0", 1, 0),
        (0, "5", 2, 1),
        (0, "12", 3, 2),
        (1, "0", 1, 0),
        (1, "6", 2, 1),
        (1, "12", 3, 2),
    ]
    assert {group.name: group.members for group in table.groups}["12"] == (0, 1)


def test_entries_of_peers_tell_groups_whose_names_are_no_numbers() -> None:
    mine = make_config(ab12=("TP", [0]), cd34=("DP", [0, 1]))
    theirs = make_config(ef56=("TP", [1]), cd34=("DP", [0, 1]))
    counters = {"0": status(1), "1": status(2)}
    entry = make_entry(pg_id=1, process_group=("cd34", "DP"))
    table = merge_dumps(
        [
            read(0, [], pg_config=mine, pg_status=counters),
            read(1, [entry], pg_config=theirs, pg_status=counters),
        ]
    )

    assert rows(table) == [(0, "cd34", 2, 1), (1, "cd34", 2, 1)]


def test_counter_whose_group_is_in_doubt_is_left_out() -> None:
    config = make_config(**{"1": ("EP", [0]), "2": ("EP", [0, 1])})
    counters = {"0": status(1), "1": status(2)}
    # The order of the names does not hold here, and two groups have one description.
    entry = make_entry(pg_id=0, process_group=("2", "EP"))
    table = merge_dumps(
        [
            read(0, [], pg_config=config, pg_status=counters),
            read(1, [entry], pg_config=config, pg_status=counters),
        ]
    )

    assert rows(table) == [(1, "2", 1, 0)]


def test_one_number_for_two_groups_is_in_doubt() -> None:
    entries = [make_entry(process_group=("0", "a")), make_entry(process_group=("1", "b"))]

    assert rows(merge_dumps([read(0, entries, pg_status={"0": status(1)})])) == []
