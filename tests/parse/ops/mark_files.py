"""Writes files of marks byte by byte after `docs/marks.md`, for tests that need one."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any

from tests.parse.ops.op_logs import BOOT_NS, HEADER_BYTES, MS

MARK = struct.Struct("<QqqIHBB")
SWITCHED = 255


@dataclass
class MarkRing:
    """The marks of one rank; each method adds something."""

    rank: int = 0
    world: int = 4
    capacity: int = 63
    host: str = "n0"
    values_bytes: int = 4096
    offset_ns: int = BOOT_NS
    begin_ns: int = 1000 * MS
    end_ns: int = 0
    values: bytes = b""
    names: list[str] = field(default_factory=lambda: [""])
    records: dict[int, bytes] = field(default_factory=dict)
    newest: int = 0
    now_ns: int = 1000 * MS
    about: dict[str, Any] = field(default_factory=dict)

    def name(self, name: str) -> int:
        if name not in self.names:
            self.value(json.dumps({"name": name}).encode())
            self.names.append(name)
        return self.names.index(name)

    def value(self, data: bytes, kind: int = 1) -> None:
        self.values += struct.pack("<II", len(data), kind) + data + bytes(-len(data) % 8)

    def mark(
        self, kind: int, name: str = "", *, step: int = 0, takes_ns: int | None = MS, at_ns: int = 0
    ) -> MarkRing:
        """Add a mark; ``takes_ns`` None: it is open. The next one begins where it ends."""
        begin_ns = at_ns or self.now_ns
        end_ns = 0 if takes_ns is None else begin_ns + takes_ns
        self.now_ns = max(begin_ns, end_ns)
        return self.put(begin_ns, end_ns, step, self.name(name), kind)

    def switch(self, kinds: int, generation: int, step: int = 0) -> MarkRing:
        return self.put(self.now_ns, generation, step, kinds, SWITCHED)

    def put(self, begin_ns: int, end_ns: int, step: int, name: int, kind: int) -> MarkRing:
        self.newest += 1
        record = MARK.pack(self.newest, begin_ns, end_ns, step, name, kind, self.newest & 255)
        self.records[(self.newest - 1) % self.capacity] = record
        return self

    def data(self) -> bytes:
        end_ns = self.end_ns or self.now_ns + 1000 * MS
        ring_at = HEADER_BYTES + self.values_bytes
        header = struct.pack(
            "<8sIIQQQQQQqqqqQQQ", b"WSMARK01", HEADER_BYTES, MARK.size, self.capacity,
            HEADER_BYTES, self.values_bytes, ring_at, len(self.values), 0,
            self.begin_ns, self.begin_ns + self.offset_ns, end_ns, end_ns + self.offset_ns, 1, 127,
            9,
        )  # fmt: skip
        about = {"rank": self.rank, "world_size": self.world, "host": self.host, "pid": 7}
        text = json.dumps(about | self.about).encode()
        head = header.ljust(512, b"\0") + struct.pack("<I", len(text)) + text
        ring = bytearray(self.capacity * MARK.size)
        for slot, record in self.records.items():
            ring[slot * MARK.size : (slot + 1) * MARK.size] = record
        return head.ljust(HEADER_BYTES, b"\0") + self.values.ljust(self.values_bytes, b"\0") + ring
