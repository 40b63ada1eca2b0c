"""Reads the entries of a pickled dump as arrays, without making an object for each value.

A dump repeats the same keys in the same order thousands of times. Here every entry is a lane, and
all lanes are read side by side, one key after the other, with numpy. Only one entry of each kind
(op, call site, group, state) goes through the unpickler, to tell what these look like; entries of
another layout go there too. When anything does not add up, the scan gives up, and the caller reads
the dump in the ordinary way. What it reads is what the unpickler would give, but for files that no
recorder writes: damage in values that nobody asks for, or a place of the memo that is used twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.collectives import BoolColumn, IntColumn
from whystuck.parse.pickle_lanes import GiveUpError, Key, Lanes
from whystuck.parse.pickle_molds import KnownMolds, cast_entries, find_called

S = TypeVar("S", np.int64, np.bool_)
Places = NDArray[np.intp]
Hashes = NDArray[np.uint64]

_MIN_LANES = 64
_FIRST_ENTRY_BYTES = 65536
_FEW_KINDS = 12
_MAX_ODD_SHARE = 0.2
_ENTRIES = b"X\x07\x00\x00\x00entries"
_LIST_START = re.compile(rb"(?s)(?:q.|r.{4})?\](?:q.|r.{4})?\(")
_MEMO_PUT = re.compile(rb"(?s)q(.)|r(.{4})")
_APPENDS_MARK = b"e("
KINDS = ("form", "site", "group", "state")
_ROLES = {
    "record_id": "number",
    "pg_id": "number",
    "collective_seq_id": "number",
    "p2p_seq_id": "number",
    "time_created_ns": "number",
    "time_discovered_started_ns": "number",
    "time_discovered_completed_ns": "number",
    "timeout_ms": "number",
    "retired": "flag",
    "is_p2p": "flag",
    "frames": "site",
    "process_group": "group",
    "thread_name": "skip",
    "thread_id": "skip",
    "op_id": "skip",
    "duration_ms": "optional",
    "profiling_name": "form",
    "input_sizes": "form",
    "input_dtypes": "form",
    "output_sizes": "form",
    "output_dtypes": "form",
    "state": "state",
}
_NAMES = {
    role: tuple(name for name, of in _ROLES.items() if of == role) for role in ("number", "flag")
}
_TEXTS = ("profiling_name", "state")
_NOT_ALWAYS = ("duration_ms", "thread_name", "thread_id", "frames")


@dataclass(frozen=True)
class Scan:
    """The entries of one dump.

    ``pickle`` is the dump with a few of its entries, those at the positions ``kept``. ``regular``
    marks the entries whose ``numbers`` and ``flags`` were read; they look like the kept entries
    that ``like`` gives for ``form``, ``site``, ``group`` and ``state``. The others are kept.
    """

    pickle: bytes
    count: int
    kept: Places
    regular: BoolColumn
    numbers: dict[str, IntColumn]
    flags: dict[str, BoolColumn]
    like: dict[str, Places]


def scan_pickle(data: bytes, molds: KnownMolds | None = None) -> Scan | None:
    """Read the entries of a dump side by side.

    Args:
        data: The pickle.
        molds: Kinds of entries that dumps read before have.

    Returns:
        What was read, or None when the dump must be read in the ordinary way.
    """
    if data[:2] != b"\x80\x02":
        return None
    try:
        return _scan(data, KnownMolds() if molds is None else molds)
    except GiveUpError:
        return None


def _scan(data: bytes, molds: KnownMolds) -> Scan:
    first = _find_first_entry(data)
    lanes = Lanes(data)
    keys = _read_keys(data, first)
    starts = lanes.find_starts(first, keys[0])
    if len(starts) < _MIN_LANES:
        raise GiveUpError
    cast = _scan_molds(data, lanes, keys, starts, molds)
    if cast is not None:
        return cast
    body = starts[1:]
    lanes.begin(body)
    numbers, flags, values = _read_lanes(lanes, keys)
    ends = lanes.end()
    regular = np.concatenate(([False], lanes.regular))
    if np.count_nonzero(~regular) > _MAX_ODD_SHARE * len(starts):
        raise GiveUpError
    stops = _find_stops(data, starts, np.concatenate(([0], ends)), regular)
    like = {name: _find_first_of_kind(kind, regular) for name, kind in values.items()}
    kept = ~regular
    kept[-1] = True
    for places in like.values():
        kept[places[regular]] = True
    chosen = np.flatnonzero(kept)
    return Scan(
        pickle=_cut_out(data, starts, stops, chosen),
        count=len(starts),
        kept=chosen,
        regular=regular,
        numbers={name: _prepend(column) for name, column in numbers.items()},
        flags={name: _prepend(column) for name, column in flags.items()},
        like=like,
    )


def _scan_molds(
    data: bytes, lanes: Lanes, keys: list[Key], starts: Places, molds: KnownMolds
) -> Scan | None:
    """Read a dump whose entries are mostly alike, byte by byte; None when they are not."""
    count = len(starts)
    # Only a pickler that numbers each container, as Python's does, leaves lanes little to share.
    if data[starts[count // 2] + 1] != ord("r"):
        return None
    casts = cast_entries(data, starts, keys, _ROLES, molds)
    regular = np.zeros(count, dtype=np.bool_)
    puts, kinds = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.uint64)
    numbers = {name: np.zeros(count, dtype=np.int64) for name in _NAMES["number"]}
    flags = {name: np.zeros(count, dtype=np.bool_) for name in _NAMES["flag"]}
    for one in casts:
        regular[one.rows] = True
        kinds[one.rows] = one.kinds
        puts[one.rows] = one.puts
        for name, values in one.numbers.items():
            numbers[name][one.rows] = values
        for name, value in one.flags.items():
            flags[name][one.rows] = value
    rows = np.flatnonzero(regular)
    if count - len(rows) > _MAX_ODD_SHARE * count:
        return None
    called = find_called(lanes.bytes, lanes.words, puts[rows])
    if called is None or len(called) > _MAX_ODD_SHARE * count:
        return None
    _values, first, inverse = np.unique(kinds[rows], return_index=True, return_inverse=True)
    like = np.zeros(count, dtype=np.intp)
    like[rows] = rows[first[inverse]]
    kept = ~regular
    kept[-1] = True
    kept[rows[first]] = True
    kept[rows[called]] = True
    chosen = np.flatnonzero(kept)
    stops = _find_stops(data, starts, np.append(starts[1:], len(data)), regular)
    return Scan(
        pickle=_cut_out(data, starts, stops, chosen),
        count=count,
        kept=chosen,
        regular=regular,
        numbers=numbers,
        flags=flags,
        like=dict.fromkeys(KINDS, like),
    )


def _read_lanes(
    lanes: Lanes, keys: list[Key]
) -> tuple[dict[str, IntColumn], dict[str, BoolColumn], dict[str, Hashes]]:
    numbers: dict[str, IntColumn] = {}
    flags: dict[str, BoolColumn] = {}
    zero = np.zeros(len(lanes), dtype=np.uint64)
    values = dict.fromkeys(KINDS, zero)
    for role, key, following in _join_keys(keys):
        if role == "optional":
            lanes.skip_optional(key)
            continue
        lanes.expect(key)
        if role == "number":
            numbers[key.name] = lanes.read_number()
        elif role == "flag":
            flags[key.name] = lanes.read_flag()
        elif role == "skip":
            lanes.skip_value(following)
        else:
            text = key.name in _TEXTS
            value = lanes.read_text() if text else lanes.read_value(following)
            values[role] = lanes.mix(values[role], value)
    return numbers, flags, values


def _join_keys(keys: list[Key]) -> Iterator[tuple[str, Key, Key | None]]:
    """Give each key its role and the key after it; neighbours that go together are one."""
    position = 0
    while position < len(keys):
        key = keys[position]
        role = _ROLES[key.name]
        position += 1
        while (
            role in ("skip", "form")
            and key.name not in _TEXTS
            and position < len(keys)
            and _ROLES[keys[position].name] == role
        ):
            position += 1
        yield role, key, keys[position] if position < len(keys) else None


def _find_first_entry(data: bytes) -> int:
    position = data.find(_ENTRIES)
    match = _LIST_START.match(data, position + len(_ENTRIES)) if position >= 0 else None
    if match is None or data[match.end() : match.end() + 1] != b"}":
        raise GiveUpError
    return match.end()


def _read_keys(data: bytes, first: int) -> list[Key]:
    """Find the keys in the first entry, in their order, and their numbers in the memo."""
    found = []
    for name in _ROLES:
        text = b"X" + len(name).to_bytes(4, "little") + name.encode()
        place = data.find(text, first, first + _FIRST_ENTRY_BYTES)
        match = _MEMO_PUT.match(data, place + len(text)) if place >= 0 else None
        if match is not None:
            found.append((place, Key(name, int.from_bytes(match[1] or match[2], "little"))))
        elif place >= 0 or name not in _NOT_ALWAYS:
            raise GiveUpError
    return [key for _place, key in sorted(found, key=lambda item: item[0])]


def _find_stops(data: bytes, starts: Places, ends: Places, regular: BoolColumn) -> Places:
    """Tell where each entry ends, and check that the next one begins there."""
    following = np.append(starts[1:], ends[-1])
    gap = following - ends
    at_mark = [
        data[end : end + 2] == _APPENDS_MARK for end in ends[gap == len(_APPENDS_MARK)].tolist()
    ]
    sound = (gap == 0) | (gap == len(_APPENDS_MARK))
    if not all(at_mark) or not sound[regular].all():
        raise GiveUpError
    stops = np.where(regular, ends, following)
    for number in np.flatnonzero(~regular[:-1]).tolist():
        if data[stops[number] - 3 : stops[number]] == b"u" + _APPENDS_MARK:
            stops[number] -= 2
    return stops


def _find_first_of_kind(kind: Hashes, regular: BoolColumn) -> Places:
    """Tell for each regular entry the first one that has the same value."""
    rows = np.flatnonzero(regular)
    places = np.zeros(len(regular), dtype=np.intp)
    open_rows, values = rows, kind[rows - 1]
    # Few kinds are the rule: looking for one after the other is faster than sorting.
    for _kind in range(_FEW_KINDS):
        if len(open_rows) == 0:
            return places
        same = values == values[0]
        places[open_rows[same]] = open_rows[0]
        open_rows, values = open_rows[~same], values[~same]
    _values, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    places[open_rows] = open_rows[first[inverse]]
    return places


def _cut_out(data: bytes, starts: Places, stops: Places, chosen: Places) -> bytes:
    pieces = [data[: starts[0]]]
    pieces += [
        data[start:stop]
        for start, stop in zip(starts[chosen[:-1]], stops[chosen[:-1]], strict=True)
    ]
    return b"".join((*pieces, data[starts[-1] :]))


def _prepend(column: NDArray[S]) -> NDArray[S]:
    return np.concatenate((np.zeros(1, dtype=column.dtype), column))
