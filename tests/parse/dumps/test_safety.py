"""Small files from strangers that ask for much: each is refused, fast and with little memory."""

from __future__ import annotations

import json
import os
import pickle
import struct
import tracemalloc
from typing import Any

import pytest
from tests.parse.dumps.builders import as_pickle, make_dump, make_entry

from whystuck.parse.dumps.fast.vocabulary import Vocabulary
from whystuck.parse.dumps.flight_recorder import parse_flight_recorder
from whystuck.parse.dumps.opcode_check import check_pickle
from whystuck.parse.dumps.safe_pickle import load_plain_pickle
from whystuck.parse.errors import ParseError

HEAD = b"\x80\x02}X\x07\x00\x00\x00versionX\x01\x00\x00\x002sX\x07\x00\x00\x00entries"
MEGABYTE = 1024 * 1024


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def double(times: int) -> list[Any]:
    """Make a list that holds one list twice, which holds one list twice, and so on."""
    made: list[Any] = [1]
    for _ in range(times):
        made = [made, made]
    return made


def share(count: int = 2_000, **fields: Any) -> bytes:
    """Make a pickle whose entries refer to the same few values."""
    return as_pickle(make_dump([make_entry(seq=seq) | fields for seq in range(1, count + 1)]))


NUMBERS = [1] * 100_000
LETTERS = "x" * 100_000
MEMBERS = list(range(100_000))
FRAME = {"name": "train", "filename": "train.py", "line": 5}

# Small files that mean much: what is in them once is meant again and again.
SHARED = {
    "one list of sizes": share(input_sizes=[NUMBERS]),
    "many sizes": share(output_sizes=[[1]] * 100_000),
    "sizes of sizes": share(1, input_sizes=[NUMBERS] * 10_000),
    "sizes doubled": share(1, input_sizes=double(30)),
    "types doubled": share(1, input_dtypes=double(30)),
    "name doubled": share(1, profiling_name=double(30)),
    "group doubled": share(1, process_group=double(30)),
    "frame doubled": share(1, frames=[FRAME | {"name": double(30)}]),
    "version doubled": as_pickle(make_dump([make_entry()], version=double(30))),
    "reference doubled": b"\x80\x02]K\x01a" + b"q\x00](h\x00h\x00e" * 30 + b"Q.",
    "long type": share(input_dtypes=[LETTERS]),
    "long name": share(profiling_name=f"gloo:{LETTERS}"),
    "long group": share(process_group=(LETTERS, LETTERS)),
    "many groups in one": share(process_group=["ab"] * 100_000),
    "one list of members": as_pickle(
        make_dump(
            [make_entry()],
            pg_config={n: {"name": str(n), "desc": "", "ranks": MEMBERS} for n in range(2_000)},
        )
    ),
    "many groups of many members": as_pickle(
        make_dump(
            [make_entry(process_group=("0", str(number))) for number in range(2_000)],
            pg_config={0: {"name": "0", "desc": "", "ranks": MEMBERS}},
        )
    ),
}

BOMBS = {
    "memo, far off": HEAD + b"]r\xff\xff\xff\x7fs.",
    "memo, again and again": HEAD + b"]r\x00\x00\x00\x02r\x00\x00\x00\x04r\x00\x00\x00\x08s.",
    "memo, as text": HEAD + b"]p2000000000\ns.",
    "text longer than the file": HEAD + b"X\xff\xff\xff\x7fabc",
    "long text longer than the file": b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f" + b"abc.",
    "bytes longer than the file": b"\x80\x04\x8e" + b"\xff" * 6 + b"\x7f\x00abc.",
    "bytearray longer than the file": b"\x80\x05\x96" + b"\xff" * 6 + b"\x7f\x00abc.",
    "frame longer than the file": b"\x80\x04\x95" + b"\xff" * 6 + b"\x7f\x00abc.",
    "number longer than the file": HEAD + b"\x8b\xff\xff\xff\x7fs.",
    "number as text": HEAD + b"I" + b"9" * 100_000 + b"\ns.",
    "copies of copies": HEAD + b"]" + b"2" * 100_000 + b"s.",
    "nothing but lists": HEAD + b"](" + b"]" * (4 * MEGABYTE) + b"es.",
    "lists in lists": HEAD + b"]" + b"](" * 500_000 + b"e" * 500_000 + b"s.",
    "tuples in tuples": HEAD + b")" + b"\x85" * 900_000 + b"s.",
    "key of tuples in tuples": b"\x80\x02}N" + b"\x85" * 900_000 + b"Ns.",
    "more tuples in tuples": b"\x80\x02}N" + b"\x85" * 3_000_000 + b"Ns.",
    "tuples in the memo": b"\x80\x02}NN\x86q\x01" + b"h\x01N\x86q\x01" * 200_000 + b"Ns.",
    "group of tuples in tuples": as_pickle(make_dump([make_entry()])).replace(
        text("default_pg") + b"q", b"N" + b"\x85" * 100_000 + b"q"
    ),
    "JSON lists in lists": b'{"version": "2", "entries": ' + b"[" * 500_000,
    "JSON numbers": b'{"version": "2", "entries": [{"profiling_name": "x", "record_id": '
    + b"9" * 100_000
    + b"}]}",
    "JSON text for numbers": json.dumps(make_dump([make_entry(record_id="9" * 5_000)])).encode(),
    **SHARED,
}


@pytest.mark.parametrize("name", sorted(BOMBS))
def test_bomb_is_refused_with_little_memory(name: str) -> None:
    data = BOMBS[name]
    tracemalloc.start()
    try:
        with pytest.raises(ParseError):
            parse_flight_recorder(data, rank=0, artifact="0")
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 64 * MEGABYTE + 150 * len(data)


# Side by side, entries that are alike are looked at once.
ONE_BY_ONE = SHARED | {"one list of frames": share(frames=[FRAME] * 100_000)}


@pytest.mark.parametrize("name", sorted(ONE_BY_ONE))
def test_bomb_is_refused_when_entries_are_read_one_by_one(name: str) -> None:
    with pytest.raises(ParseError):
        parse_flight_recorder(ONE_BY_ONE[name], rank=0, artifact="0", side_by_side=False)


def test_bomb_costs_nothing_but_itself() -> None:
    words = Vocabulary()
    with pytest.raises(ParseError, match="means far more than it holds"):
        parse_flight_recorder(SHARED["one list of sizes"], rank=0, artifact="0", vocabulary=words)

    sound = parse_flight_recorder(share(10), rank=1, artifact="1", vocabulary=words)

    assert len(sound) == 10


@pytest.mark.parametrize(
    "fields",
    [
        {"input_sizes": [[8, 8]] * 500, "input_dtypes": ["Float"] * 500},
        {"frames": [FRAME] * 100},
        {"process_group": (0, "default_pg")},
        {"process_group": None, "state": None, "frames": None, "input_sizes": None},
        {"input_sizes": [[1.0]], "input_dtypes": [None]},
    ],
)
def test_lists_of_a_usual_length_may_be_shared(fields: dict[str, Any]) -> None:
    data = share(2_000, **fields)

    assert len(parse_flight_recorder(data, rank=0, artifact="0")) == 2_000


@pytest.mark.parametrize("depth", [1_000, 400_000])
def test_deep_tuples_as_keys_do_not_overflow_the_stack(depth: int) -> None:
    loaded = load_plain_pickle(b"\x80\x02}N" + b"\x85" * depth + b"Ns.")

    assert isinstance(loaded, dict)


class Hostile:
    """Runs a command when a reader obeys."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("place", ["entries", "pg_config", "frames", "key"])
def test_code_is_named_and_not_run(
    protocol: int, place: str, capfd: pytest.CaptureFixture[str]
) -> None:
    hostile: Any = Hostile("echo PWNED")
    dump = make_dump([make_entry(seq=seq) for seq in range(1, 100)])
    if place == "entries":
        dump["entries"][50]["state"] = hostile
    elif place == "frames":
        dump["entries"][98]["frames"] = [hostile]
    elif place == "key":
        dump[hostile] = 1
    else:
        dump["pg_config"] = hostile
    data = pickle.dumps(dump, protocol=protocol)

    with pytest.raises(ParseError, match=r"asks for posix\.system, which is refused"):
        parse_flight_recorder(data, rank=0, artifact="0")
    assert "PWNED" not in capfd.readouterr().out


def test_members_are_not_evaluated(capfd: pytest.CaptureFixture[str]) -> None:
    ranks = "[__import__('os').system('echo PWNED')]"
    dump = make_dump([make_entry()], pg_config={"0": {"name": "0", "desc": "", "ranks": ranks}})

    with pytest.raises(ParseError):
        parse_flight_recorder(as_pickle(dump), rank=0, artifact="0")
    assert "PWNED" not in capfd.readouterr().out


def test_persistent_references_are_refused() -> None:
    with pytest.raises(ParseError, match="outside itself"):
        load_plain_pickle(b"\x80\x02K\x01Q.")


def test_sound_dump_passes_the_look_at_its_opcodes() -> None:
    assert check_pickle(as_pickle(make_dump([make_entry()]))) < 100


@pytest.mark.parametrize("ranks", ["[-1]", "[0, 4000000000]"])
def test_ranks_out_of_range_are_damage(ranks: str) -> None:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}

    with pytest.raises(ParseError):
        parse_flight_recorder(
            as_pickle(make_dump([make_entry()], pg_config=config)), rank=0, artifact="0"
        )


def test_counter_out_of_range_is_damage() -> None:
    status = {"0": {"last_enqueued_collective": 2**70}}

    with pytest.raises(ParseError):
        parse_flight_recorder(
            as_pickle(make_dump([make_entry()], pg_status=status)), rank=0, artifact="0"
        )
