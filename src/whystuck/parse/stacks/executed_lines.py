"""Reader of the file of executed lines; `docs/executed-lines.md` has its layout."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator

import msgspec
import numpy as np

from whystuck.evidence.decoding import decode_json
from whystuck.evidence.ops.executed_lines import ExecutedLine, ExecutedLines, ExecutedThread
from whystuck.parse.errors import ParseError

_MAGIC = b"WSLIN001"
_HEADER = struct.Struct("<8sIIIIQQQQqqdd")
_PROBLEM_AT = 96
_THREAD = struct.Struct("<QQQ40s")
_ENTRY = np.dtype([("count", "<u8"), ("function", "<u4"), ("line", "<u4")])
_METHODS = {1: "settrace", 2: "monitoring"}
# The probe keeps no more lines of a thread, and has no more places for threads.
_MAX_LINES = 10_000
_MAX_THREADS = 64
_NAME = struct.Struct("<I")
_UNKNOWN = ("?", "?")


def parse_executed(data: bytes, *, rank: int, artifact: str = "") -> ExecutedLines:
    """Read the executed lines of one rank.

    Args:
        data: The file, which may be of a process that runs, or was killed.
        rank: Whose it is.
        artifact: The path to cite.

    Returns:
        The threads in the order of their beginning, each with its lines, oldest first.

    Raises:
        ParseError: It is no such file.
    """
    if len(data) < _HEADER.size or not data.startswith(_MAGIC):
        raise ParseError("it is no file of executed lines")
    (_, header_bytes, capacity, threads, method, names_bytes, names_used, lost, _, _, started_ns,
     line_ns, call_ns) = _HEADER.unpack_from(data)  # fmt: skip
    if not 0 < capacity <= _MAX_LINES or threads > _MAX_THREADS:
        raise ParseError("its header makes no sense")
    start = header_bytes + names_bytes
    room = _THREAD.size + capacity * _ENTRY.itemsize
    if names_used > names_bytes or start + threads * room > len(data):
        raise ParseError("it is cut off")
    names = list(_read_names(data[header_bytes : header_bytes + names_used]))
    places = (start + number * room for number in range(threads))
    found = [(_THREAD.unpack_from(data, at), data[at + _THREAD.size : at + room]) for at in places]
    found.sort(key=lambda item: item[0][2])
    made = (_make_thread(head, entries, names) for head, entries in found)
    return ExecutedLines(
        rank=rank,
        method=_METHODS.get(method, "?"),
        capacity=capacity,
        line_ns=_finite(line_ns),
        call_ns=_finite(call_ns),
        started_ns=started_ns,
        lost_threads=lost,
        problem=_read_text(data[_PROBLEM_AT:header_bytes]),
        threads=tuple(thread for thread in made if thread is not None),
        artifact=artifact,
    )


def _read_names(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield file and function of each number, from 1."""
    at = 0
    while at + _NAME.size <= len(data):
        (size,) = _NAME.unpack_from(data, at)
        at += _NAME.size
        try:
            file, function = decode_json(data[at : at + size], tuple[str, str])
        except (msgspec.DecodeError, UnicodeDecodeError):
            file, function = _UNKNOWN
        yield file, function
        at += size


def _make_thread(
    head: tuple[int, int, int, bytes], data: bytes, names: list[tuple[str, str]]
) -> ExecutedThread | None:
    entries = np.frombuffer(data, _ENTRY)
    # An entry that was being written stands in a place that is not its own, or is not there yet.
    places = np.arange(len(entries), dtype=np.uint64)
    is_whole = (entries["count"] > 0) & (entries["count"] % len(entries) == places)
    kept = entries[is_whole]
    if not len(kept):
        return None
    kept = kept[np.argsort(kept["count"])]
    made: dict[tuple[int, int], ExecutedLine] = {}
    lines = []
    for place in zip(kept["function"].tolist(), kept["line"].tolist(), strict=True):
        if place not in made:
            number, line = place
            file, function = names[number - 1] if 0 < number <= len(names) else _UNKNOWN
            made[place] = ExecutedLine(file, line, function)
        lines.append(made[place])
    native_id, is_main, _, name = head
    return ExecutedThread(
        _read_text(name), native_id, bool(is_main), int(kept["count"][-1]), tuple(lines)
    )


def _read_text(data: bytes) -> str:
    return data.split(b"\0", 1)[0].decode("utf-8", "replace")


def _finite(value: float) -> float:
    return value if math.isfinite(value) and value >= 0 else 0.0
