"""The least that reading a trace can take: a typed decode of its pieces into plain columns.

Nothing is checked and nothing is repaired: pieces are cut at the last text that looks like the
start of an event, times stay floats, and damage ends it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

PIECE_BYTES = 1 << 20


class Arguments(msgspec.Struct, gc=False, frozen=True):
    """As many arguments as the reader decodes where no event asks for more."""

    external: int = msgspec.field(default=-1, name="External id")
    device: int = -1
    stream: int | str = -1
    correlation: int = -1
    bytes: int = -1
    bandwidth: float = msgspec.field(default=-1, name="memory bandwidth (GB/s)")
    collective: str = msgspec.field(default="", name="Collective name")
    group: str = msgspec.field(default="", name="Process Group Name")


NONE = Arguments()


class Event(msgspec.Struct, gc=False):
    """An event."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: float = 0.0
    dur: float = -1.0
    args: Arguments = NONE


class Positions(dict[Any, int]):
    """Gives each new key the next position."""

    def __missing__(self, key: object) -> int:
        position = self[key] = len(self)
        return position


def cut_pieces(path: Path) -> Iterator[bytes]:
    """Yield lists of events."""
    with path.open("rb", buffering=0) as stream:
        rest, mark = b"", b""
        while piece := stream.read(PIECE_BYTES):
            text = rest + piece
            if not mark:
                text = text[text.index(b"[", text.index(b'"traceEvents"')) + 1 :]
                phase = text.index(b'"ph"')
                mark = text[text.rindex(b"{", 0, phase) : phase + 4]
            cut = text.rindex(b",", 0, text.rindex(mark))
            yield b"[%b]" % text[:cut]
            rest = text[cut + 1 :]
        yield b"[%b]" % rest[: rest.rindex(b"]")]


def read_columns(path: Path) -> int:
    """Read a trace into ten columns; return the number of events."""
    decoder = msgspec.json.Decoder(list[Event])
    names, categories, ids, streams = Positions(), Positions(), Positions(), Positions()
    chunks = []
    for piece in cut_pieces(path):
        events = [event for event in decoder.decode(piece) if event.ph == "X"]
        held = [event.args for event in events]
        count = len(events)
        name = map(names.__getitem__, [event.name for event in events])
        category = map(categories.__getitem__, [event.cat for event in events])
        pid = map(ids.__getitem__, [event.pid for event in events])
        tid = map(ids.__getitem__, [event.tid for event in events])
        stream = map(streams.__getitem__, [one.stream for one in held])
        chunks.append(
            (
                np.fromiter([event.ts for event in events], np.float64, count),
                np.fromiter([event.dur for event in events], np.float64, count),
                np.fromiter(name, np.int32, count),
                np.fromiter(category, np.uint8, count),
                np.fromiter(pid, np.int32, count),
                np.fromiter(tid, np.int32, count),
                np.fromiter([one.device for one in held], np.int16, count),
                np.fromiter(stream, np.int32, count),
                np.fromiter([one.correlation for one in held], np.int64, count),
                np.fromiter([one.external for one in held], np.int64, count),
            )
        )
    columns = [np.concatenate(column) for column in zip(*chunks, strict=True)]
    return len(columns[0])
