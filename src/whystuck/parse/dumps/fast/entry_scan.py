"""Reads the entries of a pickled dump as arrays, without making an object for each value.

A dump repeats the same keys in the same order thousands of times, and so do those of other ranks.
Dumps whose entries are mostly alike byte by byte are read many at a time (`dump_batches`). In the
others every entry is a lane, and all lanes are read side by side, one key after the other
(`vectorized_entries`).
Only one entry of each kind (op, call site, group, state) goes through the unpickler, to tell what
these look like; entries of another layout go there too. When anything does not add up, the scan
gives up, and the caller reads the dump in the ordinary way. What it reads is what the unpickler
would give, but for files that no recorder writes: damage in values that nobody asks for, a place of
the memo that is used twice, a text that is the dump itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.ops.collectives import BoolColumn, IntColumn
from whystuck.parse.dumps.fast.dump_batches import Batch, TemplateMatches
from whystuck.parse.dumps.fast.entry_keys import (
    ROLES,
    GiveUpError,
    Key,
    find_first_entry,
    read_keys,
)
from whystuck.parse.dumps.fast.entry_templates import KnownTemplates
from whystuck.parse.dumps.fast.equal_values import find_first_alike, mix
from whystuck.parse.dumps.fast.template_builder import Hashes, Places
from whystuck.parse.dumps.fast.vectorized_entries import Lanes

S = TypeVar("S", np.int64, np.bool_)

_MIN_LANES = 64
_MAX_ODD_SHARE = 0.2
# All that is at work on them at the same time should fit into the caches.
_BATCH_BYTES = 4 * 1024 * 1024
_APPENDS_MARK = b"e("
KINDS = ("form", "site", "group", "state")
_TEXTS = ("profiling_name", "state")


@dataclass(frozen=True)
class Scan:
    """The entries of one or more dumps; a row is an entry of any of them.

    ``pickles`` are the dumps with a few of their entries, the rows ``kept``. The rows of each dump
    begin at ``firsts``, which ends with the number of all. ``regular`` marks the rows whose
    ``numbers`` and ``flags`` were read; they look like the kept ones that ``like`` gives for
    ``form``, ``site``, ``group`` and ``state``. The others are kept.
    """

    pickles: tuple[bytes, ...]
    firsts: Places
    kept: Places
    regular: BoolColumn
    numbers: dict[str, IntColumn]
    flags: dict[str, BoolColumn]
    like: dict[str, Places]

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.regular)

    def split_kept(self) -> list[int]:
        """Tell how many rows of each dump are kept."""
        ends = np.searchsorted(self.kept, self.firsts)
        counts: list[int] = np.diff(ends).tolist()
        return counts


def scan_pickle(data: bytes, templates: KnownTemplates | None = None) -> Scan | None:
    """Read the entries of a dump side by side.

    Args:
        data: The pickle.
        templates: Kinds of entries that dumps read before have.

    Returns:
        What was read, or None when the dump must be read in the ordinary way.
    """
    scans = scan_pickles([data], templates)
    return scans[0][1] if scans else None


def scan_pickles(
    pickles: Sequence[bytes], templates: KnownTemplates | None = None
) -> list[tuple[list[int], Scan]]:
    """Read the entries of many dumps side by side.

    Args:
        pickles: The dumps.
        templates: Kinds of entries that dumps read before have.

    Returns:
        What was read, each with the positions of its dumps. A dump that is in none of them must
        be read in the ordinary way.
    """
    known = KnownTemplates() if templates is None else templates
    entries: dict[int, int] = {}
    by_keys: dict[tuple[Key, ...], list[int]] = {}
    for position, data in enumerate(pickles):
        if data[:2] != b"\x80\x02":
            continue
        try:
            entries[position] = find_first_entry(data)
            by_keys.setdefault(read_keys(data, entries[position]), []).append(position)
        except GiveUpError:
            continue
    scans = []
    for keys, positions in by_keys.items():
        for some in _cut_batches(positions, pickles):
            scans += _scan_alike(some, pickles, entries, keys, known)
    return scans


def _cut_batches(positions: Sequence[int], pickles: Sequence[bytes]) -> Iterator[list[int]]:
    batch: list[int] = []
    filled = 0
    for position in positions:
        if batch and filled + len(pickles[position]) > _BATCH_BYTES:
            yield batch
            batch, filled = [], 0
        batch.append(position)
        filled += len(pickles[position])
    yield batch


def _scan_alike(
    positions: list[int],
    pickles: Sequence[bytes],
    entries: dict[int, int],
    keys: tuple[Key, ...],
    known: KnownTemplates,
) -> list[tuple[list[int], Scan]]:
    """Read dumps with the same keys: by templates what fits them, the others lane by lane."""
    scans: list[tuple[list[int], Scan]] = []
    left = positions
    while left:
        batch = Batch([pickles[number] for number in left], [entries[one] for one in left], keys)
        scan, odd = _scan_batch(batch, known)
        if scan is not None:
            scans.append((left, scan))
            break
        left = [number for place, number in enumerate(left) if place not in odd]
    for position in sorted(set(positions) - set(left)):
        try:
            scan = _scan_lanes(pickles[position], entries[position], keys)
        except GiveUpError:
            continue
        scans.append(([position], scan))
    return scans


def _scan_batch(batch: Batch, known: KnownTemplates) -> tuple[Scan | None, set[int]]:
    """Read dumps whose entries are mostly alike, byte by byte; or tell which are not."""
    casts = TemplateMatches(batch, known)
    sizes = np.diff(batch.firsts)
    few = (batch.count(~casts.regular) > _MAX_ODD_SHARE * sizes) | (sizes < _MIN_LANES)
    odd = casts.find_odd() | set(np.flatnonzero(few).tolist())
    if odd:
        return None, odd
    rows = np.flatnonzero(casts.regular)
    first = rows[find_first_alike(casts.kinds[rows], batch.dump[rows])]
    like = np.arange(len(batch))
    like[rows] = first
    kept = ~casts.regular
    kept[first] = True
    kept[batch.lasts] = True
    more = np.flatnonzero(kept)
    while len(more):
        called = np.zeros(len(batch), dtype=np.bool_)
        called[casts.find_called(more)] = True
        more = np.flatnonzero(called & ~kept)
        kept[more] = True
    chosen = np.flatnonzero(kept)
    ends = np.searchsorted(chosen, batch.firsts).tolist()
    pieces = [
        batch.cut_out(number, chosen[ends[number] : ends[number + 1]])
        for number in range(len(sizes))
    ]
    scan = Scan(
        pickles=tuple(pieces),
        firsts=batch.firsts,
        kept=chosen,
        regular=casts.regular,
        numbers=casts.numbers,
        flags=casts.flags,
        like=dict.fromkeys(KINDS, like),
    )
    return scan, set()


def _scan_lanes(data: bytes, first: int, keys: Sequence[Key]) -> Scan:
    """Read a dump entry by entry, all of them side by side."""
    lanes = Lanes(data)
    starts = lanes.find_starts(first, keys[0])
    if len(starts) < _MIN_LANES:
        raise GiveUpError
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
        pickles=(_cut_out(data, starts, stops, chosen),),
        firsts=np.array([0, len(starts)]),
        kept=chosen,
        regular=regular,
        numbers={name: _prepend(column) for name, column in numbers.items()},
        flags={name: _prepend(column) for name, column in flags.items()},
        like=like,
    )


def _read_lanes(
    lanes: Lanes, keys: Sequence[Key]
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
            values[role] = mix(values[role], value)
    return numbers, flags, values


def _join_keys(keys: Sequence[Key]) -> Iterator[tuple[str, Key, Key | None]]:
    """Give each key its role and the key after it; neighbours that go together are one."""
    position = 0
    while position < len(keys):
        key = keys[position]
        role = ROLES[key.name]
        position += 1
        while (
            role in ("skip", "form")
            and key.name not in _TEXTS
            and position < len(keys)
            and ROLES[keys[position].name] == role
        ):
            position += 1
        yield role, key, keys[position] if position < len(keys) else None


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
    """Tell for each regular entry the first one that has the same value; an odd one is alone."""
    places = np.arange(len(regular))
    rows = np.flatnonzero(regular)
    places[rows] = rows[find_first_alike(kind[rows - 1])]
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
