"""Frames take any bytes, and give an object or a reason."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whystuck.agent.rpc.frames import (
    HEADER_BYTES,
    MAX_REQUEST_BYTES,
    FrameError,
    encode_object,
    pack_frame,
    parse_length,
    parse_object,
)


@given(st.binary(min_size=0, max_size=8), st.integers(1, 1 << 40))
def test_header_of_any_bytes_gives_a_length_or_a_reason(header: bytes, limit: int) -> None:
    try:
        length = parse_length(header, limit)
    except FrameError:
        return
    assert 0 < length <= limit
    assert header == struct.pack("=i", length)


@pytest.mark.parametrize("length", [-(2**31), -1, 0, MAX_REQUEST_BYTES + 1, 2**31 - 1])
def test_header_with_a_bad_length_is_refused(length: int) -> None:
    with pytest.raises(FrameError, match=str(length)):
        parse_length(struct.pack("=i", length), MAX_REQUEST_BYTES)


@given(st.binary(max_size=400))
def test_body_of_any_bytes_gives_an_object_or_a_reason(body: bytes) -> None:
    try:
        found = parse_object(body)
    except FrameError:
        return
    assert isinstance(found, dict)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b'{"fn":"x"',
        b'{"a":NaN}',
        b"\xff\xfe",
        b'{"a":' * 100_000,
        b'{"config":"/tmp/"q".json"}',
    ],
)
def test_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(FrameError):
        parse_object(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50)
@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_object_comes_back_from_its_frame(fields: dict[str, Any]) -> None:
    frame = pack_frame(encode_object(fields))

    length = parse_length(frame[:HEADER_BYTES], 1 << 20)
    assert parse_object(frame[HEADER_BYTES:]) == fields
    assert length == len(frame) - HEADER_BYTES


def test_reply_is_compact_and_sorted() -> None:
    assert encode_object({"b": [1, 2], "a": True}) == b'{"a":true,"b":[1,2]}'
