"""The marks of one rank: a header, names, and a ring of marks; see `docs/marks.md`.

A file may be taken from a job that writes it, from one that was killed, or from a stranger: every
number in it is checked, and a mark that is not whole is left out and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.decoding import decode_json
from whystuck.evidence.ops.marks import COLUMNS, KINDS, Column, MarkLog, MarkNote, Marks
from whystuck.parse.ops.clocks import Rate, Rates
from whystuck.parse.ops.header import LARGEST, LogFile, RankLog, read_header
from whystuck.parse.ops.values import split_values

MAGIC = b"WSMARK01"
WHAT = "file of marks"
_NAME = 1
_SWITCHED = 255
_MAX_NAME_CHARS = 256
_MAX_NOTES = 4096
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

    ``columns`` are those of `evidence.ops.marks.Marks` but ``rank`` and ``log``.
    """

    columns: dict[str, Column]
    names: tuple[str, ...]
    notes: tuple[MarkNote, ...] = ()
    lost_names: int = 0

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
    marks = rows[~is_note & (rows["kind"] < len(KINDS))]
    marks = marks[np.argsort(marks["begin_ns"], kind="stable")]
    return RankMarks(
        about=header.about,
        first_clock=header.first_clock,
        last_clock=header.last_clock,
        columns=_make_columns(marks, len(names)),
        names=tuple(names),
        notes=_read_notes(rows[is_note]),
        dropped=records.dropped,
        torn=records.torn,
        lost_names=lost + header.lost_values,
        generation=header.generation,
        step=header.step,
    )


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
