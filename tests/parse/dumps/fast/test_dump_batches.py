"""Reading many dumps at a time gives what reading each alone and entry by entry gives."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.parse.dumps.builders import Entry, as_json, as_pickle, make_dump, make_entry
from tests.parse.dumps.fast.test_entry_scan import CONFIG, FRAMES, assert_same, make_entries
from tests.parse.dumps.torch_pickle import as_torch_pickle, puts_twice

from whystuck.parse.dumps.fast import entry_scan, equal_values
from whystuck.parse.dumps.fast.entry_keys import find_first_entry, read_keys
from whystuck.parse.dumps.fast.entry_scan import scan_pickles
from whystuck.parse.dumps.fast.equal_values import find_first_alike
from whystuck.parse.dumps.fast.vocabulary import Vocabulary
from whystuck.parse.dumps.flight_recorder import RankDump, RawDump, parse_flight_recorders
from whystuck.parse.dumps.merge import merge_dumps
from whystuck.parse.dumps.safe_pickle import load_plain_pickle
from whystuck.parse.errors import ParseError

Write = Callable[[object], bytes]
WRITERS: list[Write] = [as_pickle, as_torch_pickle]


def write_dumps(write: Write, counts: Sequence[int]) -> list[bytes]:
    """Make dumps of one steady job: the same keys, other numbers of entries, other times."""
    dumps = []
    for rank, count in enumerate(counts):
        entries = make_entries(count)
        for entry in entries:
            entry["frames"] = FRAMES[: entry["record_id"] % 4 + 2]
            entry["time_created_ns"] += rank
        dumps.append(write(make_dump(entries, pg_config=CONFIG)))
    return dumps


def read(pickles: Sequence[bytes], *, side_by_side: bool = True) -> list[RankDump | ParseError]:
    raw = [RawDump(data, rank, str(rank)) for rank, data in enumerate(pickles)]
    return parse_flight_recorders(raw, Vocabulary(), side_by_side=side_by_side)


def assert_all_same(pickles: Sequence[bytes]) -> list[RankDump | ParseError]:
    """Read dumps together, and compare with what the unpickler alone tells of each."""
    together = read(pickles)
    assert len(together) == len(pickles)
    for rank, (fast, data) in enumerate(zip(together, pickles, strict=True)):
        (slow,) = read([data], side_by_side=False)
        if isinstance(slow, RankDump):
            assert isinstance(fast, RankDump), rank
            assert fast.rank == rank
            assert_same(fast, slow)
            assert fast.counters.config == tuple(range(len(fast.counters.config)))
            assert len(fast.counters.group_by_pg_id) == len(slow.counters.group_by_pg_id)
        else:
            assert isinstance(fast, ParseError), rank
            assert fast.message == slow.message
    return together


def scanned(pickles: Sequence[bytes]) -> list[list[int]]:
    return sorted(positions for positions, _scan in scan_pickles(pickles))


@pytest.mark.parametrize("write", WRITERS)
def test_dumps_of_one_job_are_read_at_a_time(write: Write) -> None:
    pickles = write_dumps(write, (600, 500, 2100, 601, 600))

    assert scanned(pickles)[0] == [0, 1, 2, 3, 4]
    assert_all_same(pickles)


@pytest.mark.parametrize("write", WRITERS)
def test_entries_without_any_number_are_read(write: Write) -> None:
    numbers = dict.fromkeys(
        (
            "record_id",
            "pg_id",
            "collective_seq_id",
            "p2p_seq_id",
            "time_created_ns",
            "timeout_ms",
        )
    )
    entries = [{**entry, **numbers} for entry in make_entries(300)]

    assert_all_same([write(make_dump(entries, pg_config=CONFIG))] * 3)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("dumps", [2, 12])
def test_entries_of_many_layouts_are_read_too(write: Write, dumps: int) -> None:
    pickles = [
        write(make_dump(make_entries(600 + rank), pg_config=CONFIG)) for rank in range(dumps)
    ]

    assert sum(map(len, scanned(pickles))) == dumps
    assert_all_same(pickles)


@pytest.mark.parametrize("write", WRITERS)
def test_small_batches_give_the_same(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_scan, "_BATCH_BYTES", 150_000)
    pickles = write_dumps(write, (400, 400, 400, 2100, 400))

    assert len(scanned(pickles)) > 1
    assert_all_same(pickles)


def other_keys() -> bytes:
    entries = [
        {key: value for key, value in entry.items() if not key.startswith("thread")}
        for entry in make_entries(300)
    ]
    return as_pickle(make_dump(entries, pg_config=CONFIG))


def no_two_alike() -> bytes:
    entries: list[Entry] = [
        make_entry("all_reduce", record + 1, record_id=record, input_sizes=[[1]] * (record + 1))
        for record in range(100)
    ]
    return as_pickle(make_dump(entries, pg_config=CONFIG))


def in_disorder() -> bytes:
    entries = make_entries(300)
    entries[100:200] = [dict(reversed(entry.items())) for entry in entries[100:200]]
    return as_pickle(make_dump(entries, pg_config=CONFIG))


def missing_name() -> bytes:
    entries = make_entries(300)
    del entries[-1]["profiling_name"]
    return as_pickle(make_dump(entries, pg_config=CONFIG))


STRANGERS = {
    "other keys": other_keys(),
    "no two entries alike": no_two_alike(),
    "keys in disorder": in_disorder(),
    "few entries": as_pickle(make_dump(make_entries(3), pg_config=CONFIG)),
    "no entries": as_pickle(make_dump([], pg_config=CONFIG)),
    "torch's pickler": as_torch_pickle(make_dump(make_entries(300), pg_config=CONFIG)),
    "JSON": as_json(make_dump(make_entries(300), pg_config=CONFIG)),
    **{
        f"protocol {protocol}": pickle.dumps(make_dump(make_entries(200)), protocol=protocol)
        for protocol in (0, 3, 4, 5)
    },
    "cut off": as_pickle(make_dump(make_entries(300), pg_config=CONFIG))[:-3000],
    "an entry without a name": missing_name(),
    "a member that is no number": as_pickle(
        make_dump(make_entries(300), pg_config={"0": {"name": "0", "ranks": "[x]"}})
    ),
    "nothing": b"",
    "only a start": b"\x80\x02",
    "text": b"not a dump at all",
    "an end like the start of an entry": as_pickle(make_dump(make_entries(300)))[:-1] + b"}r",
}


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_stranger_changes_nothing_for_the_others(stranger: str) -> None:
    pickles = write_dumps(as_pickle, (600, 600, 600, 600))
    pickles[2:2] = [STRANGERS[stranger]]

    together = assert_all_same(pickles)

    assert any({0, 1, 3, 4} <= set(positions) for positions in scanned(pickles))
    assert all(isinstance(together[rank], RankDump) for rank in (0, 1, 3, 4))


def test_all_kinds_of_strangers_at_a_time() -> None:
    sound = write_dumps(as_pickle, (300,) * len(STRANGERS))
    pickles = [data for pair in zip(sound, STRANGERS.values(), strict=True) for data in pair]

    together = assert_all_same(pickles)

    assert all(isinstance(result, RankDump) for result in together[::2])
    # What was read together can be merged.
    merge_dumps([result for result in together if isinstance(result, RankDump)])


def test_memo_that_does_not_grow_is_left_to_others() -> None:
    pickles = write_dumps(as_pickle, (600, 600, 600))
    data = pickles[1]
    # The place in the memo of the entry in the middle is that of an entry long before it.
    starts = [place for place in range(len(data)) if data[place : place + 2] == b"}r"]
    middle, early = starts[300] + 2, starts[20] + 2
    pickles[1] = data[:middle] + data[early : early + 4] + data[middle + 4 :]

    assert [0, 2] in scanned(pickles)
    assert [0, 1, 2] in scanned([pickles[0], data, pickles[2]])


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("times", [1, 30])
def test_a_key_that_is_given_twice_counts_the_last_time(write: Write, times: int) -> None:
    entries = make_entries(600)
    for entry in entries:
        entry["frames"] = FRAMES[:3]
    data = write(make_dump(entries, pg_config=CONFIG))
    keys = {key.name: key.token for key in read_keys(data, find_first_entry(data))}
    for place in range(200, 200 + times):
        at = data.index(keys["record_id"] + b"M" + (place + 100).to_bytes(2, "little"))
        state = data.index(keys["state"], at)
        twice = keys["collective_seq_id"] + b"K\x05" + keys["record_id"] + b"K\x07"
        data = data[:state] + twice + data[state:]

    (result, _sound) = assert_all_same([data, write_few(write)[0]])

    assert isinstance(result, RankDump)
    assert np.count_nonzero(load_records(data) == 7) == times + 1


def load_records(data: bytes) -> NDArray[np.int64]:
    content = load_plain_pickle(data)
    assert isinstance(content, dict)
    return np.array([entry["record_id"] for entry in content["entries"]])


def test_batches_of_transfers_end_in_one_dump_only() -> None:
    def make(*, closed: bool) -> bytes:
        entries = make_entries(200)
        for number, entry in enumerate(entries):
            entry |= {"is_p2p": True, "p2p_seq_id": number // 4 + 1, "state": "scheduled"}
            entry |= {"profiling_name": "nccl:send 0->1", "retired": False}
            entry |= {"process_group": ("0", "default_pg"), "pg_id": 0}
            entry |= {"time_discovered_started_ns": None, "time_discovered_completed_ns": None}
            if number % 4 == 3 and closed:
                entry |= {"profiling_name": "nccl:coalesced", "state": "completed"}
                entry["retired"] = True
        return as_pickle(make_dump(entries, pg_config=CONFIG))

    results = assert_all_same([make(closed=False), make(closed=True), make(closed=False)])

    done = [result.columns.done for result in results if isinstance(result, RankDump)]
    assert not done[0].any()
    assert done[1].all()
    assert not done[2].any()


@cache
def write_few(write: Write) -> list[bytes]:
    return write_dumps(write, (90, 80, 90, 100))


@given(st.data())
def test_damage_stays_in_its_dump(data: st.DataObject) -> None:
    write = data.draw(st.sampled_from(WRITERS))
    pickles = list(write_few(write))
    for _change in range(data.draw(st.integers(1, 4))):
        rank = data.draw(st.integers(0, 3))
        position = data.draw(st.integers(0, len(pickles[rank]) - 1))
        byte = bytes([data.draw(st.integers(0, 255))])
        pickles[rank] = pickles[rank][:position] + byte + pickles[rank][position + 1 :]
    together = read(pickles)
    for rank, (fast, one) in enumerate(zip(together, pickles, strict=True)):
        (alone,) = read([one])
        (slow,) = read([one], side_by_side=False)
        assert isinstance(fast, ParseError) == isinstance(alone, ParseError), rank
        if isinstance(fast, RankDump) and isinstance(alone, RankDump):
            assert_same(fast, alone)
        if isinstance(fast, RankDump) and isinstance(slow, RankDump) and not _is_odd(one, slow):
            assert_same(fast, slow)


def _is_odd(data: bytes, dump: RankDump) -> bool:
    """Tell what may be read in two ways: a text that is the dump itself, a place used twice."""
    try:
        return puts_twice(data) or "'entries'" in str((dump.sites, dump.forms, dump.groups))
    except ValueError:
        return True


@given(
    st.lists(st.integers(0, 2**64 - 1).map(lambda value: value % 7 or value), max_size=200),
    st.integers(1, 3),
)
def test_first_alike_is_what_sorting_gives(numbers: list[int], owners: int) -> None:
    values = np.array(numbers, dtype=np.uint64)
    owner = np.arange(len(numbers)) % owners

    first = find_first_alike(values, owner)

    seen: dict[tuple[int, int], int] = {}
    pairs = zip(numbers, owner.tolist(), strict=True)
    assert first.tolist() == [seen.setdefault(pair, at) for at, pair in enumerate(pairs)]


def test_values_that_share_a_bucket_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equal_values, "_TABLE", 4)
    values = np.random.default_rng(0).integers(0, 50, 1000).astype(np.uint64)

    first = find_first_alike(values)

    _values, places, inverse = np.unique(values, return_index=True, return_inverse=True)
    np.testing.assert_array_equal(first, places[inverse])
