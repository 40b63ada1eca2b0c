"""Writes op logs byte by byte after `docs/op-log.md`, for tests that need one of a certain kind."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any

HEADER_BYTES = 4096
RECORD = struct.Struct("<QqqqqqQIIHHIQQQ")
GROUP, FORM, SITE, THREAD, NOTE = 1, 2, 3, 4, 5
ASYNC, P2P, ISSUE_FAILED, FAILED, NO_END, HOST = 1, 2, 4, 8, 16, 32
MS = 1_000_000
# The monotonic clock of the host began this long before the wall clock of these tests.
BOOT_NS = 1_700_000_000_000_000_000


@dataclass
class Ring:
    """The op log of one rank; each method adds something."""

    rank: int = 0
    world: int = 4
    capacity: int = 64
    host: str = "n0"
    values_bytes: int = 1 << 16
    offset_ns: int = BOOT_NS
    drift_ns: int = 0
    begin_ns: int = 1000 * MS
    end_ns: int = 0
    values: bytes = b""
    counts: dict[int, int] = field(default_factory=dict)
    records: dict[int, bytes] = field(default_factory=dict)
    newest: int = 0
    seqs: dict[tuple[int, bool], int] = field(default_factory=dict)
    known: dict[tuple[int, str], int] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    now_ns: int = 1000 * MS

    def value(self, kind: int, payload: dict[str, Any] | bytes) -> int:
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        key = kind, data.decode("utf-8", "replace")
        if key in self.known and kind != GROUP:
            return self.known[key]
        self.values += struct.pack("<II", len(data), kind) + data + bytes(-len(data) % 8)
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.known[key] = self.counts[kind]
        return self.counts[kind]

    def group(
        self, name: str = "0", ranks: list[int] | None = None, *, base: int = 0, **more: Any
    ) -> int:
        members = list(range(self.world)) if ranks is None else ranks
        desc = "default_pg" if name == "0" else "undefined"
        value = {"name": name, "desc": desc, "ranks": members, "backend": "gloo", "base": base}
        value |= {"generation": 1, "step": 0}
        return self.value(GROUP, value | more)

    def op(
        self,
        op: str = "all_reduce",
        *,
        group: int = 1,
        line: int = 10,
        flags: int = 0,
        at_ns: int = 0,
        takes_ns: int | None = MS,
        seq: int = 0,
        step: int = 0,
        thread: int = 1,
        started_ns: int = 0,
        pending_ns: int = 0,
        returned_ns: int | None = None,
        extra: int = 0,
        site: int | None = None,
        **form: Any,
    ) -> Ring:
        """Record an op; ``takes_ns`` None: it is not over. Sizes are those of four floats."""
        shape: dict[str, Any] = {"op": op, "in": [[4]], "out": [[4]], "dtypes": ["float32"]}
        shape |= {"in_bytes": 16, "out_bytes": 16, "device": "cpu"} | form
        if op in ("send", "recv", "recv_any"):
            flags |= P2P | NO_END
        if shape["device"] == "cpu":
            flags |= HOST
        if THREAD not in self.counts:
            self.value(THREAD, {"name": "MainThread", "id": 100 + self.rank})
        frames = [["train", "/job/train.py", line], ["<module>", "/job/train.py", 99]]
        number = self.newest + 1
        key = group, bool(flags & P2P)
        self.seqs[key] = seq or self.seqs.get(key, 0) + 1
        self.now_ns = at_ns or self.now_ns + 10 * MS
        done = 0 if takes_ns is None else self.now_ns + takes_ns
        back = self.now_ns + 1000 if returned_ns is None else returned_ns
        self.put(
            number,
            RECORD.pack(
                number, self.now_ns, back, started_ns, pending_ns, done, self.seqs[key],
                self.value(FORM, shape),
                self.value(SITE, {"frames": frames}) if site is None else site,
                group, thread, flags, step, extra, number,
            ),
        )  # fmt: skip
        return self

    def put(self, number: int, record: bytes) -> None:
        self.records[(number - 1) % self.capacity] = record
        self.newest = max(self.newest, number)

    def data(self) -> bytes:
        end_ns = self.end_ns or self.now_ns + 1000 * MS
        ring_at = HEADER_BYTES + self.values_bytes
        header = struct.pack(
            "<8sIIQQQQQQqqqqQQQ", b"WSOPS001", HEADER_BYTES, RECORD.size, self.capacity,
            HEADER_BYTES, self.values_bytes, ring_at, len(self.values), 0,
            self.begin_ns, self.begin_ns + self.offset_ns,
            end_ns, end_ns + self.offset_ns + self.drift_ns, 1, 1, 0,
        )  # fmt: skip
        about = {"rank": self.rank, "world_size": self.world, "host": self.host, "pid": 7}
        text = json.dumps(about | self.about).encode()
        head = header.ljust(512, b"\0") + struct.pack("<I", len(text)) + text
        ring = bytearray(self.capacity * RECORD.size)
        for slot, record in self.records.items():
            ring[slot * RECORD.size : (slot + 1) * RECORD.size] = record
        return head.ljust(HEADER_BYTES, b"\0") + self.values.ljust(self.values_bytes, b"\0") + ring
