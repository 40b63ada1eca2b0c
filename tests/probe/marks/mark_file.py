"""Reads a file of marks as `docs/marks.md` describes it, apart from the product's own reader."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

HEADER = struct.Struct("<8sIIQQQQQQqqqqQQQ")
MARK = struct.Struct("<QqqIHBB")
KINDS = ("step", "dataloader", "forward", "backward", "optimizer", "checkpoint", "user", "device")


@dataclass(frozen=True)
class Mark:
    """One mark, with what its numbers stand for."""

    number: int
    kind: str
    name: str
    step: int
    begin_ns: int
    end_ns: int


@dataclass
class MarkFile:
    """A whole file; ``switched`` are the kinds and the generation of each change."""

    about: dict[str, Any]
    generation: int
    kinds: int
    step: int
    marks: list[Mark] = field(default_factory=list)
    switched: list[tuple[int, int, int]] = field(default_factory=list)
    totals: tuple[int, ...] = ()

    def of(self, kind: str) -> list[Mark]:
        return [mark for mark in self.marks if mark.kind == kind]


def read_marks(path: Path) -> MarkFile:
    """Read a file, and fail on anything that is not as the page says."""
    data = path.read_bytes()
    fields = HEADER.unpack_from(data, 0)
    magic, header, size, capacity, names_at, _room, ring_at, used = fields[:8]
    generation, kinds, step = fields[-3:]
    assert (magic, header, size) == (b"WSMARK01", 4096, MARK.size)
    assert MARK.size == 32
    (length,) = struct.unpack_from("<I", data, 512)
    found = MarkFile(json.loads(data[516 : 516 + length]), generation, kinds, step)
    found.totals = struct.unpack_from("<16Q", data, 128)
    names = [""]
    at = names_at
    while at < names_at + used:
        length, kind = struct.unpack_from("<II", data, at)
        assert kind == 1
        names.append(json.loads(data[at + 8 : at + 8 + length])["name"])
        at += 8 + length + -length % 8
    for place in range(capacity):
        number, begin, end, at_step, name, kind, again = MARK.unpack_from(
            data, ring_at + place * 32
        )
        if not number:
            continue
        assert (number - 1) % capacity == place
        assert number & 255 == again
        if kind == 255:
            found.switched.append((name, end, at_step))
        else:
            found.marks.append(Mark(number, KINDS[kind], names[name], at_step, begin, end))
    found.marks.sort(key=lambda mark: (mark.begin_ns, mark.number))
    return found


def assert_apart(marks: list[Mark]) -> None:
    """Check that no two phases of a rank overlap."""
    phases = [mark for mark in marks if mark.kind not in ("step", "user", "device")]
    for before, after in pairwise(phases):
        assert 0 < before.begin_ns <= before.end_ns <= after.begin_ns, (before, after)
