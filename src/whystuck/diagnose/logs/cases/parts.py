"""What makers of cases share: times, places and words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import name_known
from whystuck.diagnose.algorithms.stacks.frames import make_places
from whystuck.diagnose.logs.story import MAX_CASES
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Place
from whystuck.evidence.live import ExitRecord, PythonException
from whystuck.evidence.logs.lines import LogEvent, LogTime

T = TypeVar("T")

# What ranks print that waited until a time limit.
WAITS = (
    "c10d.watchdog_timeout",
    "gloo.timeout",
    "store.timeout",
    "store.key",
    "nccl.unique_id",
)

# What launchers and torch print from the start of a job on. Clocks of two zones differ by a day.
_OF_JOB = ("elastic.", "c10d.", "nccl.", "torch.")
_EPOCH_NS, _DAYS_NS = 946_684_800_000_000_000, 48 * 3_600_000_000_000
_PLACES = 3
_SIGABRT, _SENT = 6, {9, 15}
# What a line holds between quotes is data that somebody prints, not what happened.
_TELLING = re.compile(
    r"CUDA error|CUDA out of memory|OutOfMemoryError|NVRM:|Killed process|Watchdog caught"
    r"|Segmentation fault|Bus error|SXid|NCCL WARN|Error\b"
)


# What is tried again has not ended anything yet; the last of so many tries may.
_TRIED_AGAIN = re.compile(
    r"\b[Rr]etrying\b|\bwill (?:retry|be retried)\b|\b[Bb]ack(?:ing|s) off\b"
    r"|\b[Aa]ttempt (\d{1,4})(?: ?/ ?| of )(\d{1,4})\b"
)


# Words of somebody who tells what a message was: `he says it is 'Connection reset by peer'`.
_RETOLD = re.compile(
    r"\b(?:of|says?|said|about|saw|sees?) (?:the |that |an? |it is ){0,2}"
    r"(?P<mark>['\"])[^'\"]{0,80}(?:reset by peer|closed by|timed? ?out|[Ee]rror)"
    r"[^'\"]{0,80}(?P=mark)"
)


# What grep found in code or documents, and statements of programs; warnings of Python have one
# blank behind the number of the line, and code is indented.
_IN_SOURCE = re.compile(
    r"^[\w./~+-]{1,200}\.(?:pyi?|cc?|cpp|cuh?|h|hpp|rs|go|md|rst|ipynb|toml|ya?ml|sh|patch|diff)"
    r"[:-]\d{1,6}[:-](?:\S|\s{2,})"
    r"|^(?:raise |throw |assert |print\(|logg(?:er|ing)\.\w+\(|LOG\(|TORCH_CHECK|std::cerr|// )"
)


def is_said(event: LogEvent) -> bool:
    """Tell whether a line says something itself, rather than showing a text that does.

    Nor does a line of code or of a document, one that tells that something is tried again, or one
    of somebody who tells what a message was.
    """
    text = event.text.lstrip()
    if _IN_SOURCE.match(text) or _RETOLD.search(text):
        return False
    if (again := _TRIED_AGAIN.search(text)) and (not again[1] or int(again[1]) < int(again[2])):
        return False
    found = _TELLING.search(text)
    if found is None or text.startswith("{"):
        return True
    before = text[: found.start()]
    return before.count('"') % 2 == 0 and before.count("`") % 2 == 0


def drop_before_job(view: LogView, events: Sequence[LogEvent]) -> list[LogEvent]:
    """Leave out what drivers wrote days before the first line that is known of the job.

    Where the job failed, its failures tell what it felt.
    """
    of_job = [one for one in (*view.earlier, *view.events) if one.signature.startswith(_OF_JOB)]
    has_failed = any(
        one.role != "context" and one.attempt >= view.last_attempt and not one.is_past
        for one in of_job
    )
    has_failed |= bool(view.exceptions) or any(one.code or one.signal for one in view.exits)
    begun_ns = min((one.time.ns for one in of_job if one.time is not None), default=0)
    if has_failed or not begun_ns:
        return list(events)
    return [
        one
        for one in events
        if not one.signature.startswith("xid.")
        or one.time is None
        or not _EPOCH_NS < one.time.ns < begun_ns - _DAYS_NS
    ]


def find_time(*items: Iterable[LogEvent | PythonException | ExitRecord]) -> LogTime | None:
    """Return the earliest time of some lines, tracebacks and ends; None when none has one."""
    times = [item.time for group in items for item in group if item.time is not None]
    return min(times, key=lambda time: time.ns, default=None)


def list_first(items: Sequence[T], tell_time: Callable[[T], LogTime | None]) -> list[T]:
    """Return what cases are made of; the earliest of it, where there is more than is compared."""
    if len(items) <= MAX_CASES:
        return list(items)
    last = float("inf")
    times = [last if (time := tell_time(item)) is None else time.ns for item in items]
    order = sorted(range(len(items)), key=times.__getitem__)
    # One more, so that it shows that some are left out.
    return [items[number] for number in order[: MAX_CASES + 1]]


def list_ranks(events: Iterable[LogEvent | PythonException | ExitRecord]) -> tuple[int, ...]:
    """Return the ranks that wrote some lines, without those that nobody knows."""
    return tuple(sorted({event.rank for event in events} - {-1}))


def place_exceptions(exceptions: Sequence[PythonException]) -> tuple[Place, ...]:
    """Return the user's lines of some tracebacks, innermost first; callers of the first alone."""
    places: list[Place] = []
    for item in exceptions:
        limit = _PLACES if len(exceptions) == 1 else 1
        places += make_places(item.rank, item.frames, limit)
    return tuple(places)


def find_exceptions(
    view: LogView, events: Iterable[LogEvent], code: str = ""
) -> tuple[PythonException, ...]:
    """Return the tracebacks that end with one of some lines, or whose message is of a code."""
    wanted = {(event.artifact, event.row) for event in events}
    found = []
    for item in view.exceptions:
        event = view.find_event_of(item)
        is_told = event is not None and (event.artifact, event.row) in wanted
        if is_told or (code and event is None and name_known(item) == code):
            found.append(item)
    return tuple(found)


def find_sole_abort(view: LogView, events: Sequence[LogEvent]) -> ExitRecord | None:
    """Return the end of the one rank that a launcher saw abort, where nobody signed some lines.

    A runtime that finds a broken device ends its process. Where other ranks failed by themselves,
    or that one raised an exception, the lines may be of any.
    """
    places = {event.artifact for event in events}
    failed = {
        item.rank: item
        for item in view.exits
        if item.rank >= 0 and (item.code or item.signal) and not item.after_launcher_kill
    }
    own = {rank: item for rank, item in failed.items() if item.signal not in _SENT}
    if len(own) != 1 or view.raised_ranks & own.keys():
        return None
    end = next(iter(own.values()))
    return end if end.signal == _SIGABRT and {end.artifact} == places else None


def stands_before(
    event: LogEvent | ExitRecord, waits: Sequence[LogEvent | PythonException]
) -> bool:
    """Tell whether a line stands above those of ranks that gave up: what ends then ends by that.

    Of lines in another log, only their times tell.
    """
    rows = [one.row for one in waits if one.artifact == event.artifact]
    times = [one.time.ns for one in waits if one.time]
    if event.time and times:
        return event.time.ns <= min(times)
    return not rows or event.row < min(rows)


def list_victims(view: LogView, culprits: Iterable[int]) -> tuple[int, ...]:
    """Return the ranks that say that they waited or were cut off; silent ones are unknown."""
    told = {
        event.rank
        for event in view.events
        if event.code in {codes.PEER_LOST, codes.COLLECTIVE_TIMEOUT, codes.RENDEZVOUS_FAILED}
    }
    told |= {item.rank for item in view.exceptions}
    return tuple(sorted(told - set(culprits) - {-1}))


def name_job(view: LogView) -> str:
    """Return the id of the batch job as its log tells it, or ``JOB``."""
    for event in view.list_signatures("slurm."):
        if match := re.search(r"(?:JOB|STEP|StepId=) ?(\d+)", event.text):
            return match[1]
    return "JOB"
