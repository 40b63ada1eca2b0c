"""The marks of one rank: a header, names, and a ring of marks; see `docs/marks.md`.

A file may be taken from a job that writes it, from one that was killed, or from a stranger: every
number in it is checked, and a mark that is not whole is left out and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.decoding import decode_json
from whystuck.evidence.ops.marks import COLUMNS, KINDS, Column, MarkLog, MarkNote, Marks
from whystuck.parse.errors import ParseError
from whystuck.parse.ops.clocks import Rate, Rates
from whystuck.parse.ops.header import (
    HEADER_BYTES,
    LARGEST,
    LogFile,
    RankLog,
    measure_log,
    read_header,
    replace_ring,
)
from whystuck.parse.ops.values import split_values

MAGIC = b"WSMARK01"
WHAT = "file of marks"
_NAME = 1
_SWITCHED = 255
_MAX_NAME_CHARS = 256
_MAX_NOTES = 4096
# The bytes of a header that tell how long a file is.
_HEAD = 128
# Of older marks without an end none is waited for.
_OPEN = 64
# States are joined when they have so many times the marks that are wanted, and some.
_MOST_KEPT, _MANY = 4, 1 << 16
_MARK = np.dtype(
    [
        ("number", "<u8"),
        ("begin_ns", "<i8"),
        ("end_ns", "<i8"),
        ("step", "<u4"),
        ("name", "<u2"),
        ("kind", "u1"),
        ("again", "u1"),
    ]
)


class _NameValue(msgspec.Struct):
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class RankMarks(RankLog):
    """The marks of one file.

    ``columns`` are those of `evidence.ops.marks.Marks` but ``rank`` and ``log``; ``numbers`` are
    those of the marks in the process, ``other_numbers`` those of records that are no marks, such as
    what was switched. ``cut`` says why the rest of the file was not read.
    """

    columns: dict[str, Column]
    numbers: Column
    other_numbers: Column
    names: tuple[str, ...]
    notes: tuple[MarkNote, ...] = ()
    lost_names: int = 0
    cut: str = ""

    def __len__(self) -> int:
        """Return the number of marks."""
        return len(self.columns["kind"])


def is_marks(head: bytes) -> bool:
    """Return whether a file has marks from its first bytes."""
    return head.startswith(MAGIC)


def parse_marks(data: bytes, newest: int | None = None) -> RankMarks:
    """Read a file of marks.

    Args:
        data: The file, unpacked.
        newest: Keep only so many marks; all when left out. Older ones count as dropped.

    Returns:
        The marks of one process, in the order in which they began.

    Raises:
        ParseError: It is no such file, or its header is damaged.
    """
    header = read_header(data, MAGIC, _MARK.itemsize, WHAT)
    names, lost = _read_names(header.values)
    records = header.read_records(_MARK, _find_whole, newest)
    rows = records.rows
    is_note = rows["kind"] == _SWITCHED
    is_mark = ~is_note & (rows["kind"] < len(KINDS))
    marks = rows[is_mark]
    marks = marks[np.argsort(marks["begin_ns"], kind="stable")]
    return RankMarks(
        about=header.about,
        first_clock=header.first_clock,
        last_clock=header.last_clock,
        columns=_make_columns(marks, len(names)),
        numbers=marks["number"].astype(np.int64),
        other_numbers=rows["number"][~is_mark].astype(np.int64),
        names=tuple(names),
        notes=_read_notes(rows[is_note]),
        dropped=records.dropped,
        torn=records.torn,
        lost_names=lost + header.lost_values,
        generation=header.generation,
        step=header.step,
    )


def parse_mark_states(data: bytes, newest: int | None = None) -> RankMarks:
    """Read a file of marks, or several one after the other, each with what was new then.

    Args:
        data: The file, unpacked.
        newest: Keep only so many marks; all when left out.

    Returns:
        The marks of one process.

    Raises:
        ParseError: It does not begin with marks, or a header is damaged.
    """
    parts: list[RankMarks] = []
    kept = 0
    view = memoryview(data)
    while view:
        size = measure_log(bytes(view[:_HEAD])) if len(view) >= _HEAD else 0
        try:
            parts.append(_read_state(view, size, newest, is_first=not parts))
        except ParseError as error:
            if not parts:
                raise
            # It was being written, or the disk was full.
            parts[-1] = replace(parts[-1], torn=parts[-1].torn + 1, cut=error.message)
            break
        kept += len(parts[-1])
        if newest is not None and kept > _MOST_KEPT * newest + _MANY:
            # Not at each state, of which there may be very many.
            parts = [_keep_newest(join_all(parts), newest)]
            kept = len(parts[0])
        view = view[size or len(view) :]
    if not parts:
        raise ParseError(f"{WHAT}: it is empty")
    found = join_all(parts)
    return found if newest is None else _keep_newest(found, newest)


def _read_state(data: memoryview, size: int, newest: int | None, *, is_first: bool) -> RankMarks:
    # The header of a first one may be of another version.
    if not is_first and size < HEADER_BYTES:
        raise ParseError(f"a state of {size} bytes has no header")
    return parse_marks(bytes(data[: size or None]), newest)


def _keep_newest(marks: RankMarks, newest: int) -> RankMarks:
    lost = len(marks) - newest
    if lost <= 0:
        return marks
    kept = np.sort(np.argsort(marks.numbers, kind="stable")[lost:])
    columns = {name: column[kept] for name, column in marks.columns.items()}
    return replace(
        marks, columns=columns, numbers=marks.numbers[kept], dropped=marks.dropped + lost
    )


def join_all(parts: Sequence[RankMarks]) -> RankMarks:
    """Join marks of one process, at least one part: the last one that has a mark tells of it."""
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return last
    ordered = parts[::-1]
    numbers = np.concatenate([one.numbers for one in ordered])
    _, chosen = np.unique(numbers, return_index=True)
    columns = {
        name: np.concatenate([one.columns[name] for one in ordered])[chosen]
        for name in last.columns
    }
    # Names are only ever added.
    names = max((one.names for one in parts), key=len)
    order = np.argsort(columns["begin_ns"], kind="stable")
    others = np.unique(np.concatenate([one.other_numbers for one in parts]))
    newest = max(int(numbers.max(initial=0)), int(others.max(initial=0)))
    notes = {note.time_ns: note for one in parts for note in one.notes}
    return replace(
        last,
        first_clock=first.first_clock,
        columns={name: column[order] for name, column in columns.items()},
        numbers=numbers[chosen][order],
        other_numbers=others,
        names=names,
        notes=tuple(notes[time_ns] for time_ns in sorted(notes)[-_MAX_NOTES:]),
        dropped=max(0, newest - len(chosen) - len(others)),
        torn=sum(one.torn for one in parts),
    )


def cut_marks(data: bytes, first: int) -> tuple[bytes, int]:
    """Cut a file of marks down to what is new.

    Args:
        data: The file, unpacked.
        first: The number of the first mark that is wanted.

    Returns:
        A file with those, empty where there are none, and the number of the first one that is to
        be asked for next: one that was not over belongs to it.

    Raises:
        ParseError: It is no such file, or its header is damaged.
    """
    header = read_header(data, MAGIC, _MARK.itemsize, WHAT)
    every = header.read_records(_MARK, _find_whole).rows
    marks = every[every["number"] >= first]
    if not len(marks):
        return b"", first
    newest = int(marks["number"][-1])
    first = int(marks["number"][0])
    if newest - first >= len(data) // _MARK.itemsize:
        raise ParseError(f"{WHAT}: records {first} and {newest} are too far apart")
    ring = np.zeros(newest - first + 1, dtype=_MARK)
    ring[((marks["number"] - np.uint64(1)) % np.uint64(len(ring))).astype(np.int64)] = marks
    is_open = (marks["end_ns"] == 0) & (marks["number"] + np.uint64(_OPEN) > newest)
    following = int(marks["number"][is_open][0]) if is_open.any() else newest + 1
    return replace_ring(data, ring.tobytes(), len(ring)), following


def merge_marks(files: Iterable[LogFile[RankMarks]], rates: Rates | None = None) -> Marks:
    """Join the marks of all ranks.

    Args:
        files: At most one for each rank.
        rates: The clocks of all logs, where there are more than these.

    Returns:
        One table, sorted by rank, then by begin; times are wall clock.
    """
    ordered = sorted(files, key=lambda file: file.rank)
    if not ordered:
        return Marks()
    known = rates or Rates([file.log for file in ordered])
    parts: dict[str, list[Column]] = {name: [] for name in COLUMNS}
    names: dict[str, int] = {"": 0}
    logs = []
    for number, file in enumerate(ordered):
        rate = known.find(file.log)
        columns = dict(file.log.columns)
        size = len(file.log)
        columns["rank"] = np.full(size, file.rank, dtype=np.int64)
        columns["log"] = np.full(size, number, dtype=np.int64)
        renumbered = [names.setdefault(name, len(names)) for name in file.log.names]
        columns["name"] = np.array(renumbered, dtype=np.int64)[columns["name"]]
        columns |= {name: rate.to_wall(columns[name]) for name in ("begin_ns", "end_ns")}
        for name in COLUMNS:
            parts[name].append(columns[name])
        logs.append(_describe(file, rate))
    joined: dict[str, Any] = {name: np.concatenate(pieces) for name, pieces in parts.items()}
    return Marks(**joined, names=tuple(names), logs=tuple(logs))


def _read_names(region: memoryview) -> tuple[list[str], int]:
    """Return the names by number, and how many could not be read; one that is keeps its number."""
    names, lost = [""], 0
    values = split_values(region)
    for kind, payload in values:
        if kind is None:
            lost += 1
        elif kind == _NAME:
            try:
                names.append(decode_json(payload, _NameValue).name[:_MAX_NAME_CHARS])
            except (msgspec.MsgspecError, ValueError, RecursionError):
                lost += 1
                names.append("")
    return names, lost


def _find_whole(ring: NDArray[Any]) -> NDArray[np.bool_]:
    is_time = (ring["begin_ns"] > 0) & (ring["begin_ns"] < LARGEST)
    is_whole: NDArray[np.bool_] = is_time & ((ring["number"] & np.uint64(255)) == ring["again"])
    return is_whole


def _make_columns(marks: NDArray[Any], names: int) -> dict[str, Column]:
    begin_ns = marks["begin_ns"].astype(np.int64)
    end_ns = marks["end_ns"].astype(np.int64)
    name = marks["name"].astype(np.int64)
    return {
        "kind": marks["kind"].astype(np.int64),
        "name": np.where(name < names, name, 0),
        "step": marks["step"].astype(np.int64),
        "begin_ns": begin_ns,
        # One that ends before it begins was torn between the two.
        "end_ns": np.where((end_ns >= begin_ns) & (end_ns < LARGEST), end_ns, 0),
    }


def _read_notes(records: NDArray[Any]) -> tuple[MarkNote, ...]:
    """Return what was switched: the last of those that came by one word of the switch at once."""
    return tuple(
        MarkNote(
            frozenset(kind for kind in range(len(KINDS)) if int(one["name"]) >> kind & 1),
            int(one["step"]),
            max(0, int(one["end_ns"])),
            int(one["begin_ns"]),
        )
        for one in _drop_repeated(records[-_MAX_NOTES:])
    )


def _drop_repeated(records: NDArray[Any]) -> Iterator[Any]:
    for index, one in enumerate(records):
        is_last = index + 1 == len(records)
        if is_last or records[index + 1]["end_ns"] != one["end_ns"]:
            yield one


def _describe(file: LogFile[RankMarks], rate: Rate) -> MarkLog:
    marks = file.log
    notes = (
        MarkNote(note.kinds, note.step, note.generation, rate.to_wall_one(note.time_ns))
        for note in marks.notes
    )
    return MarkLog(
        rank=file.rank,
        artifact=file.artifact,
        host=marks.about.host,
        pid=marks.about.pid,
        world_size=marks.about.world_size,
        dropped=marks.dropped,
        torn=marks.torn,
        lost_names=marks.lost_names,
        generation=marks.generation,
        step=marks.step,
        seen_ns=rate.to_wall_one(marks.last_clock.monotonic_ns),
        notes=tuple(notes),
        clock=rate.clock,
    )
