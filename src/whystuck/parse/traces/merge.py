"""Traces of several ranks as one: times on one clock, and processes and flows kept apart."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from whystuck.parse.traces.raw import Event, Raw, RawEvents, Timed

# Numbers of flows and correlations: those of one rank, below those that tell the rank.
_ID_BITS = 40
_ID_MASK = (1 << _ID_BITS) - 1
_LINKS = re.compile(
    rb'("(?:correlation|External id|wait_on_cuda_event_record_corr_id)"\s*:\s*)(\d+)'
)
_LINK_KEYS = (b"correlation", b"External id", b"corr_id")
_TIME = re.compile(rb"(-?)(\d+)(?:\.(\d+))?\Z")
_TS = re.compile(rb'"ts"\s*:\s*(-?[\d.]+(?:[eE][-+]?\d+)?)')
# In the view, all of one rank stands together: its host, its devices, then the rest.
_RANK_STEP = 1000
_DEVICES_FROM, _SPANS_FROM = 5_000_000, 500_000_000
_DEVICE_PLACE, _SPAN_PLACE = 100, 900
_NS_PER_US = 1000
_METADATA = b'"M"'
# Processes of a rank that get a name where the trace gives them none.
_MOST_NAMED = 10_000
_FLUSH_EVENTS = 4096


@dataclass(frozen=True)
class Outline:
    """What must be known of a trace before it is merged.

    ``first_ns`` is the earliest time as it is written; ``keys`` all but the events.
    """

    keys: dict[str, object]
    first_ns: int | None
    events: int
    dropped: int
    is_whole: bool


@dataclass
class RankShift:
    """How the trace of one rank is changed.

    ``position`` is that among the merged ranks, ``shift_ns`` is added to each time.
    """

    rank: int
    position: int
    shift_ns: int
    pids: dict[bytes, int] = field(default_factory=dict)
    named: set[int] = field(default_factory=set)


class PidSpace:
    """Gives out numbers of processes, each once."""

    def __init__(self) -> None:
        self._next = 1

    def find(self, shift: RankShift, pid: bytes) -> int:
        """Return the number for a process of a rank."""
        found = shift.pids.get(pid)
        if found is None:
            found = shift.pids[pid] = self._next
            self._next += 1
        return found


def read_outline(pieces: Iterable[bytes]) -> Outline:
    """Read what must be known of a trace before it is merged.

    Raises:
        ParseError: It is no trace.
    """
    events = RawEvents(pieces, Timed)
    first: int | None = None
    count = 0
    for some in events:
        count += len(some)
        texts = {bytes(event.ts) for event in some if bytes(event.ph) != _METADATA}
        times = map(read_ns, _list_earliest(texts))
        first = min((at for at in (first, *times) if at is not None), default=None)
    return Outline(dict(events.keys), first, count, events.dropped, events.is_whole)


def _list_earliest(texts: Collection[bytes]) -> Collection[bytes]:
    """Return the times that may be the earliest: floats tell them to some ns, and fast."""
    try:
        floats = list(map(float, texts))
    except ValueError:  # one of them is none
        return texts
    if not math.isfinite(sum(floats)):
        return texts
    latest = min(floats, default=0.0) + 1.0
    return [text for text, at in zip(texts, floats, strict=True) if at <= latest]


def read_ns(text: bytes) -> int | None:
    """Read a time of a trace, in us, as whole ns; exactly, where floats would round."""
    whole, _, part = text.partition(b".")
    # Most are such, and this takes a third of the time.
    if whole.isdigit() and (part.isdigit() or not part):
        return int(whole) * _NS_PER_US + int(part[:3].ljust(3, b"0"))
    match = _TIME.match(text)
    if match is None:
        try:
            return round(float(text) * _NS_PER_US)
        except (ValueError, OverflowError):
            return None
    digits = (match[3] or b"")[:3].ljust(3, b"0")
    value = int(match[2]) * _NS_PER_US + int(digits)
    return -value if match[1] else value


def write_ns(value: int) -> bytes:
    """Write whole ns as us of a trace."""
    if value < 0:
        return b"-" + write_ns(-value)
    whole, part = divmod(value, _NS_PER_US)
    return b"%d.%03d" % (whole, part) if part else b"%d" % whole


def merge_rank(pieces: Iterable[bytes], shift: RankShift, pids: PidSpace) -> Iterator[bytes]:
    """Change the events of one rank so that they can stand beside those of others.

    Args:
        pieces: The trace, unpacked.
        shift: Who it is, and by how much its clock is moved.
        pids: Gives out the numbers of processes.

    Yields:
        Events as JSON with a comma between each two, in parts that do not end with one.
    """
    encode = msgspec.json.encode
    for some in RawEvents(pieces, Event):
        for start in range(0, len(some), _FLUSH_EVENTS):
            part = [_change(one, shift, pids) for one in some[start : start + _FLUSH_EVENTS]]
            yield b",\n".join(encode(one) for one in part)
    # A process that the trace does not name would be one of no rank.
    for pid, number in islice(shift.pids.items(), _MOST_NAMED):
        if number not in shift.named:
            text = pid.decode("utf-8", "replace").strip('"')
            yield b",\n".join(_name_process(shift, number, text))


def _change(event: Event, shift: RankShift, pids: PidSpace) -> Event:
    old = event.get("pid")
    pid = pids.find(shift, b"0" if old is None else bytes(old))
    event["pid"] = Raw(b"%d" % pid)
    is_metadata = bytes(event.get("ph", b"")) == _METADATA
    if (ts := event.get("ts")) is not None and (at := read_ns(bytes(ts))) is not None:
        at += shift.shift_ns
        # Metadata is of no time: some traces give it 0, which may lie before the first event.
        event["ts"] = Raw(write_ns(max(at, 0) if is_metadata else at))
    for key in ("id", "bind_id"):
        if key in event:
            event[key] = Raw(_move_id(bytes(event[key]), shift.position))
    args = event.get("args")
    if args is None:
        return event
    if is_metadata:
        event["args"] = _change_metadata(event, args, shift, pid)
    elif any(key in bytes(args) for key in _LINK_KEYS):
        event["args"] = Raw(_move_links(bytes(args), shift.position))
    return event


def _move_links(args: bytes, position: int) -> bytes:
    # `"key":` cannot be part of a text: a quote in a text has a backslash before it.
    return _LINKS.sub(lambda hit: hit[1] + b"%d" % _move(int(hit[2]), position), args)


def _move(number: int, position: int) -> int:
    return (position << _ID_BITS) | (number & _ID_MASK)


def _move_id(text: bytes, position: int) -> bytes:
    """Make a number of an id unique; one that is a text keeps its form."""
    word = text.strip(b'"')
    try:
        number = int(word, 0)
    except ValueError:
        return msgspec.json.encode(f"{position}:{word.decode('utf-8', 'replace')}")
    moved = _move(abs(number), position)
    return b"%d" % moved if not text.startswith(b'"') else b'"0x%x"' % moved


def _change_metadata(event: Event, args: Raw, shift: RankShift, pid: int) -> Raw:
    what = bytes(event.get("name", Raw(b"")))
    try:
        found = msgspec.json.decode(args)
    except ValueError:
        return args
    if not isinstance(found, dict):
        return args
    if what == b'"process_name"':
        shift.named.add(pid)
        found["name"] = f"rank {shift.rank}: {found.get('name', '')}"
    elif what == b'"process_sort_index"':
        found["sort_index"] = _sort_place(found.get("sort_index"), shift.position)
    else:
        return args
    return Raw(msgspec.json.encode(found))


def _sort_place(index: object, position: int) -> int:
    """Return where a process stands: by rank, then host, devices, and spans."""
    place = 0
    if isinstance(index, int) and index >= _SPANS_FROM:
        place = _SPAN_PLACE
    elif isinstance(index, int) and index >= _DEVICES_FROM:
        place = _DEVICE_PLACE + index % _DEVICE_PLACE
    return position * _RANK_STEP + place


def _name_process(shift: RankShift, pid: int, text: str) -> list[bytes]:
    shape = {"ph": "M", "pid": pid, "tid": 0, "ts": 0}
    place = {"sort_index": shift.position * _RANK_STEP}
    return [
        msgspec.json.encode(shape | {"name": "process_name", "args": {"name": name}})
        if index == 0
        else msgspec.json.encode(shape | {"name": "process_sort_index", "args": place})
        for index, name in enumerate([f"rank {shift.rank}: {text}", ""])
    ]
