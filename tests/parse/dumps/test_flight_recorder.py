from __future__ import annotations

import contextlib
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.parse.dumps.builders import as_json, as_pickle, make_dump, make_entry

from whystuck.parse.dumps.flight_recorder import RankDump, parse_flight_recorder
from whystuck.parse.dumps.merge import merge_dumps
from whystuck.parse.errors import ParseError


def parse(data: bytes, rank: int = 0, **more: Any) -> RankDump:
    return parse_flight_recorder(data, rank=rank, artifact=f"rank-{rank}/fr.pickle", **more)


def test_gloo_pickle_gives_columns() -> None:
    frames = [{"name": "train", "filename": "/job/train.py", "line": 7}]
    dump = parse(
        as_pickle(
            make_dump(
                [
                    make_entry("all_reduce", 1, frames=frames),
                    make_entry("barrier", 2, frames=frames, retired=False, input_sizes=[]),
                ]
            )
        )
    )

    assert dump.columns.seq.tolist() == [1, 2]
    assert dump.columns.done.tolist() == [True, False]
    assert [form.op for form in dump.forms] == ["all_reduce", "barrier"]
    assert dump.forms[0].input_sizes == ((4,),)
    assert [frame.line for frame in dump.sites[0].frames] == [7]
    assert dump.groups[0].name == "0"
    assert dump.groups[0].desc == "default_pg"
    assert dump.version == "2.10"


def test_json_without_frames_and_without_entries_is_read() -> None:
    entry = make_entry("all_reduce", 3, process_group=["0", "default_pg"])
    del entry["frames"]

    assert parse(as_json(make_dump([entry]))).columns.seq.tolist() == [3]
    empty = make_dump([])
    del empty["entries"]
    assert len(parse(as_json(empty))) == 0


def test_nccl_dump_of_an_older_version_gives_members_and_p2p() -> None:
    entry = make_entry(
        "send",
        4,
        profiling_name="nccl:send 0->3",
        is_p2p=True,
        p2p_seq_id=11,
        state="completed",
        retired=False,
    )
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
    dump = parse(as_pickle(make_dump([entry], version="2.4", pg_config=config)))

    assert dump.columns.seq.tolist() == [11]
    assert dump.columns.is_p2p.tolist() == [True]
    assert dump.columns.done.tolist() == [True]
    assert dump.groups[0].members == (0, 1, 2, 3)
    assert dump.forms[0].label == "send 0->3"
    assert (dump.forms[0].source, dump.forms[0].target, dump.forms[0].backend) == (0, 3, "nccl")


def test_members_from_elsewhere_fill_what_gloo_does_not_say() -> None:
    dump = parse(as_pickle(make_dump([make_entry()])), members={"0": [1, 0]})

    assert dump.groups[0].members == (0, 1)


def test_hostile_pickle_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    touched = tmp_path / "touched"

    class Hostile:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return os.system, (f"touch {touched}",)

    with pytest.raises(ParseError, match=r"asks for posix\.system"):
        parse(pickle.dumps({"version": "2.10", "entries": [Hostile()]}))
    assert not touched.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x02",
        b"{",
        b"[]",
        b"{}",
        as_pickle([1, 2]),
        as_pickle(make_dump([make_entry()]))[:100],
        as_json({"version": "2.10", "entries": 5}),
        as_json({"version": "2.10", "entries": [{"profiling_name": 5}]}),
        as_json(make_dump([make_entry(seq=2**80)])),
        as_json(make_dump([make_entry(frames=[{"name": 1}])])),
        as_json(make_dump([make_entry(input_sizes=[["x"]])])),
    ],
)
def test_damaged_dump_is_a_parse_error(data: bytes) -> None:
    with pytest.raises(ParseError):
        parse(data)


@given(st.binary(max_size=300))
def test_random_bytes_raise_nothing_but_parse_errors(data: bytes) -> None:
    with contextlib.suppress(ParseError):
        parse(data)


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.sampled_from(sorted(make_entry())), _values)
def test_any_value_in_any_field_raises_nothing_but_parse_errors(field: str, value: object) -> None:
    with contextlib.suppress(ParseError):
        merge_dumps([parse(as_pickle(make_dump([make_entry(), make_entry() | {field: value}])))])


@given(st.data())
def test_damaged_pickles_raise_nothing_but_parse_errors(data: st.DataObject) -> None:
    good = bytearray(as_pickle(make_dump([make_entry()])))
    position = data.draw(st.integers(0, len(good) - 1))
    good[position] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ParseError):
        parse(bytes(good))


def test_merge_gives_equal_values_equal_numbers_and_sorts_by_rank() -> None:
    first = parse(as_pickle(make_dump([make_entry("all_reduce", 1), make_entry("barrier", 2)])))
    second = parse(as_pickle(make_dump([make_entry("barrier", 1)])), rank=1)

    table = merge_dumps([second, first])

    assert table.rank.tolist() == [0, 0, 1]
    assert table.form[1] == table.form[2]
    assert len(table.forms) == 2
    assert table.row.tolist() == [0, 1, 0]
    assert table.artifacts == ("rank-0/fr.pickle", "rank-1/fr.pickle")


def test_merge_of_nothing_is_an_empty_table() -> None:
    assert len(merge_dumps([])) == 0
