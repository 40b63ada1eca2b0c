"""Partials: every bit comes back, and whatever is wrong with one is told."""

from __future__ import annotations

import hashlib
import zlib

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whystuck.evidence.table import Table, text_column, whole_column
from whystuck.evidence.traces.options import TraceOptions
from whystuck.evidence.traces.tables import RankHeader, RankTables
from whystuck.parse.errors import ParseError
from whystuck.read.traces.partials import (
    MAGIC,
    VERSION,
    Partial,
    decode_partial,
    encode_partial,
    unpack_tables,
)

HEADER = RankHeader(artifact="a.json", rank=3, world_size=8, groups={"0": [0, 1]}, started_ns=5)


def round_trip(tables: dict[str, Table]) -> RankTables:
    data = encode_partial(RankTables(HEADER, tables), TraceOptions(), "m")
    return unpack_tables(decode_partial(data))


def test_every_bit_comes_back() -> None:
    nan = np.array([0x7FF8000000000001], dtype=np.uint64).view(np.float64)
    table = Table(
        {
            "rank": whole_column([3, 3, 3]),
            "big": np.array([-(2**63), 0, 2**63 - 1]),
            "share": np.array([nan[0], -0.0, np.inf]),
            "is_last": np.array([True, False, True]),
            "small": np.array([1, 2, 3], dtype=np.int16),
            "name": text_column(["", "a,b\n\x1b", "\u00e9" * 400]),
        }
    )

    back = round_trip({"one": table, "empty": Table({"rank": whole_column([])})})

    assert back.header == HEADER
    assert list(back.tables) == ["one", "empty"]
    for name, column in table.columns.items():
        assert back.tables["one"][name].dtype == column.dtype
        if column.dtype == object:
            assert back.tables["one"][name].tolist() == column.tolist()
        else:
            assert back.tables["one"][name].tobytes() == column.tobytes()


def test_equal_texts_of_many_partials_are_kept_once() -> None:
    data = encode_partial(
        RankTables(HEADER, {"t": Table({"name": text_column(["gemm" + "x" * 50] * 2)})}),
        TraceOptions(),
        "m",
    )
    texts: dict[str, str] = {}

    first, second = (unpack_tables(decode_partial(data), None, texts) for _ in range(2))

    assert first.tables["t"]["name"][0] is second.tables["t"]["name"][1]


def test_only_named_tables_are_unpacked() -> None:
    tables = {name: Table({"rank": whole_column([1])}) for name in ("a", "b")}
    data = encode_partial(RankTables(HEADER, tables), TraceOptions(), "m")

    assert list(unpack_tables(decode_partial(data), ["b"]).tables) == ["b"]


def test_large_columns_are_small_on_disk() -> None:
    rows = 100_000
    table = Table({"at_ns": np.arange(rows, dtype=np.int64), "name": text_column(["k"] * rows)})

    data = encode_partial(RankTables(HEADER, {"t": table}), TraceOptions(), "m")

    assert len(data) < 4 * rows


def seal(body: bytes, version: int = VERSION) -> bytes:
    """A partial whose digest is right, whatever it holds."""
    return MAGIC + bytes([version]) + hashlib.blake2b(body, digest_size=16).digest() + body


def craft(column: list[object], rows: int = 4, name: str = "t", rank: int = 0) -> bytes:
    body = {
        "header": {"rank": rank},
        "options": {},
        "measures": "m",
        "tables": [[name, rows, [column]]],
    }
    return seal(msgspec.msgpack.encode(body))


GOOD = ["rank", "<i8", "|i1", False, b"\0" * 4, []]


def test_a_crafted_partial_that_is_right_can_be_read() -> None:
    assert unpack_tables(decode_partial(craft(GOOD))).tables["t"]["rank"].tolist() == [0] * 4


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"WSTP",
        b"no partial at all, but as long as one would have to be",
        seal(b"", version=9),
        seal(b"\xc1"),
        seal(msgspec.msgpack.encode({"header": {}})),
        seal(b"\x91" * 100_000),
        craft(GOOD, rows=1 << 40),
        craft(GOOD, rows=-1),
        craft(GOOD, name="../../etc/passwd"),
        craft(GOOD, rank=-7),
        craft(GOOD, rank=10**9),
        craft(["a/b", *GOOD[1:]]),
        craft(["rank", "<i8", "|O", False, b"\0" * 32, []]),
        craft(["rank", "O", "|i1", False, b"\0" * 4, []]),
        craft(["rank", "<i8", "|i1", False, b"\0" * 5, []]),
        craft(["rank", "<i8", "|i1", True, b"no zlib", []]),
        craft(["rank", "<i8", "|i1", True, zlib.compress(b"\0" * 10_000_000), []]),
        craft(["rank", "text", "|i1", False, b"\0\1\2\3", ["one"]]),
        craft(["rank", "text", "|i1", False, b"\xff" * 4, ["one"]]),
        craft(["rank", "text", "<f4", False, b"\0" * 16, ["one"]]),
    ],
)
def test_what_is_wrong_is_told(data: bytes) -> None:
    with pytest.raises(ParseError):
        unpack_tables(decode_partial(data))


def test_too_many_columns_are_not_unpacked() -> None:
    column = ["c", "<i8", "|i1", True, b"", []]
    body = {
        "header": {}, "options": {}, "measures": "m", "tables": [["t", 1 << 27, [column] * 40]],
    }  # fmt: skip

    with pytest.raises(ParseError, match="unpacked"):
        decode_partial(seal(msgspec.msgpack.encode(body)))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damage_is_noticed(data: st.DataObject) -> None:
    good = encode_partial(
        RankTables(HEADER, {"t": Table({"rank": whole_column(list(range(300)))})}),
        TraceOptions(),
        "m",
    )
    place = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[place] ^= data.draw(st.integers(1, 255))

    with pytest.raises(ParseError):
        unpack_tables(decode_partial(bytes(bad)))
    with pytest.raises(ParseError):
        unpack_tables(decode_partial(good[:place]))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_any_content_is_read_or_told(body: bytes) -> None:
    try:
        found = decode_partial(seal(body))
    except ParseError:
        return
    assert isinstance(found, Partial)
