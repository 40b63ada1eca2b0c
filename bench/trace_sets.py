"""Large traces for benchmarks: real ones, repeated with shifted times, correlations and steps."""

from __future__ import annotations

import gzip
import os
import re
from pathlib import Path

import msgspec

_TIME = re.compile(rb'("ts": ?)(\d+)((?:\.\d+)?)')
# Numbers that join events with each other must differ from one round to the next.
_NUMBER = re.compile(
    rb'("(?:correlation|External id|id|Python id|Python parent id|Sequence number|Ev Idx)": ?)(\d+)'
)
_STEP = re.compile(rb"ProfilerStep#(\d+)")
_RANK = re.compile(rb'("rank": ?)\d+')
_NUMBERS_A_ROUND = 100_000_000
_EVENTS_A_BLOCK = 100_000


class _Event(msgspec.Struct):
    ts: float = 0.0
    dur: float = 0.0


class _File(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents")


def write_repeated(source: Path, target: Path, size: int, rank: int = 0) -> int:
    """Write the events of a trace again and again, each round later than the one before.

    Args:
        source: A trace packed with gzip.
        target: Where to write; plain JSON in the layout of the source.
        size: The least size in bytes.
        rank: The rank that it is of.

    Returns:
        How many rounds it has.
    """
    text = _RANK.sub(b"\\g<1>%d" % rank, gzip.decompress(source.read_bytes()), count=1)
    opening = re.search(rb'"traceEvents": ?\[', text)
    assert opening
    closing = text.rindex(b"]")
    events = msgspec.json.decode(text, type=_File).events
    times = [event.ts for event in events if event.ts]
    span = int(max(event.ts + event.dur for event in events) - min(times)) + 1000
    steps = [int(number) for number in _STEP.findall(text)]
    stride = max(steps) - min(steps) + 1 if steps else 0
    body = text[opening.end() : closing].strip()
    rounds = 0
    with target.open("wb") as stream:
        stream.write(text[: opening.end()])
        while not rounds or stream.tell() < size:
            stream.write(b",\n    " if rounds else b"\n    ")
            stream.write(_shift(body, rounds * span, rounds * _NUMBERS_A_ROUND, rounds * stride))
            rounds += 1
        stream.write(text[closing:])
    return rounds


def _shift(body: bytes, time: int, number: int, step: int) -> bytes:
    body = _TIME.sub(lambda hit: b"%s%d%s" % (hit[1], int(hit[2]) + time, hit[3]), body)
    body = _NUMBER.sub(lambda hit: b"%s%d" % (hit[1], int(hit[2]) + number), body)
    return _STEP.sub(lambda hit: b"ProfilerStep#%d" % (int(hit[1]) + step), body)


def find_traces() -> Path:
    """The folder of real traces."""
    named = os.environ.get("WHYSTUCK_TEST_DATA")
    folder = Path(named) if named else Path(__file__).parents[2] / "shared" / "data"
    if not (folder / "traces").is_dir():
        raise SystemExit("error: no real traces\nhint: set WHYSTUCK_TEST_DATA to their folder")
    # It may be reached through a link.
    return (folder / "traces").resolve()


def write_minimal(target: Path, events: int) -> None:
    """Write a trace of very many small events."""
    form = (
        '{"ph": "X", "cat": "cpu_op", "name": "aten::op_%d", "pid": 1, "tid": %d, '
        '"ts": %d.%03d, "dur": 1.5, "args": {"External id": %d}}'
    )
    with target.open("w") as stream:
        stream.write('{"distributedInfo": {"rank": 0}, "traceEvents": [\n')
        for first in range(0, events, _EVENTS_A_BLOCK):
            rows = range(first, min(first + _EVENTS_A_BLOCK, events))
            stream.write(",\n" if first else "")
            stream.write(
                ",\n".join(form % (row % 500, row % 7, row, row % 1000, row) for row in rows)
            )
        stream.write("\n]}")
