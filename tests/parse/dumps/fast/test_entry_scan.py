"""Reading side by side gives what reading entry by entry gives, whatever the pickle."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.parse.dumps.builders import Entry, as_pickle, make_config, make_dump, make_entry
from tests.parse.dumps.torch_pickle import as_torch_pickle, puts_twice

from whystuck.parse.dumps.fast.columns import Columns
from whystuck.parse.dumps.fast.entry_scan import scan_pickle
from whystuck.parse.dumps.flight_recorder import RankDump, parse_flight_recorder
from whystuck.parse.errors import ParseError

FRAMES = [{"name": f"f{line}", "filename": "/job/train.py", "line": line} for line in range(9)]
OPS = [("all_reduce", [[4]]), ("broadcast", [[70_000, 3]]), ("barrier", []), ("gather", [[1], [2]])]
CONFIG = make_config(**{"0": ("default_pg", [0, 1]), "7": ("TP", [0])})


def make_entries(count: int) -> list[Entry]:
    """Make entries that differ in all that may differ, as those of a long run do."""
    entries = []
    for record in range(count):
        op, sizes = OPS[record % 4]
        done = record < count - 3
        entry = make_entry(
            op,
            record // 2 + 1,
            record_id=record,
            pg_id=record % 3 % 2,
            process_group=(("0", "default_pg"), ("7", "TP"))[record % 3 % 2],
            profiling_name=f"nccl:{op}",
            input_sizes=sizes,
            output_sizes=sizes,
            input_dtypes=["Float"] * len(sizes),
            output_dtypes=["Float"] * len(sizes),
            time_created_ns=1_790_000_000_000_000_000 + record * 10**6,
            time_discovered_started_ns=1_790_000_000_000_000_001 if record % 5 else None,
            time_discovered_completed_ns=1_790_000_000_000_000_002 if done else None,
            state="completed" if done else "started",
            retired=done,
        )
        if record % 4 == 1:
            entry["duration_ms"] = 1.5
        del entry["frames"]
        entries.append({"frames": FRAMES[record % 4 : record % 7 + 3], **entry})
    return entries


def read_both(data: bytes) -> tuple[RankDump, RankDump]:
    fast = parse_flight_recorder(data, rank=0, artifact="0")
    return fast, parse_flight_recorder(data, rank=0, artifact="0", side_by_side=False)


def assert_same(fast: RankDump, slow: RankDump) -> None:
    for column in fields(Columns):
        if column.name not in ("group", "form", "site"):
            one, two = (getattr(dump.columns, column.name) for dump in (fast, slow))
            np.testing.assert_array_equal(one, two, err_msg=column.name)
    for name, values in (("group", "groups"), ("form", "forms"), ("site", "sites")):
        one, two = (
            [getattr(dump, values)[number] for number in getattr(dump.columns, name)]
            for dump in (fast, slow)
        )
        assert one == two
    assert fast.version == slow.version
    assert fast.first_record == slow.first_record
    assert fast.counters.counters == slow.counters.counters


@pytest.mark.parametrize("write", [as_torch_pickle, as_pickle])
@pytest.mark.parametrize("count", [70, 400, 2100])
def test_scan_gives_what_the_unpickler_gives(write: Callable[[object], bytes], count: int) -> None:
    data = write(make_dump(make_entries(count), pg_config=CONFIG))

    scan = scan_pickle(data)

    assert scan is not None
    assert scan.count == count
    assert len(scan.kept) < count
    assert_same(*read_both(data))


def test_entries_of_another_layout_are_read_by_the_unpickler() -> None:
    entries = make_entries(200)
    entries[50] = {**entries[50], "time_created_ns": -5}
    entries[60] = {**entries[60], "profiling_name": "nccl:" + "x" * 70_000}
    entries[80] = {**entries[80], "input_sizes": [[1], [[2]]][:1]}
    entries[90] = {**entries[90], "more": {"deep": [1, {"er": ()}]}}
    entries[100] = {**entries[100], "timeout_ms": 2**63 - 1}
    data = as_pickle(make_dump(entries, pg_config=CONFIG))

    assert scan_pickle(data) is not None
    assert_same(*read_both(data))


def test_dump_of_another_order_is_read_in_the_ordinary_way() -> None:
    entries = make_entries(200)
    entries[70] = {key: entries[70][key] for key in reversed(entries[70])}
    data = as_torch_pickle(make_dump(entries, pg_config=CONFIG))

    assert scan_pickle(data) is None
    assert_same(*read_both(data))


@pytest.mark.parametrize("protocol", [0, 1, 3, 4, 5])
def test_other_protocols_are_read_in_the_ordinary_way(protocol: int) -> None:
    data = pickle.dumps(make_dump(make_entries(100), pg_config=CONFIG), protocol=protocol)

    assert scan_pickle(data) is None
    if protocol > 1:
        assert len(parse_flight_recorder(data, rank=0, artifact="0")) == 100


@given(st.data())
def test_damage_never_makes_the_scan_differ(damage: st.DataObject) -> None:
    whole = bytearray(as_torch_pickle(make_dump(make_entries(80), pg_config=CONFIG)))
    for _change in range(damage.draw(st.integers(1, 3))):
        position = damage.draw(st.integers(0, len(whole) - 1))
        whole[position] = damage.draw(st.integers(0, 255))
    results: list[RankDump] = []
    for fast in (True, False):
        with contextlib.suppress(ParseError):
            results.append(
                parse_flight_recorder(bytes(whole), rank=0, artifact="0", side_by_side=fast)
            )
    if len(results) == 2 and not puts_twice(bytes(whole)):
        assert_same(results[0], results[1])
