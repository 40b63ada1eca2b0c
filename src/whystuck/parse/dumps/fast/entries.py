"""The entries of one dump to columns: few steps for each entry, since there are millions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.ops.collectives import BoolColumn, IntColumn
from whystuck.parse.dumps.fast.columns import Columns, join_columns
from whystuck.parse.dumps.fast.entry_scan import Scan
from whystuck.parse.dumps.fast.vocabulary import RawForm, Vocabulary

Entry = Mapping[str, Any]

POINT_TO_POINT = ("send", "recv")
_NUMBERS = (
    "record_id",
    "pg_id",
    "collective_seq_id",
    "p2p_seq_id",
    "time_created_ns",
    "timeout_ms",
)
_TIMES = ("time_discovered_started_ns", "time_discovered_completed_ns")
# What an entry has where it leaves something out, or has null: that depends on version and format.
_DEFAULTS: Entry = {
    **dict.fromkeys((*_NUMBERS, *_TIMES), 0),
    "process_group": ("", ""),
    "input_sizes": (),
    "output_sizes": (),
    "input_dtypes": (),
    "output_dtypes": (),
    "state": "",
    "retired": False,
    "is_p2p": False,
    "frames": (),
}

_STARTED, _COMPLETED = 1, 2

_get_numbers = itemgetter(*_NUMBERS)
_get_form = itemgetter(*RawForm._fields)


def read_entries(
    entries: Sequence[Entry],
    vocabulary: Vocabulary,
    number_group: Callable[[Any], int],
) -> Columns:
    """Turn the entries of one dump into columns.

    Args:
        entries: The entries, oldest first.
        vocabulary: Numbers ops and call sites.
        number_group: Numbers the value of ``process_group``.

    Returns:
        The columns.
    """
    try:
        return _read_complete(entries, vocabulary, number_group)
    except (KeyError, TypeError):
        return _read_complete([_complete(entry) for entry in entries], vocabulary, number_group)


@dataclass(frozen=True)
class Kept:
    """The entries of one dump that a scan has kept: their columns, and the numbers of states."""

    columns: Columns
    states: NDArray[np.int8]


def read_kept(
    entries: Sequence[Entry], vocabulary: Vocabulary, number_group: Callable[[Any], int]
) -> Kept:
    """Turn the entries of one dump that a scan has kept into columns.

    Args:
        entries: The entries, oldest first.
        vocabulary: Numbers ops and call sites.
        number_group: Numbers the value of ``process_group``.

    Returns:
        What `read_scan` needs of them.
    """
    columns = read_entries(entries, vocabulary, number_group)
    states = [_number_state(entry.get("state")) for entry in entries]
    return Kept(columns, np.array(states, dtype=np.int8))


def read_scan(scan: Scan, kept: Sequence[Kept | None]) -> tuple[Columns, list[int]]:
    """Turn scanned dumps into columns.

    Args:
        scan: What was read of all entries.
        kept: What the entries hold that the scan has kept, for each dump. Where it is None, the
            columns of that dump are of no use.

    Returns:
        The columns of all of them, one dump after the other; and the dumps that the scan has
        misread, which the kept entries show.
    """
    counts = scan.split_kept()
    parts = [
        _hold_place(count) if one is None else one for one, count in zip(kept, counts, strict=True)
    ]
    few = join_columns([part.columns for part in parts])
    misread = _find_misread(scan, few)
    filled = _Filled(scan)
    state = np.concatenate([part.states for part in parts])[filled.like("state")]
    started_ns = filled.number("time_discovered_started_ns", few.started_ns)
    columns = Columns(
        group=few.group.astype(np.int32)[filled.like("group")],
        seq=filled.number("collective_seq_id", few.seq),
        p2p_seq=filled.number("p2p_seq_id", few.p2p_seq),
        form=few.form.astype(np.int32)[filled.like("form")],
        site=few.site.astype(np.int32)[filled.like("site")],
        record=filled.number("record_id", few.record),
        pg_id=filled.number("pg_id", few.pg_id),
        created_ns=filled.number("time_created_ns", few.created_ns),
        started_ns=started_ns,
        completed_ns=filled.number("time_discovered_completed_ns", few.completed_ns),
        timeout_ms=filled.number("timeout_ms", few.timeout_ms),
        is_p2p=filled.flag("is_p2p", few.is_p2p),
        started=(state != 0) | (started_ns > 0),
        done=filled.flag("retired", few.done) | (state == _COMPLETED),
    )
    return columns, misread


def _find_misread(scan: Scan, few: Columns) -> list[int]:
    """Find the dumps whose kept entries are not what was read: those with a key twice, say."""
    told = {
        "record_id": few.record,
        "pg_id": few.pg_id,
        "collective_seq_id": few.seq,
        "p2p_seq_id": few.p2p_seq,
        "time_created_ns": few.created_ns,
        "time_discovered_started_ns": few.started_ns,
        "time_discovered_completed_ns": few.completed_ns,
        "timeout_ms": few.timeout_ms,
    }
    differs = scan.flags["is_p2p"][scan.kept] != few.is_p2p
    for name, values in told.items():
        differs |= scan.numbers[name][scan.kept] != values
    rows = scan.kept[differs & scan.regular[scan.kept]]
    dumps: list[int] = (np.searchsorted(scan.firsts, rows, side="right") - 1).tolist()
    return dumps


def _hold_place(count: int) -> Kept:
    """Fill the rows of a dump that could not be read, so that those of the others stay in place."""
    numbers, marks = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.bool_)
    columns = Columns(*(numbers,) * 8, *(marks,) * 3, *(numbers,) * 3)
    return Kept(columns, np.zeros(count, dtype=np.int8))


class _Filled:
    """The columns of a scan, with the values of the entries that only the unpickler has read."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self._odd = np.flatnonzero(~scan.regular)
        self._place = np.zeros(scan.count, dtype=np.intp)
        self._place[scan.kept] = np.arange(len(scan.kept))
        self._like: dict[int, NDArray[np.intp]] = {}

    def like(self, kind: str) -> NDArray[np.intp]:
        """Tell for each entry which of the kept ones has the same value."""
        source = self._scan.like[kind]
        # One array may serve more than one kind.
        places = self._like.get(id(source))
        if places is None:
            places = self._like[id(source)] = self._place[source]
        return places

    def number(self, name: str, kept: IntColumn) -> IntColumn:
        values = self._scan.numbers[name]
        values[self._odd] = kept[self._place[self._odd]]
        return values

    def flag(self, name: str, kept: BoolColumn) -> BoolColumn:
        values = self._scan.flags[name]
        values[self._odd] = kept[self._place[self._odd]]
        return values


def _number_state(state: object) -> int:
    if state == "completed":
        return _COMPLETED
    return _STARTED if state == "started" else 0


def mark_point_to_point(columns: Columns, vocabulary: Vocabulary) -> None:
    """Mark sends and receives by their names, and give them their own sequence numbers.

    Args:
        columns: The entries of some dumps; changed in place.
        vocabulary: What the numbers in them mean.
    """
    if len(columns):
        names = [item.op in POINT_TO_POINT for item in vocabulary.forms]
        columns.is_p2p |= np.array(names, dtype=np.bool_)[columns.form]
        np.copyto(columns.seq, columns.p2p_seq, where=columns.is_p2p)


def _complete(entry: Entry) -> Entry:
    """Fill in what is left out or null; a name is never left out."""
    told = {key: value for key, value in entry.items() if value is not None}
    told["process_group"] = [str(part) for part in told.get("process_group", ())]
    return {**_DEFAULTS, **told, "profiling_name": entry["profiling_name"]}


def _read_complete(
    entries: Sequence[Entry], vocabulary: Vocabulary, number_group: Callable[[Any], int]
) -> Columns:
    count = len(entries)
    numbers = np.fromiter(
        chain.from_iterable(map(_get_numbers, entries)), np.int64, count * len(_NUMBERS)
    ).reshape(count, len(_NUMBERS))
    record, pg_id, seq, p2p_seq, created_ns, timeout_ms = numbers.T
    states = _pick(entries, "state")
    completed = np.array([state == "completed" for state in states], dtype=np.bool_)
    started = np.array([state == "started" for state in states], dtype=np.bool_)
    started_ns, completed_ns = (_read_times(entries, key) for key in _TIMES)
    return Columns(
        group=_number_groups(entries, number_group),
        seq=seq,
        p2p_seq=p2p_seq,
        form=_number_forms(entries, vocabulary),
        site=_number_sites(entries, vocabulary),
        record=record,
        pg_id=pg_id,
        created_ns=created_ns,
        started_ns=started_ns,
        completed_ns=completed_ns,
        timeout_ms=timeout_ms,
        is_p2p=_read_flags(entries, "is_p2p"),
        started=started | completed | (started_ns > 0),
        done=completed | _read_flags(entries, "retired"),
    )


def _pick(entries: Sequence[Entry], key: str) -> list[Any]:
    return list(map(itemgetter(key), entries))


def _read_times(entries: Sequence[Entry], key: str) -> IntColumn:
    return np.fromiter([value or 0 for value in _pick(entries, key)], np.int64, len(entries))


def _read_flags(entries: Sequence[Entry], key: str) -> BoolColumn:
    return np.array(_pick(entries, key)).astype(np.bool_)


def _number_groups(entries: Sequence[Entry], number_group: Callable[[Any], int]) -> IntColumn:
    number_by_key: dict[str, int] = {}
    numbers = []
    for value in _pick(entries, "process_group"):
        # A text is the key: to hash a tuple from a stranger can overflow the stack.
        key = "\0".join(value)
        number = number_by_key.get(key)
        if number is None:
            number = number_by_key[key] = number_group(value)
        numbers.append(number)
    return np.fromiter(numbers, np.int64, len(numbers))


def _number_forms(entries: Sequence[Entry], vocabulary: Vocabulary) -> IntColumn:
    add = vocabulary.add_form
    return np.fromiter([add(raw) for raw in map(_get_form, entries)], np.int64, len(entries))


def _number_sites(entries: Sequence[Entry], vocabulary: Vocabulary) -> IntColumn:
    number_by_identity: dict[tuple[int, ...], int] = {}
    numbers = []
    for frames in _pick(entries, "frames"):
        # Torch writes each frame once and each list of frames again.
        identity = tuple(map(id, frames))
        number = number_by_identity.get(identity)
        if number is None:
            number = number_by_identity[identity] = vocabulary.add_site(frames)
        numbers.append(number)
    return np.fromiter(numbers, np.int64, len(numbers))
