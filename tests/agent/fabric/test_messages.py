from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystuck.agent.fabric.messages import (
    HEAD,
    MAX_CONFIG_BYTES,
    MAX_PIDS,
    Context,
    MessageError,
    Request,
    pack_context,
    pack_count,
    pack_reply,
    pack_request,
    parse_message,
)

# Of torch 2.13: type 3, six pids, job 0.
RECORDED = bytes.fromhex(
    "2800000000000000"
    "726571"
    + "00" * 29
    + "0300000006000000"
    + "00" * 8
    + "856c0000836c00007a6c0000756c00000a00000001000000"
)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


def test_bytes_of_torch_are_read() -> None:
    pids = (0x6C85, 0x6C83, 0x6C7A, 0x6C75, 10, 1)
    assert parse_message(RECORDED) == Request(3, 0, pids)
    assert pack_request(3, 0, pids) == RECORDED


def test_reply_says_its_size() -> None:
    assert pack_reply("") == b"\0" * 8 + b"req" + b"\0" * 29
    assert pack_reply("é=1") == struct.pack("@N32s", 4, b"req") + "é=1".encode()
    assert pack_count(7) == struct.pack("@N32si", 4, b"ctxt", 7)


def test_reply_has_a_limit() -> None:
    assert len(pack_reply("x" * MAX_CONFIG_BYTES)) == 40 + MAX_CONFIG_BYTES
    with pytest.raises(ValueError, match="at most 65536"):
        pack_reply("x" * (MAX_CONFIG_BYTES + 1))
    with pytest.raises(ValueError, match="surrogates"):
        pack_reply("\ud800")


@given(INT32, INT64, st.lists(INT32, max_size=MAX_PIDS))
def test_request_comes_back(wants: int, job: int, pids: list[int]) -> None:
    assert parse_message(pack_request(wants, job, tuple(pids))) == Request(wants, job, tuple(pids))


@given(INT32, INT32, INT64)
def test_context_comes_back(gpu: int, pid: int, job: int) -> None:
    assert parse_message(pack_context(gpu, pid, job)) == Context(gpu, pid, job)


@given(st.binary(max_size=200), st.sampled_from([b"", b"req", b"ctxt", b"reqq", b"x" * 32]))
def test_any_bytes_are_a_message_or_an_error(payload: bytes, name: bytes) -> None:
    for data in (payload, HEAD.pack(len(payload), name) + payload):
        with contextlib.suppress(MessageError):
            parse_message(data)


@given(st.integers(0, len(RECORDED) - 1))
def test_cut_message_is_an_error(size: int) -> None:
    with pytest.raises(MessageError):
        parse_message(RECORDED[:size])


@pytest.mark.parametrize("num_pids", [-1, MAX_PIDS + 1, 5, 7, 1 << 30])
def test_number_of_pids_must_be_true(num_pids: int) -> None:
    with pytest.raises(MessageError):
        parse_message(RECORDED[:44] + struct.pack("@i", num_pids) + RECORDED[48:])
