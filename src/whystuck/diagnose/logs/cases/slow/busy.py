"""H117, H118 and H119 by lines of progress beside a time limit: somebody was still at work."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import is_timeout
from whystuck.diagnose.logs.cases.parts import WAITS, find_time, is_said, list_ranks
from whystuck.diagnose.logs.cases.saves.growing_saves import make_growing_saves
from whystuck.diagnose.logs.cases.saves.lagging_shards import list_shards, make_lagging_shards
from whystuck.diagnose.logs.cases.saves.saves import find_limit, make_slow_saves
from whystuck.diagnose.logs.story import BUSY, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.live import PythonException
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_SAVE, _SETUP = "progress.save", "progress.setup"
# What torchtitan says, and others that let each rank write its shard.
_SHARED_SAVE = re.compile(
    r"\bor staging if async is enabled|\bdistributed checkpoint|\bDCP\b|\bdcp\.|\bsharded\b",
    re.IGNORECASE,
)
_DOWNLOAD, _UPLOAD = "progress.download", "progress.upload"
# The time that a bar of progress has taken: `[29:33<11:50, 1.98MB/s]`, `[1:02:03<?`
_ELAPSED = re.compile(r"\[(?:(\d{1,3}):)?(\d{1,2}):(\d{2})<")
# What is uploaded for this share of a limit is what kept the ranks until it.
_LONG = 0.5
# Blocks of transformers, accelerate, Lightning and YOLO that the first process enters alone.
_LEADER_FIRST = {
    "main_process_first",
    "local_main_process_first",
    "_goes_first",
    "torch_distributed_zero_first",
    "rank_zero_first",
    "zero_first",
}
_DONE = 100
# What a person says of lines stands so few lines from one of them.
_NEAR = 3
_RAISE = "raise the time limit of the group: `init_process_group(timeout=timedelta(hours=2))`"


@dataclass(frozen=True)
class _Kind:
    """A kind of work: the signature of its lines, the code, and how it is told."""

    signature: str
    end: str
    code: str
    what: str
    advice: str


_KINDS = (
    _Kind(
        _SAVE,
        "progress.saved",
        codes.CHECKPOINT_SLOW,
        "a checkpoint was being saved",
        "save with all ranks at once (`torch.distributed.checkpoint`), or asynchronously",
    ),
    _Kind(
        _SETUP,
        "",
        codes.SETUP_SLOW,
        "data or weights were being prepared",
        "prepare the data before the job, and let the ranks wait with a longer limit",
    ),
    _Kind(
        _UPLOAD,
        "",
        codes.CHECKPOINT_SLOW,
        "a checkpoint was being uploaded",
        "upload in the background, or after the job, and let no rank wait for it",
    ),
    _Kind(
        _DOWNLOAD,
        "",
        codes.SETUP_SLOW,
        "a download was under way",
        "download before the job, or once into a folder that all hosts share",
    ),
    _Kind(
        "progress.compile",
        "progress.compiled",
        codes.COMPILE_DIVERGENCE,
        "code was being compiled",
        "share the compile cache among all ranks, or compile before the first collective",
    ),
)


def make_busy(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that waited while another one still made progress with other work."""
    waits = [event for event in view.list_signatures(*WAITS) if is_said(event)]
    raised = tuple(item for item in view.exceptions if is_timeout(item))
    if not (waits or raised):
        return
    waiting = sorted({*list_ranks(waits), *(item.rank for item in raised)} - {-1})
    for kind in _KINDS:
        lines = _list_uploads(view, waits) if kind.signature == _UPLOAD else _find_open(view, kind)
        if not lines or (kind.code == codes.CHECKPOINT_SLOW and _is_told_of(view)):
            continue
        last = lines[-1]
        told = (
            list_ranks([last])
            or _find_worker(view, lines)
            or _find_said(view, lines)
            or _find_leader(raised, view, waiting)
        )
        ranks = tuple(rank for rank in told if rank not in waiting)
        if kind.signature == _SAVE and _do_all_save(view, last):
            ranks = ()
        share = last.groups.get("pct") or ""
        at = f" ({share} % done)" if share else ""
        who = name_ranks(waiting) if waiting else "ranks"
        yield Case(
            code=kind.code,
            summary=f"{who} waited until a time limit while {kind.what}{at}: the job was alive, "
            "and the limit was shorter than that",
            tier=BUSY,
            ranks=ranks,
            victims=tuple(waiting),
            lines=(*lines[-2:], *waits[:4]),
            exceptions=raised,
            time=find_time(waits, raised),
            confidence=Confidence.LIKELY,
            details={"state": "running"},
            remedies=(_RAISE, kind.advice),
        )
        return


def _is_told_of(view: LogView) -> bool:
    """Tell whether it is known how long saves took, or that the file grows: that tells more."""
    makers = (make_slow_saves, make_growing_saves, make_lagging_shards)
    return any(any(make(view)) for make in makers)


def _do_all_save(view: LogView, line: LogEvent) -> bool:
    """Return whether all ranks save, so that who says so does no more than the others."""
    return _SHARED_SAVE.search(line.text) is not None or len(list_shards(view)) > 1


def _find_open(view: LogView, kind: _Kind) -> list[LogEvent]:
    """Find the lines of work that had begun and was not over, as far as the logs tell."""
    lines = [event for event in view.list_signatures(kind.signature) if not event.is_past]
    if not lines:
        return []
    if kind.signature == _DOWNLOAD:
        # Of a rank that nobody knows, what the ranks that wait say of it tells more.
        lines = [line for line in _list_undone(lines) if line.rank >= 0]
    if not lines or is_done(lines[-1]):
        return []
    last = lines[-1]
    ends: Sequence[LogEvent] = list(view.list_signatures(kind.end)) if kind.end else ()
    is_over = any(end.artifact == last.artifact and end.row > last.row for end in ends)
    return [] if is_over else lines


def _list_uploads(view: LogView, waits: Sequence[LogEvent]) -> list[LogEvent]:
    """Find the bars of an upload that took as long as ranks waited, or went on below that.

    A bar itself does not tell an upload from a download: another line says which it is.
    """
    told = [one for one in view.list_signatures(_UPLOAD) if not one.is_past]
    bars = [one for one in view.list_signatures(_DOWNLOAD) if told and not one.is_past]
    bars += [one for one in told if one.groups.get("pct")]
    # Several files have a bar each.
    last = {one.text.partition(":")[0]: one for one in sorted(bars, key=lambda one: one.row)}
    bars = sorted((one for one in last.values() if not is_done(one)), key=lambda one: one.row)
    rows = {one.artifact: one.row for one in reversed(waits)}
    limit_s = find_limit(waits)
    return [
        bar
        for bar in bars
        if bar.row > rows.get(bar.artifact, bar.row) or _find_elapsed(bar) >= _LONG * limit_s
    ]


def _find_elapsed(bar: LogEvent) -> int:
    """Return the seconds that a bar says it has taken."""
    match = _ELAPSED.search(bar.text)
    hours, minutes, seconds = (int(one or 0) for one in match.groups()) if match else (0, 0, 0)
    return (hours * 60 + minutes) * 60 + seconds


def _list_undone(lines: list[LogEvent]) -> list[LogEvent]:
    """Leave out the lines of ranks whose last one says that all is done."""
    last = {(line.artifact, line.rank): line for line in lines}
    return [line for line in lines if not is_done(last[line.artifact, line.rank])]


def is_done(line: LogEvent) -> bool:
    """Tell whether a line of progress is the last of its kind: all of 24 shards, or 100 %."""
    share, have = line.groups.get("pct") or "", line.groups.get("have") or ""
    is_all = have.isdecimal() and have == (line.groups.get("all") or "")
    return is_all or (share.isdecimal() and int(share) >= _DONE)


def _find_leader(
    raised: Sequence[PythonException], view: LogView, waiting: Sequence[int]
) -> tuple[int, ...]:
    """Find that rank 0 does the work: all others wait in a block that lets it go first.

    A traceback that is cut off tells of the block by its lines.
    """
    calls = {frame.function for item in (*raised, *view.exceptions) for frame in item.frames}
    others = {rank for rank in view.ranks | set(waiting) if rank > 0}
    is_rest = bool(waiting) and set(waiting) == others == set(range(1, max(others) + 1))
    is_block = bool(calls & _LEADER_FIRST) or any(view.list_signatures("source.leader_first"))
    return (0,) if is_block and is_rest else ()


def _find_worker(view: LogView, lines: Sequence[LogEvent]) -> tuple[int, ...]:
    """Find whose a bar of progress is that has no rank: of the one that says it does such work."""
    begun = view.list_signatures("progress.begun") if lines[-1].signature == _SETUP else ()
    ranks = list_ranks([*lines, *begun])
    return ranks if len(ranks) == 1 else ()


def _find_said(view: LogView, lines: Sequence[LogEvent]) -> tuple[int, ...]:
    """Find the one rank of which a person says, beside lines without a rank, that it alone writes.

    That is said of the line above, or below a colon of the one below.
    """
    notes = list(view.list_signatures("note.writer"))
    ranks = {int(note.groups["of"]) for note in notes}
    is_near = any(_find_beside(view, note) in lines for note in notes)
    is_open = is_near and not list_ranks(lines)
    return tuple(ranks) if len(ranks) == 1 and is_open else ()


def _find_beside(view: LogView, note: LogEvent) -> LogEvent | None:
    """Return the known line that a note of a person is about, None where it is not near."""
    is_led = note.text.rstrip().endswith(":")
    near = [
        one
        for one in view.events
        if one.artifact == note.artifact
        and (0 < one.row - note.row <= _NEAR if is_led else 0 < note.row - one.row <= _NEAR)
    ]
    return min(near, key=lambda one: abs(one.row - note.row), default=None)
