"""All errors that logs hold, in the order in which they happened."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby

from msgspec.structs import replace

from whystuck.diagnose.algorithms.stacks.frames import select_user_frames
from whystuck.diagnose.logs.clocks import Offset
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Finding
from whystuck.evidence.live import ExitRecord, PythonException
from whystuck.evidence.logs.lines import LogCluster, LogEvent, LogTime
from whystuck.evidence.logs.report import LogRecord

_NS_PER_S = 1_000_000_000
_NS_PER_MS = 1_000_000
_LATEST = 1 << 63
# A line without a time was written about when its neighbours were.
_UNTIMED_NS = _NS_PER_S
_MAX_TEXT = 2000
_DIGITS = re.compile(r"([0-9]+)")
_MAX_DIGITS = 18


@dataclass(frozen=True)
class _Draft:
    """A record, and the time that its log gives it."""

    record: LogRecord
    time: LogTime | None


@dataclass(frozen=True, order=True)
class _Placed:
    """A record and its place: a time, what decides between equal ones, and how exact it is."""

    at_ns: int
    number: int
    slack_ns: int = field(compare=False)
    record: LogRecord = field(compare=False)


class Timekeeper:
    """Moves times to the clock that most records of the logs go by."""

    def __init__(self, view: LogView, drafts: Sequence[_Draft]) -> None:
        """Choose that clock, and compare the others with it."""
        counts = Counter(draft.time.clock for draft in drafts if draft.time)
        # Of two that are as common, the first by name, so that it is always the same.
        self.reference = min(counts, key=lambda clock: (-counts[clock], clock), default="")
        self.offsets: dict[str, Offset] = {}
        for clock in sorted(counts.keys() - {self.reference}):
            offset = view.clocks.find_offset(self.reference, clock)
            if offset is not None:
                self.offsets[clock] = offset
        # A launcher's table of ends names hosts in its own way, and has no order to put right.
        written = {one.time.clock for one in drafts if one.time and one.record.kind != "exit"}
        self.unmatched = sorted(written - {self.reference} - self.offsets.keys())

    def shift(self, clock: str) -> int:
        """Return what is to be added to a time of a clock, in nanoseconds."""
        return -self.offsets[clock].ns if clock in self.offsets else 0


def list_records(view: LogView, findings: Sequence[Finding] = ()) -> list[LogRecord]:
    """List all errors of the logs, those that happened first at the front.

    Args:
        view: The logs.
        findings: Those of the report; the records that the first one rests on are marked.

    Returns:
        The records. One without a time stands where its log has it, among those of other logs.
    """
    return order_records(view, findings)[0]


def order_records(
    view: LogView, findings: Sequence[Finding] = ()
) -> tuple[list[LogRecord], Timekeeper]:
    """List the records as `list_records` does, with what is known of the clocks."""
    drafts = list(_draft_all(view))
    keeper = Timekeeper(view, drafts)
    cited = {(cite.artifact, cite.row) for finding in findings[:1] for cite in finding.because}
    placed = _place([_finish(draft, keeper, cited) for draft in drafts])
    records = [item.record for item in placed]
    errors = [(at, item) for at, item in enumerate(placed) if item.record.role != "context"]
    if errors and _is_surely_first([item for _, item in errors]):
        records[errors[0][0]] = replace(errors[0][1].record, is_first=True)
    return records, keeper


def format_time(ns: int, step_ns: int, *, is_zoned: bool) -> str:
    """Write a time as its log tells it: no finer than its clock, and ``Z`` where it is UTC."""
    whole, rest = divmod(ns, _NS_PER_S)
    try:
        text = datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return ""  # a stamp of a broken clock
    if step_ns < _NS_PER_MS:
        text += f".{rest // 1000:06d}"
    elif step_ns < _NS_PER_S:
        text += f".{rest // _NS_PER_MS:03d}"
    return f"{text}Z" if is_zoned else text


def _draft_all(view: LogView) -> Iterator[_Draft]:
    ends: set[int] = set()
    for item in view.evidence.exceptions:
        end = view.find_event_of(item)
        if end is not None:
            ends.add(id(end))
        yield _draft_exception(item, end, view.node_by_rank.get(item.rank, ""))
    for event in view.evidence.logs.events:
        if id(event) not in ends:
            yield _Draft(_describe_event(event), event.time)
    for ended in view.evidence.exits:
        if ended.code or ended.signal:
            yield _draft_exit(ended, view.node_by_rank.get(ended.rank, ""))
    for cluster in view.evidence.logs.clusters:
        yield _draft_cluster(cluster)


def _describe_event(event: LogEvent) -> LogRecord:
    return LogRecord(
        rank=event.rank,
        node=event.node,
        pid=event.pid,
        attempt=event.attempt,
        artifact=event.artifact,
        row=event.row or None,
        signature=event.signature,
        trouble=event.kind,
        role=event.role,
        code=event.code,
        severity=event.severity,
        is_hardware=event.is_hardware,
        count=event.count,
        text=event.text,
    )


def _draft_exception(item: PythonException, end: LogEvent | None, host: str) -> _Draft:
    message = item.message.partition("\n")[0]
    text = f"{item.type}: {message}" if message else item.type
    users = select_user_frames(item.frames)[:1]
    if users:
        text += f" ({users[0].file}:{users[0].line} in {users[0].function})"
    known = _describe_event(end) if end else LogRecord(role="cause", severity="error")
    record = replace(
        known,
        rank=item.rank,
        node=item.node or known.node or host,
        pid=item.pid or known.pid,
        attempt=item.attempt,
        artifact=item.artifact,
        row=known.row or item.row or None,
        kind="exception",
        text=text[:_MAX_TEXT],
    )
    time = item.time or (end.time if end else None)
    if time is None and item.time_ns:
        time = LogTime(item.time_ns, clock=record.node or item.artifact, is_zoned=True)
    return _Draft(record, time)


def _draft_exit(item: ExitRecord, host: str) -> _Draft:
    how = f"by {_name_signal(item.signal)}" if item.signal else f"with code {item.code}"
    who = f"rank {item.rank}" if item.rank >= 0 else f"process {item.pid}"
    record = LogRecord(
        rank=item.rank,
        node=item.node or host,
        pid=item.pid,
        attempt=item.attempt,
        artifact=item.artifact,
        row=item.row or None,
        kind="exit",
        role="cascade" if item.after_launcher_kill else "cause",
        severity="error",
        text=f"{who} ended {how}",
    )
    time = item.time
    if time is None and item.ended_ns:
        time = LogTime(item.ended_ns, clock=record.node or item.artifact, is_zoned=True)
    return _Draft(record, time)


def _draft_cluster(item: LogCluster) -> _Draft:
    record = LogRecord(
        rank=next(iter(item.ranks)) if len(item.ranks) == 1 else -1,
        artifact=item.artifact,
        row=item.row or None,
        kind="unknown",
        severity="error",
        count=item.count,
        text=item.sample[:_MAX_TEXT],
    )
    return _Draft(record, item.time)


def _finish(draft: _Draft, keeper: Timekeeper, cited: set[tuple[str, int | None]]) -> _Draft:
    record, time = draft.record, draft.time
    is_cause = (record.artifact, record.row) in cited
    if time is None:
        return _Draft(replace(record, is_cause=is_cause), None)
    shift_ns = keeper.shift(time.clock)
    ns = time.ns + shift_ns
    text = format_time(ns, time.step_ns, is_zoned=time.is_zoned)
    shown = replace(record, time=text, time_ns=ns, shift_ns=shift_ns, is_cause=is_cause)
    return _Draft(shown, time)


def _place(drafts: Iterable[_Draft]) -> list[_Placed]:
    """Order records by time; one without stands right behind the one above it in its log.

    A stamp of whole seconds does not put a line before the one above it of the same second.
    """
    placed: list[_Placed] = []
    by_log = sorted(drafts, key=lambda item: (_natural(item.record.artifact), item.record.row or 0))
    for _, group in groupby(by_log, key=lambda item: item.record.artifact):
        of_log = list(group)
        bounds = _find_bounds(of_log)
        at_ns = bounds[0]
        for item, bound_ns in zip(of_log, bounds, strict=True):
            own_ns, step_ns = item.record.time_ns, item.time.step_ns if item.time else 0
            if own_ns is None:
                at_ns = min(at_ns, bound_ns)
            elif not own_ns < at_ns < own_ns + step_ns:
                at_ns = own_ns
            slack_ns = step_ns if own_ns is not None else _UNTIMED_NS
            placed.append(_Placed(at_ns, len(placed), slack_ns, item.record))
    return sorted(placed)


def _find_bounds(of_log: Sequence[_Draft]) -> list[int]:
    """Return for each record of a log the earliest time that stands there or below it.

    A launcher's table of failures stands below the lines of the ranks, and has earlier times.
    """
    bounds, bound_ns = [], _LATEST
    for item in reversed(of_log):
        if item.record.time_ns is not None:
            bound_ns = min(bound_ns, item.record.time_ns)
        bounds.append(bound_ns)
    return bounds[::-1]


def _is_surely_first(placed: Sequence[_Placed]) -> bool:
    """Tell whether the order says which error was first, and not only the names of the logs."""
    first = placed[0]
    if first.record.is_cause:
        return True
    other = next((item for item in placed if item.record.artifact != first.record.artifact), None)
    if other is None:
        return True
    gap_ns = other.at_ns - first.at_ns
    is_timed = all(item.at_ns < _LATEST for item in placed)
    return is_timed and gap_ns > max(first.slack_ns, other.slack_ns)


def _natural(name: str) -> list[tuple[int, str]]:
    """Order rank-10 behind rank-9."""
    parts = _DIGITS.split(name)
    return [(int(part[:_MAX_DIGITS]) if part.isdecimal() else -1, part) for part in parts]


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
