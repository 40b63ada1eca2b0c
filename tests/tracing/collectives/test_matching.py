"""Which calls of ranks belong together."""

from __future__ import annotations

import random
from functools import cache

import msgspec
import numpy as np
import pytest
from bench.rank_sets import Job
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tracing.rank_sets import (
    compare_tables,
    drop_calls,
    edit_calls,
    set_columns,
    simulate,
)

from whystuck.evidence.table import Table, text_column
from whystuck.evidence.traces.tables import RankTables, TraceSummary
from whystuck.tracing.collectives.matching import match_calls
from whystuck.tracing.collectives.rank_calls import slim_calls

JOBS = {
    "numbers": Job(ranks=8, tp=2, late_us={3: 1000}, clock_us=1e6),
    "order": Job(ranks=8, tp=2, late_us={3: 1000}, numbered=False, clock_us=1e6),
    "streams": Job(ranks=4, late_us={3: 1000}, numbered=False, told="none", steps=6, jitter_us=100),
}


@cache
def measured(name: str) -> tuple[RankTables, ...]:
    return tuple(simulate(JOBS[name])[0])


def assert_equal(one: TraceSummary, other: TraceSummary, but: tuple[str, ...] = ()) -> None:
    for name, table in one.tables.items():
        for column in table.columns:
            if column not in but:
                np.testing.assert_array_equal(table[column], other.get(name)[column], str(column))


@pytest.mark.parametrize("name", JOBS)
def test_the_order_of_ranks_and_files_changes_nothing(name: str) -> None:
    tables = list(measured(name))
    expected = compare_tables(tables)
    random.Random(5).shuffle(tables)
    renamed = [
        RankTables(msgspec.structs.replace(one.header, artifact=f"z{k}"), one.tables)
        for k, one in enumerate(tables)
    ]

    assert_equal(compare_tables(renamed), expected)


@pytest.mark.parametrize("name", JOBS)
@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(-(10**9), 10**9), min_size=8, max_size=8))
def test_the_clocks_of_ranks_change_no_match_and_no_verdict(name: str, offsets: list[int]) -> None:
    expected = compare_tables(measured(name))
    moved = [
        RankTables(
            msgspec.structs.replace(one.header, base_ns=one.header.base_ns + offset), one.tables
        )
        for one, offset in zip(measured(name), offsets, strict=False)
    ]

    found = compare_tables(moved)

    for column in ("group", "sequence", "op", "ranks", "last_rank"):
        table = found.get("collectives")
        assert table[column].tolist() == expected.get("collectives")[column].tolist()
    assert found.get("straggler")["rank"].tolist() == expected.get("straggler")["rank"].tolist()
    caused = expected.get("rank_blame")["wait_caused_ns"]
    assert found.get("rank_blame")["wait_caused_ns"] == pytest.approx(caused, rel=0.001, abs=5_000)
    assert len(found.get("collective_gaps")) == 0


def test_groups_and_numbers_match_calls_exactly() -> None:
    summary = compare_tables(measured("numbers"))

    table = summary.get("collectives")
    by_size = {size: table["group_size"].tolist().count(size) for size in (2, 4, 8)}
    # Four steps: four layers in each of four tensor-parallel groups; one of the world; two in each
    # of two data-parallel groups.
    assert by_size == {2: 64, 8: 4, 4: 16}
    assert (table["ranks"] == table["group_size"]).all()
    assert set(table["op"].tolist()) == {"all_reduce", "reduce_scatter", "all_gather"}
    assert table["end_skew_ns"].max() < 20_000


def test_comms_ids_serve_where_there_is_no_number() -> None:
    tables = [edit_calls(one, set_columns({"sequence": -1})) for one in measured("numbers")]

    def from_comms_id(table: Table) -> Table:
        keys = np.array([(1 << 61) + int(text) for text in table["comms_id"]], dtype=np.int64)
        return Table({**table.columns, "number": keys})

    summary = compare_tables([edit_calls(one, from_comms_id) for one in tables])

    expected = compare_tables(measured("numbers")).get("collectives")
    table = summary.get("collectives")
    assert sorted(table["start_ns"].tolist()) == sorted(expected["start_ns"].tolist())
    assert table["last_rank"].tolist() == expected["last_rank"].tolist()


@pytest.mark.parametrize("name", ["numbers", "order"])
@pytest.mark.parametrize("places", [(0,), (0, 1, 2), (5,), (-1,), (3, 9, 17)])
def test_lost_calls_shift_nothing(name: str, places: tuple[int, ...]) -> None:
    tables = list(measured(name))
    expected = compare_tables(tables).get("collectives")
    tables[2] = edit_calls(tables[2], drop_calls(*places))

    summary = compare_tables(tables)

    table = summary.get("collectives")
    assert len(table) == len(expected)
    assert (table["ranks"] < table["group_size"]).sum() == len(places)
    assert summary.get("straggler")["rank"].tolist() == [3]
    assert table["end_skew_ns"].max() < 20_000
    # Who was last by little depends on clocks, which fewer calls tell a little differently.
    clear = (table["ranks"] == table["group_size"]) & (expected["held_ns"] > 20_000)
    assert table["last_rank"][clear].tolist() == expected["last_rank"][clear].tolist()


def test_a_rank_whose_trace_begins_a_step_later_is_laid_where_it_belongs() -> None:
    tables = list(measured("streams"))
    step = len(tables[1].tables["collective_calls"]) // 6
    tables[1] = edit_calls(tables[1], drop_calls(*range(step)))
    tables[2] = edit_calls(tables[2], drop_calls(*range(-step, 0)))

    summary = compare_tables(tables)

    table = summary.get("collectives")
    assert len(table) == 6 * step
    assert table["ranks"].tolist() == [3] * step + [4] * (4 * step) + [3] * step
    assert table["end_skew_ns"].max() < 20_000


def test_equal_counts_of_other_steps_are_not_taken_for_the_same() -> None:
    tables = list(measured("streams"))
    step = len(tables[1].tables["collective_calls"]) // 6
    for rank in range(3):
        tables[rank] = edit_calls(tables[rank], drop_calls(*range(step)))
    # As many calls as the others, but another step at each end.
    tables[3] = edit_calls(tables[3], drop_calls(*range(-step, 0)))

    summary = compare_tables(tables)

    table = summary.get("collectives")
    assert table["ranks"].tolist() == [4] * (4 * step) + [3] * step
    assert table["end_skew_ns"].max() < 20_000
    (gap,) = summary.get("collective_gaps").rows()
    assert gap == (3, "", "no other rank has this call", step)


def test_steps_that_all_take_the_same_time_are_not_laid_anywhere() -> None:
    tables, _ = simulate(Job(ranks=4, numbered=False, told="none", steps=6, jitter_us=0))
    tables[2] = edit_calls(tables[2], drop_calls(*range(5)))

    summary = compare_tables(tables)

    assert set(summary.get("collectives")["ranks"].tolist()) == {3}
    (gap,) = summary.get("collective_gaps").rows()
    assert gap == (2, "", "its calls do not end together with those of others", 25)


def test_ranks_that_do_different_things_under_one_number_are_a_gap() -> None:
    tables = list(measured("numbers"))
    tables[0] = edit_calls(tables[0], set_columns({"kind_key": 77, "op": "all_gather"}))

    summary = compare_tables(tables)

    reasons = set(summary.get("collective_gaps")["reason"].tolist())
    assert reasons == {"ranks did different things under one number"}
    assert (summary.get("collectives")["ranks"] == summary.get("collectives")["group_size"]).all()


def test_two_traces_of_one_rank_count_once() -> None:
    tables = [*measured("numbers"), measured("numbers")[1]]

    summary = compare_tables(tables)

    assert_equal(
        TraceSummary((), {"collectives": summary.get("collectives")}),
        compare_tables(measured("numbers")),
    )
    assert "another trace of the same rank is there" in summary.get("collective_gaps")["reason"]


def test_a_trace_without_rank_is_a_gap() -> None:
    one = measured("numbers")[0]
    nameless = RankTables(msgspec.structs.replace(one.header, rank=-1), one.tables)

    matching = match_calls([nameless])

    assert list(matching.gaps) == [(-1, "", "the trace tells no rank")]


def test_ranks_without_calls_are_there_but_unknown() -> None:
    tables = list(measured("numbers"))
    tables[6] = edit_calls(tables[6], lambda table: table.take(slice(0)))

    summary = compare_tables(tables)

    blame = summary.get("rank_blame")
    assert blame["rank"].tolist() == list(range(8))
    assert blame["wait_caused_ns"][6] == -1
    assert blame["clock_error_ns"][6] == -1


def test_more_ranks_than_members_under_one_name_are_a_gap() -> None:
    def rename(table: Table) -> Table:
        is_small = table["group_size"] == 2
        key = np.where(is_small, 99, table["group_key"])
        members = text_column(["" if small else "0-7" for small in is_small.tolist()])
        return Table({**table.columns, "group_key": key, "members": members})

    summary = compare_tables([edit_calls(one, rename) for one in measured("numbers")])

    gaps = summary.get("collective_gaps")
    assert set(gaps["reason"].tolist()) == {"more ranks than members use this name for a group"}
    assert 2 not in summary.get("collectives")["group_size"].tolist()


def test_slim_tables_give_the_same() -> None:
    slim = [slim_calls(slim_calls(one)) for one in measured("numbers")]

    assert_equal(compare_tables(slim), compare_tables(measured("numbers")))


def test_empty_tables_of_ranks() -> None:
    assert match_calls([]).groups == []
