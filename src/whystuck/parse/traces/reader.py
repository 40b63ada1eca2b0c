"""The bytes of a Kineto trace to columns, piece by piece."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from whystuck.evidence.finding import Gap
from whystuck.evidence.traces.events import DEVICE_WORK, UNKNOWN, Detail, Trace
from whystuck.parse.errors import ParseError
from whystuck.parse.traces.cut import EventCutter, find_values
from whystuck.parse.traces.events import EventReader
from whystuck.parse.traces.header import (
    find_base,
    find_devices,
    find_groups,
    find_host,
    find_rank,
    find_vendor,
    find_world_size,
)
from whystuck.parse.traces.repair import mend_events, read_object
from whystuck.parse.traces.source import Source
from whystuck.parse.weight import check_json

# Larger ones do not stay in the cache of a core: 8 MB take a third longer than 1 MB.
PIECE_BYTES = 1 << 20
# So far the events are looked for. Beyond the other, no end of an event or of the keys behind them
# is: where each byte is a bracket, that takes 25 times as much memory.
_MOST_BEFORE_BYTES = 64 << 20
_MOST_BYTES = 8 << 20
# Traces in one file; to look for the next one takes some ms.
_MOST_TRACES = 100
# What looks like the list of events may be a part of a text.
_MOST_TRIES = 50
NO_RANK = "it tells no rank"
_OPENING = re.compile(rb'"traceEvents"\s*:\s*\[')
_BLANK = b" \t\r\n"
_BETWEEN = b" \t\r\n,"
_BOM = b"\xef\xbb\xbf"


def read_trace(pieces: Iterable[bytes], artifact: str = "", detail: Detail = Detail.ALL) -> Trace:
    """Read a Kineto trace, in memory for its columns and one piece.

    Args:
        pieces: The content of the file, in pieces of any size. When it raises `ParseError`, the
            content is damaged there, and what came before it is read.
        artifact: The name that citations and gaps give to it.
        detail: The arguments to decode into `Trace.sparse`. `Detail.LEAN` is the fastest; what a
            metric needs beyond it costs time where events have it.

    Returns:
        The trace. What cannot be read of it is told in its gaps.

    Raises:
        ParseError: It is no trace.
    """
    return _Reader(pieces, artifact, detail).read()


class _Reader:
    def __init__(self, pieces: Iterable[bytes], artifact: str, detail: Detail) -> None:
        self.source = Source(pieces, PIECE_BYTES)
        self.artifact = artifact
        self.events = EventReader(detail)
        self.cutter = EventCutter()
        self.keys: dict[str, Any] = {}
        self.notes: list[str] = []
        self.lost: Counter[str] = self.events.lost

    def read(self) -> Trace:
        keys: dict[str, Any] | None = self._open()
        for _ in range(_MOST_TRACES):
            if keys is None:
                break
            self.keys = {**keys, **self.keys}
            is_object = self._is_object
            if not self._read_events() or not self._close(is_object=is_object):
                break
            keys = self._open_next()
        else:
            if keys is not None:
                self.notes.append(
                    f"more than {_MOST_TRACES} traces follow each other in it: the first are read"
                )
        if not self._is_object and not self.events.has_phases:
            raise ParseError("it is a list, but not one of trace events")
        return self._build()

    def _open(self) -> dict[str, Any]:
        """Read up to the events; return the keys before them."""
        source = self.source
        source.fill(PIECE_BYTES)
        source.text = source.text.removeprefix(_BOM).lstrip(_BLANK)
        self._is_object = not source.text.startswith(b"[")
        if not self._is_object:
            source.text = source.text[1:]
            return {}
        if not source.text:
            raise ParseError(source.damage or "it is empty")
        if not source.text.startswith(b"{"):
            raise ParseError("it is no JSON")
        place = tries = 0
        while True:
            text = source.text
            if tries < _MOST_TRIES and (hit := _OPENING.search(text, place)):
                tries += 1
                check_json(text[: hit.start()])
                keys = read_object(text[: hit.start()] + b'"traceEvents":0}')
                if keys is not None:
                    source.text = text[hit.end() :]
                    return keys
                place = hit.end()
            elif source.is_ended or len(source.text) > _MOST_BEFORE_BYTES:
                raise ParseError(self._why_no_events())
            else:
                place = 0
                source.fill(2 * len(source.text))

    def _why_no_events(self) -> str:
        if self.source.damage:
            return f"it has no traceEvents before its damage ({self.source.damage})"
        if len(self.source) > _MOST_BYTES:
            return f"it has no traceEvents in its first {_MOST_BEFORE_BYTES >> 20} MiB"
        if read_object(self.source.text) is None:
            return "it is no whole JSON, and has no traceEvents"
        return "it has no traceEvents"

    def _read_events(self) -> bool:
        """Read events up to the end of their list; False when it does not come."""
        source, size = self.source, PIECE_BYTES
        while True:
            source.fill(size)
            if source.is_ended:
                return self._read_last()
            cut = self.cutter.guess(source)
            if cut and source.offer(cut, self.events.add):
                source.skip(_BETWEEN)
                continue
            self.cutter.forget()
            before = len(source)
            if self._read_whole():
                return True
            # When nothing was taken, an event is larger than a piece.
            size = PIECE_BYTES if len(source) < before else 2 * size
            if size > _MOST_BYTES:
                self.notes.append("an event in it has no end; what follows it was not read")
                return False

    def _read_last(self) -> bool:
        end = self.source.rfind(b"]")
        if end >= 0 and self.source.offer(end, self.events.add):
            self.source.skip_bytes(1)
            return True
        if self._read_whole():
            return True
        self._note_end(len(self.source.text.strip(_BETWEEN)))
        return False

    def _note_end(self, left: int) -> None:
        why = f" ({self.source.damage})" if self.source.damage else ""
        self.notes.append(
            f"it ends early{why}: {self.events.count} events were read, "
            f"and the last {left} bytes are of none"
        )

    def _read_whole(self) -> bool:
        """Read all whole events that are there; True when their list ends there."""
        text = self.source.text
        layout = find_values(text)
        if len(layout.end):
            first, last = int(layout.start[0]), int(layout.end[-1])
            if not self.events.add(b"[%b]" % text[first:last]):
                mended, lost = mend_events(text, layout)
                if lost:
                    self.lost["are no JSON"] += lost
                if not self.events.add(mended):
                    self.lost["cannot be read"] += len(layout.end) - lost
            self.source.text = text[last:].lstrip(_BETWEEN)
        if layout.close >= 0:
            self.source.text = text[layout.close + 1 :]
        return layout.close >= 0

    def _close(self, *, is_object: bool) -> bool:
        """Read the keys behind the events; False when the file ends in them."""
        source = self.source
        if not is_object:
            return True
        while (close := find_values(source.text).close) < 0:
            if source.is_ended or len(source.text) > _MOST_BYTES:
                self._note_end(0)
                return False
            source.fill(max(2 * len(source.text), PIECE_BYTES))
        keys = read_object(b"{%b}" % source.text[:close].strip(_BETWEEN))
        if keys is None:
            self.notes.append("what stands behind its events cannot be read")
        self.keys = {**(keys or {}), **self.keys}
        source.text = source.text[close + 1 :]
        return True

    def _open_next(self) -> dict[str, Any] | None:
        """Open a trace that follows in the same file, when it is of the same rank and clock."""
        source = self.source
        source.text = source.text.lstrip(_BETWEEN + b"\0")
        if not source.text:
            source.fill(1)
            source.text = source.text.lstrip(_BETWEEN + b"\0")
        if source.damage:
            self.notes.append(f"it is damaged behind its events ({source.damage})")
        if not source.text:
            return None
        try:
            keys = self._open()
        except ParseError as error:
            self.notes.append(f"what follows the trace was not read: {error}")
            return None
        finally:
            pass
        known = find_rank(self.keys)
        if find_rank(keys) not in (known, UNKNOWN) or find_base(
            {**self.keys, **keys}, 0
        ) != find_base(self.keys, 0):
            self.notes.append("another trace follows in the same file and was not read")
            return None
        self.cutter.forget()
        return keys

    def _build(self) -> Trace:
        columns, keys = self.events.columns, self.keys
        base, shift = find_base(keys, columns.first_start())
        sparse = columns.take_sparse()
        events = columns.take_events(shift)
        devices = find_devices(keys)
        names = tuple(columns.names)
        has_work = bool(set(columns.categories.values()) & set(DEVICE_WORK))
        rank = find_rank(keys)
        notes = [*self.notes, *self.events.describe_lost()]
        if rank == UNKNOWN:
            notes.append(NO_RANK)
        return Trace(
            artifact=self.artifact,
            rank=rank,
            world_size=find_world_size(keys),
            host=find_host(keys),
            vendor=find_vendor(devices, columns.categories, names, has_device_work=has_work),
            base_ns=base,
            names=names,
            texts=tuple(columns.texts.positions),
            events=events,
            sparse=sparse,
            thread_names=self.events.thread_names,
            process_names=self.events.process_names,
            process_labels=self.events.process_labels,
            groups=find_groups(keys),
            devices=devices,
            gaps=tuple(Gap(None, self.artifact, note) for note in notes),
        )
