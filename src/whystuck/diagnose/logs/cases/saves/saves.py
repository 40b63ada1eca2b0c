"""H118 by how long ranks say that their saves took, beside ranks that waited for them in vain."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import is_timeout
from whystuck.diagnose.logs.cases.parts import WAITS, find_time, is_said, list_ranks
from whystuck.diagnose.logs.story import BUSY, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import MAX_RANK, name_ranks

_MAX_LINES = 6
_NS_PER_MS, _NS_PER_S = 1_000_000, 1_000_000_000
_UNITS = {"ms": 0.001, "m": 60.0, "s": 1.0}
_SAVE = re.compile(r"checkpoint|ckpt|shard|state|weights|optim|model|save-", re.IGNORECASE)
_RANK = re.compile(r"\b(?<!local )rank[ _=:#-]{0,2}(\d{1,7})\b", re.IGNORECASE)
# Without a limit that is told, that of NCCL's groups.
_LIMIT_S = 600.0
# A save is long when it takes this share of the limit: who is done first waits for the others.
_LONG = 0.5
# The times of a step's line are there all along: one as long as the limit is beyond it next time.
_NEAR = 0.9
# Of ranks that write as much, who takes so many times longer is slow by itself.
_ODD, _FEW = 5.0, 0.25
_SLACK_NS = 60 * _NS_PER_S
_LEAST_TOLD = 3


@dataclass(frozen=True)
class _Save:
    """How long a save took, on which rank, -1 for unknown."""

    rank: int
    seconds: float
    event: LogEvent


def make_slow_saves(view: LogView) -> Iterator[Case]:
    """Make the case of saves that took so long that who was done first waited in vain."""
    waits = [event for event in view.list_signatures(*WAITS) if is_said(event)]
    raised = tuple(item for item in view.exceptions if is_timeout(item))
    if not (waits or raised):
        return
    limit_s = find_limit(waits)
    fields = [save for save in _list_fields(view) if save.seconds >= _NEAR * limit_s]
    saves = [*_list_told(view), *_list_files(view), *fields]
    near = [save for save in saves if _is_during(save, waits)]
    if max((save.seconds for save in near), default=0.0) < _LONG * limit_s:
        return
    waiting = sorted({*list_ranks(waits), *(item.rank for item in raised)} - {-1})
    slow = tuple(rank for rank in _find_odd(near) if rank not in waiting)
    longest = max(near, key=lambda save: save.seconds)
    who = name_ranks(slow) if slow else "ranks"
    told = f"{who} took up to {longest.seconds:.0f} s to save a checkpoint"
    usual = [save.seconds for save in saves if save not in near]
    before = f", where another save took {median(usual):.0f} s" if usual else ""
    yield Case(
        code=codes.CHECKPOINT_SLOW,
        summary=f"{told}{before}; {name_ranks(waiting) if waiting else 'others'} waited for that "
        "until a time limit",
        tier=BUSY,
        ranks=slow,
        victims=tuple(waiting),
        lines=(*(save.event for save in near[-4:]), *waits)[:_MAX_LINES],
        exceptions=raised,
        time=find_time(waits, raised),
        details={"state": "running", "longest_s": longest.seconds},
        remedies=(
            (
                "see how fast the file system writes: `dd if=/dev/zero of=FOLDER/x bs=64M count=16 "
                "oflag=direct`, and whether its servers are well"
            ),
            "raise the time limit around the save, or save asynchronously",
        ),
    )


def _list_told(view: LogView) -> Iterator[_Save]:
    for event in view.list_signatures("progress.took"):
        if event.is_past or not is_said(event) or not _SAVE.search(event.text):
            continue
        if event.groups.get("field"):
            continue
        if most := event.groups.get("most"):
            yield _Save(-1, float(most) / 1000, event)
            continue
        unit = _UNITS["ms" if event.groups["unit"] == "ms" else event.groups["unit"][0]]
        yield _Save(find_saver(event), float(event.groups["s"]) * unit, event)


def _list_fields(view: LogView) -> Iterator[_Save]:
    """Yield the saves of which a line of a step has the time: `ckpt/gather_state 55.0 s`."""
    for event in view.list_signatures("progress.took"):
        if not event.is_past and is_said(event) and (told := event.groups.get("field")):
            unit = _UNITS["ms" if event.groups["unit2"] == "ms" else event.groups["unit2"][0]]
            yield _Save(-1, float(told) * unit, event)


def find_saver(event: LogEvent) -> int:
    """Return the rank that a line about a save is of, or else names; -1 where it does not."""
    named = _RANK.search(event.text)
    rank = event.rank if event.rank >= 0 else int(named[1]) if named else -1
    return rank if rank <= MAX_RANK else -1


def _list_files(view: LogView) -> Iterator[_Save]:
    """Yield the time between the lines that a file is being, and has been written."""
    done = {event.groups["file"]: event for event in view.list_signatures("progress.file_done")}
    for event in view.list_signatures("progress.file_begun"):
        end = done.get(event.groups["file"])
        if end is None or event.is_past or not (event.time and end.time):
            continue
        if event.time.clock == end.time.clock and end.time.ns > event.time.ns:
            yield _Save(event.rank, (end.time.ns - event.time.ns) / _NS_PER_S, end)


def find_limit(waits: Sequence[LogEvent]) -> float:
    """Return the seconds until ranks gave up, by their lines, or else those of NCCL's groups."""
    told = [event.groups.get("to") or event.groups.get("ms") or "" for event in waits]
    limits = [int(text[:12]) / 1000 for text in told if text.isdecimal()]
    return min(limits, default=_LIMIT_S) or _LIMIT_S


def _is_during(save: _Save, waits: Sequence[LogEvent]) -> bool:
    """Tell whether a save was not over long before ranks began to wait.

    Without times, what stands above the lines of those who gave up in the same log.
    """
    timed = [wait for wait in waits if wait.time and save.event.time]
    if save.event.time and timed:
        ended = save.event.time.ns
        return any(
            ended + _SLACK_NS >= wait.time.ns - _read_ms(wait) * _NS_PER_MS
            and ended - save.seconds * _NS_PER_S <= wait.time.ns
            for wait in timed
            if wait.time
        )
    rows = [wait.row for wait in waits if wait.artifact == save.event.artifact]
    return not rows or save.event.row < min(rows)


def _read_ms(wait: LogEvent) -> int:
    text = wait.groups.get("ms") or ""
    return int(text[:12]) if text.isdecimal() else 0


def _find_odd(saves: Sequence[_Save]) -> list[int]:
    """Return the few ranks that took far longer than most; none where all were slow."""
    told: dict[int, float] = {}
    for save in saves:
        if save.rank >= 0:
            told[save.rank] = max(save.seconds, told.get(save.rank, 0.0))
    if len(told) < _LEAST_TOLD:
        return []
    middle = median(told.values())
    odd = sorted(rank for rank, seconds in told.items() if seconds > _ODD * middle)
    return odd if len(odd) <= _FEW * len(told) else []
