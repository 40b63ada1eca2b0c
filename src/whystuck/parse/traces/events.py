"""Pieces of a trace to events with a start and a duration, and those to columns."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.traces.events import Category, Detail
from whystuck.parse.traces.columns import Codes, ColumnBuilder, Times
from whystuck.parse.traces.schema import NO_TEXT, TEXT_DECODER, Form, make_arguments, make_decoder
from whystuck.parse.traces.times import OUT_OF_RANGE, durations_to_ns, texts_to_ns, to_ns

# Begins of stacks, ends, names, and instants; flows and counters have no place in the columns.
_OTHER_PHASES = frozenset("MBEiI")
# What instants of memory become.
_INSTANT = "memory"
_MEMORY = "[memory]"
_MEMORY_CATEGORY = "cpu_instant_event"
# Columns that events have or not, so that those are looked for from the start.
_ALWAYS = Detail.SHAPES | Detail.AUTOGRAD | Detail.KERNELS
_ON_DEMAND = Detail.NAMES | Detail.OLD


class EventReader:
    """Decodes lists of events into columns.

    A decoder costs time for each argument that it knows. It starts with few, and is made anew when
    events come that may have more.
    """

    def __init__(self, detail: Detail) -> None:
        self.columns = ColumnBuilder()
        self.thread_names: dict[tuple[int, int], str] = {}
        self.process_names: dict[int, str] = {}
        self.process_labels: dict[int, str] = {}
        self.lost: Counter[str] = Counter()
        self.has_phases = False
        self._wanted = detail | _ON_DEMAND
        self._active = detail & _ALWAYS
        self._form = Form()
        # Events that began, of the form with begins and ends, by process and thread.
        self._open: dict[tuple[Any, Any], list[tuple[Any, int]]] = {}

    @property
    def count(self) -> int:
        """How many events were added."""
        return self.columns.count

    def add(self, text: bytes | memoryview) -> bool:
        """Add a list of events.

        Args:
            text: The list as JSON.

        Returns:
            False when it cannot be decoded; then nothing is added.
        """
        while True:
            try:
                events = make_decoder(self._active, self._form).decode(text)
            except (ValueError, RecursionError) as error:
                if self._form.with_any_category or not isinstance(error, msgspec.ValidationError):
                    return False
                # It is JSON, and may have a category that is not expected: from here on, any.
                self._form = self._form._replace(with_any_category=True)
                continue
            if self._add_decoded(events, text):
                return True

    def _add_decoded(self, events: list[Any], text: bytes | memoryview) -> bool:
        """Add events; False when they are to be decoded again, with more of them."""
        kept = [event for event in events if event.ph == "X"]
        others: list[Any] = []
        if len(kept) != len(events):
            others = [event for event in events if event.ph in _OTHER_PHASES]
            if sum(map(_mark_memory, others)):  # all of them, not up to the first
                kept = [event for event in events if event.ph in ("X", _INSTANT)]
        no_arguments = make_arguments(self._active)()
        arguments = [event.args or no_arguments for event in kept]
        codes = self.columns.classify(kept)
        needs = self.columns.find_needs(codes, arguments, self._active)
        if any(event.ph == "M" for event in others):
            needs |= Detail.NAMES
        if missing := needs & self._wanted & ~self._active:
            self._active |= missing
            return False
        times = self._read_times(kept)
        if times is None:
            self._form = self._form._replace(with_time_text=True)
            return False
        self.has_phases = self.has_phases or any(event.ph for event in events)
        counters = None
        if Detail.COUNTERS & self._wanted and (codes == Category.COUNTER).any():
            counters = _read_texts(events, kept, text)
        self._add_sound(_Rows(kept, arguments, codes, *times), counters)
        self._add_others(others)
        return True

    def _read_times(self, kept: Sequence[Any]) -> tuple[Times, Times] | None:
        """Return starts and durations in ns, `OUT_OF_RANGE` for none; None to read texts."""
        starts, durations = [event.ts for event in kept], [event.dur for event in kept]
        try:
            start = texts_to_ns(starts) if self._form.with_time_text else to_ns(starts)
            return None if start is None else (start, durations_to_ns(durations))
        except TypeError:
            pass
        # Some have none: they count as lost.
        is_whole = np.array([None not in pair for pair in zip(starts, durations, strict=True)])
        found = self._read_times([kept[row] for row in np.flatnonzero(is_whole).tolist()])
        if found is None:
            return None
        start, duration = (np.full(len(kept), OUT_OF_RANGE, dtype=np.int64) for _ in found)
        start[is_whole], duration[is_whole] = found
        return start, duration

    def _add_sound(self, rows: _Rows, counters: Sequence[bytes] | None) -> None:
        is_timed = (rows.start != OUT_OF_RANGE) & (rows.duration != OUT_OF_RANGE)
        is_sound = is_timed & (rows.duration >= 0)
        if not is_sound.all():
            self.lost["have no time or no duration"] += int((~is_timed).sum())
            self.lost["have a negative duration"] += int((is_timed & ~is_sound).sum())
            rows = rows.take(is_sound)
            if counters is not None:
                counters = [counters[row] for row in np.flatnonzero(is_sound).tolist()]
        if counters is not None:
            at = np.flatnonzero(rows.codes == Category.COUNTER).tolist()
            self.columns.add_counters(at, [counters[row] for row in at])
        self.columns.add(rows.events, rows.arguments, rows.codes, rows.start, rows.duration)

    def _add_others(self, others: Sequence[Any]) -> None:
        for event in others:
            if event.ph == "M":
                self._add_name(event)
        if paired := [event for event in others if event.ph in ("B", "E")]:
            self._add_pairs(paired)

    def _add_name(self, event: Any) -> None:  # noqa: ANN401 - a type made at run time
        if event.args is None:
            return
        pid, tid = self.columns.ids[event.pid], self.columns.ids[event.tid]
        name = event.args.labels if event.name == "process_labels" else event.args.name
        if name is None:
            return
        if event.name == "thread_name":
            self.thread_names[pid, tid] = str(name)
        elif event.name == "process_name":
            self.process_names[pid] = str(name)
        elif event.name == "process_labels":
            self.process_labels[pid] = str(name)

    def _add_pairs(self, events: Sequence[Any]) -> None:
        """Join begins with ends of the same process and thread, innermost first."""
        if self._form.with_time_text:
            times = texts_to_ns([event.ts for event in events])
        else:
            found = to_ns([math.inf if event.ts is None else event.ts for event in events])
            times = (
                found
                if found is not None
                else texts_to_ns([str(event.ts).encode() for event in events])
            )
        made: list[tuple[Any, int, int]] = []
        for event, time in zip(events, times.tolist(), strict=True):
            stack = self._open.setdefault((event.pid, event.tid), [])
            if event.ph == "B":
                stack.append((_keep(event), time))
            elif stack:
                begin, start = stack.pop()
                is_timed = OUT_OF_RANGE not in (start, time)
                made.append((begin, start, time - start if is_timed else OUT_OF_RANGE))
            else:
                self.lost["end without a begin"] += 1
        if not made:
            return
        kept = [begin for begin, _, _ in made]
        # A begin may be of a piece before, when fewer arguments were decoded.
        kind = make_arguments(self._active)
        arguments = [
            begin.args if isinstance(begin.args, kind) else _copy_arguments(begin.args, kind())
            for begin in kept
        ]
        starts = np.array([start for _, start, _ in made], dtype=np.int64)
        durations = np.array([duration for _, _, duration in made], dtype=np.int64)
        codes = self.columns.classify(kept)
        self._add_sound(_Rows(kept, arguments, codes, starts, durations), None)

    def describe_lost(self) -> Iterator[str]:
        """Tell what was left out, one sentence for each reason."""
        begun = sum(map(len, self._open.values()))
        for reason, count in [*self.lost.items(), ("begin without an end", begun)]:
            if count:
                yield f"{count} events {reason} and were left out"


@dataclass(frozen=True)
class _Rows:
    events: Sequence[Any]
    arguments: Sequence[Any]
    codes: Codes
    start: Times
    duration: Times

    def take(self, mask: NDArray[np.bool_]) -> _Rows:
        at = np.flatnonzero(mask).tolist()
        return _Rows(
            [self.events[row] for row in at],
            [self.arguments[row] for row in at],
            self.codes[mask],
            self.start[mask],
            self.duration[mask],
        )


def _mark_memory(event: Any) -> bool:  # noqa: ANN401 - a type made at run time
    """Make an instant of memory one that is kept."""
    if event.ph in ("i", "I") and (event.name == _MEMORY or event.cat == _MEMORY_CATEGORY):
        event.ph, event.cat, event.dur = _INSTANT, _MEMORY_CATEGORY, 0
        return True
    return False


def _read_texts(
    events: Sequence[Any], kept: Sequence[Any], text: bytes | memoryview
) -> list[bytes]:
    """Return the text of all arguments of some events."""
    whole = {
        id(event): one.args for event, one in zip(events, TEXT_DECODER.decode(text), strict=True)
    }
    return [bytes(whole[id(event)]) for event in kept]


def _keep(event: Any) -> Any:  # noqa: ANN401 - a type made at run time
    """Have an event hold no part of the text that it was decoded from."""
    for name in event.args.__struct_fields__ if event.args is not None else ():
        value = getattr(event.args, name)
        if isinstance(value, msgspec.Raw) and value is not NO_TEXT:
            setattr(event.args, name, value.copy())
    return event


def _copy_arguments(source: Any, target: Any) -> Any:  # noqa: ANN401 - types made at run time
    for name in source.__struct_fields__ if source is not None else ():
        setattr(target, name, getattr(source, name))
    return target
