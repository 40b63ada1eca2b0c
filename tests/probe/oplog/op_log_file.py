"""Reads an op log as `docs/op-log.md` describes it, apart from the reader that the product has."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HEADER = struct.Struct("<8sIIQQQQQQqqqqQQQq")
RECORD = struct.Struct("<QqqqqqQIIHHIQQQ")
ASYNC, P2P, ISSUE_FAILED, FAILED, NO_END, HOST = 1, 2, 4, 8, 16, 32


@dataclass(frozen=True)
class Op:
    """One record, with what its numbers stand for."""

    number: int
    enqueue_ns: int
    returned_ns: int
    pending_ns: int
    done_ns: int
    seq: int
    form: dict[str, Any]
    frames: list[list[Any]]
    group: dict[str, Any]
    thread: dict[str, Any]
    flags: int
    step: int
    extra: int

    @property
    def op(self) -> str:
        return str(self.form["op"])


@dataclass
class OpLogFile:
    """A whole file; ``torn`` counts records that were being written.

    All ops issued before ``looked_ns`` are there; where it is 0, all that were issued at all.
    """

    about: dict[str, Any]
    generation: int
    is_on: bool
    looked_ns: int
    ops: list[Op] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)
    groups: list[dict[str, Any]] = field(default_factory=list)
    torn: int = 0


def read_op_log(path: Path) -> OpLogFile:
    """Read a file, and fail on anything that is not as the page says."""
    data = path.read_bytes()
    fields = HEADER.unpack_from(data, 0)
    magic, header, size, capacity, values_at, _room, ring_at, used = fields[:8]
    generation, is_on, _step, looked_ns = fields[-4:]
    assert (magic, header, size) == (b"WSOPS001", 4096, RECORD.size)
    (length,) = struct.unpack_from("<I", data, 512)
    about = json.loads(data[516 : 516 + length]) if length else {}
    log = OpLogFile(about, generation, bool(is_on), looked_ns)
    values = _read_values(data, values_at, used)
    log.notes, log.groups = values[5], values[1]
    for place in range(capacity):
        raw = RECORD.unpack_from(data, ring_at + place * size)
        if raw[0] != raw[-1]:
            log.torn += 1
        elif raw[0]:
            assert (raw[0] - 1) % capacity == place
            log.ops.append(_make_op(raw, values))
    log.ops.sort(key=lambda op: op.number)
    return log


def _read_values(data: bytes, at: int, used: int) -> dict[int, list[dict[str, Any]]]:
    values: dict[int, list[dict[str, Any]]] = {kind: [] for kind in range(1, 6)}
    end = at + used
    while at < end:
        length, kind = struct.unpack_from("<II", data, at)
        values[kind].append(json.loads(data[at + 8 : at + 8 + length]))
        at += 8 + length + -length % 8
    assert at == end
    return values


def _make_op(raw: tuple[int, ...], values: dict[int, list[dict[str, Any]]]) -> Op:
    number, enqueue, returned, _start, pending, done, seq, form, site, group, thread, flags = raw[
        :12
    ]
    return Op(
        number, enqueue, returned, pending, done, seq,
        values[2][form - 1] if form else {"op": "?"},
        values[3][site - 1]["frames"] if site else [],
        values[1][group - 1],
        values[4][thread - 1],
        flags, raw[12], raw[13],
    )  # fmt: skip
