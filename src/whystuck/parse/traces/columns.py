"""Decoded events of a trace to columns, one piece after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.traces.events import (
    DEVICE_WORK,
    SPARSE_NAMES,
    UNKNOWN,
    Category,
    Detail,
    Sparse,
    TraceEvents,
)
from whystuck.parse.traces.schema import GROUPS, HOLDERS, NO_TEXT, TEXT, TRIGGERS, attribute_of
from whystuck.parse.traces.tables import (
    CategoryCodes,
    Devices,
    Ids,
    Positions,
    Streams,
    Texts,
    read_numbers,
    whole_numbers,
)

Codes = NDArray[np.uint8]
Times = NDArray[np.int64]

_DEVICE = (*DEVICE_WORK, Category.GPU_ANNOTATION, Category.SYNC)


def _mark(categories: Sequence[Category]) -> NDArray[np.bool_]:
    marks = np.zeros(len(Category), dtype=np.bool_)
    marks[list(categories)] = True
    return marks


_IS_DEVICE = _mark(_DEVICE)
_IS_HOLDER = {group: _mark(categories) for group, categories in HOLDERS.items()}


class ColumnBuilder:
    """Collects the columns of a trace, a chunk a piece."""

    def __init__(self) -> None:
        self.names, self.texts = Positions(), Texts()
        self.categories, self.ids = CategoryCodes(), Ids()
        self.count = 0
        self._streams, self._devices = Streams(), Devices()
        self._chunks: dict[str, list[NDArray[Any]]] = {}
        self._sparse: dict[str, list[tuple[Times, NDArray[Any]]]] = {}

    def classify(self, events: Sequence[Any]) -> Codes:
        """Return the `Category` of each event."""
        categories = map(self.categories.__getitem__, [event.cat for event in events])
        return np.fromiter(categories, np.uint8, len(events))

    def find_needs(self, codes: Codes, arguments: Sequence[Any], active: Detail) -> Detail:
        """Tell which groups of arguments some events may have; ``active`` ones are decoded."""
        needs = Detail.OLD if self.categories.has_old else Detail.NONE
        seen = np.bincount(codes, minlength=len(Category)).tolist()
        for category, groups in TRIGGERS.items():
            if seen[category]:
                needs |= groups
        if active & Detail.COMM:
            return needs
        for markers in ([one.collective for one in arguments], [one.group for one in arguments]):
            if markers.count(NO_TEXT) != len(markers):
                needs |= Detail.COMM
        return needs

    def add(
        self,
        events: Sequence[Any],
        arguments: Sequence[Any],
        codes: Codes,
        start: Times,
        duration: Times,
    ) -> None:
        """Add events.

        Args:
            events: Decoded events.
            arguments: Their arguments.
            codes: Their categories.
            start: Their starts in ns.
            duration: Their durations in ns.
        """
        names = map(self.names.__getitem__, [event.name for event in events])
        pid = self.ids.convert([event.pid for event in events])
        tid = self.ids.convert([event.tid for event in events])
        correlation = whole_numbers([one.correlation for one in arguments])
        external = whole_numbers([one.external for one in arguments])
        if arguments and hasattr(arguments[0], "external_old"):
            _fill_old(correlation, [one.correlation_old for one in arguments])
            _fill_old(external, [one.external_old for one in arguments])
        device, stream = self._find_places(events, arguments, codes)
        chunk: dict[str, NDArray[Any]] = {
            "start_ns": start,
            "duration_ns": duration,
            "name": np.fromiter(names, np.int32, len(events)),
            "category": codes,
            "pid": pid,
            "tid": tid,
            "device": device,
            "stream": stream,
            "correlation": correlation,
            "external": external,
        }
        for name, column in chunk.items():
            self._chunks.setdefault(name, []).append(column)
        self._add_sparse(arguments, codes)
        self.count += len(events)

    def add_counters(self, rows: Sequence[int], texts: Sequence[bytes]) -> None:
        """Add all arguments of some events, which are added next: rows from the first of them."""
        self._append("counters:text", rows, [self.texts[bytes(text)] for text in texts])

    def _find_places(
        self, events: Sequence[Any], arguments: Sequence[Any], codes: Codes
    ) -> tuple[NDArray[np.int16], NDArray[np.int32]]:
        """Return the device and the stream of device work; where they are not told, pid and tid."""
        device = np.full(len(codes), UNKNOWN, dtype=np.int16)
        stream = np.full(len(codes), UNKNOWN, dtype=np.int32)
        at = np.flatnonzero(_IS_DEVICE[codes])
        rows = at.tolist()
        devices = [arguments[row].device for row in rows]
        streams = [arguments[row].stream for row in rows]
        if None in devices:
            devices = [
                events[row].pid if value is None else value
                for row, value in zip(rows, devices, strict=True)
            ]
        if None in streams:
            streams = [
                events[row].tid if value is None else value
                for row, value in zip(rows, streams, strict=True)
            ]
        device[at] = np.fromiter(map(self._devices.__getitem__, devices), np.int16, len(rows))
        stream[at] = np.fromiter(map(self._streams.__getitem__, streams), np.int32, len(rows))
        return device, stream

    def _add_sparse(self, arguments: Sequence[Any], codes: Codes) -> None:
        for group, is_holder in _IS_HOLDER.items():
            columns = GROUPS[group]
            if not arguments or not hasattr(arguments[0], attribute_of(columns[-1])):
                continue
            rows = np.flatnonzero(is_holder[codes]).tolist()
            if group is Detail.COMM:
                held = [arguments[row] for row in rows]
                rows = [
                    row
                    for row, one in zip(rows, held, strict=True)
                    if one.collective is not NO_TEXT or one.group is not NO_TEXT
                ]
            if rows:
                held = [arguments[row] for row in rows]
                for column in columns:
                    self._add_column(column, rows, held)

    def _add_column(self, column: str, rows: Sequence[int], held: Sequence[Any]) -> None:
        values = list(map(attrgetter(attribute_of(column)), held))
        if column.endswith(TEXT):
            places = [place for place, value in enumerate(values) if value is not NO_TEXT]
            if places:
                texts = [self.texts[bytes(values[place])] for place in places]
                self._append(column, [rows[place] for place in places], texts)
            return
        if None in values:
            rows = [row for row, value in zip(rows, values, strict=True) if value is not None]
            values = [value for value in values if value is not None]
        if values:
            kept, numbers = read_numbers(values)
            self._append(column, rows if kept is None else [rows[place] for place in kept], numbers)

    def _append(self, column: str, rows: Sequence[int], values: Any) -> None:  # noqa: ANN401 - numbers
        made = np.asarray(values)
        if len(made):
            at = np.fromiter(rows, np.int64, len(rows)) + self.count
            self._sparse.setdefault(column, []).append((at, made))

    def take_events(self, shift: int) -> TraceEvents:
        """Return the columns of all events, their starts less a shift; this empties the builder."""
        types = {name: column.dtype for name, column in vars(TraceEvents()).items()}
        columns = {}
        for name, dtype in types.items():
            # One after the other, so that no more than one column is there twice.
            chunks = self._chunks.pop(name, [])
            columns[name] = np.concatenate(chunks) if chunks else np.empty(0, dtype=dtype)
        columns["start_ns"] -= shift
        return TraceEvents(**columns)

    def first_start(self) -> int:
        """Return the earliest start in ns, 0 when there is no event."""
        return min(
            (int(chunk.min()) for chunk in self._chunks.get("start_ns", ()) if len(chunk)),
            default=0,
        )

    def take_sparse(self) -> Mapping[str, Sparse]:
        """Return all further arguments, in the order of their names; this empties the builder."""
        return dict(self._join_sparse())

    def _join_sparse(self) -> Iterator[tuple[str, Sparse]]:
        for name in SPARSE_NAMES:
            if chunks := self._sparse.pop(name, []):
                at = np.concatenate([chunk[0] for chunk in chunks])
                value = np.concatenate([chunk[1] for chunk in chunks])
                yield name, Sparse(at, value)


def _fill_old(numbers: Times, old: Sequence[Any]) -> None:
    others = whole_numbers([UNKNOWN if value is None else value for value in old])
    np.copyto(numbers, others, where=numbers == UNKNOWN)
