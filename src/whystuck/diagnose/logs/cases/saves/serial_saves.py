"""S305 by what ranks say of saves: one rank alone writes, and the others say how long they waited.

Or a table has a column of saves in which one rank has all the time, and the others wait as long.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import WAITS, find_time, is_said
from whystuck.diagnose.logs.cases.slow.time_tables import Times, is_felt, is_wait, read_last_table
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import MAX_RANK, name_ranks

_MAX_LINES = 6
_NS_PER_S = 1_000_000_000
_UNITS = {"ms": 0.001, "m": 60.0, "s": 1.0}
_SAVE = re.compile(
    r"checkpoint|ckpt|shard|state|weights|optim|model|sav(?:e|ing)"
    r"|\.(?:pt|pth|bin|safetensors|distcp|tar)\b",
    re.IGNORECASE,
)
_WAIT = re.compile(r"\b(?:barrier|wait(?:ed|ing|s)?|blocked)\b", re.IGNORECASE)
_RANK = re.compile(r"\b(?<!local )rank[ _=:#-]{0,2}(\d{1,7})\b", re.IGNORECASE)
# A save that is over sooner costs nobody much.
_LEAST_S = 5.0
# The others wait as long as the save takes, with what is gathered before it.
_LIKE = (0.6, 1.5)
# Who waits is free so soon after the save.
_SLACK_NS = 120 * _NS_PER_S
_LEAST_SHARE = 0.05
# A rank that writes a part of its own, too, takes more than this share of the longest.
_OWN_PART = 0.2
_LEAST_RANKS = 3


@dataclass(frozen=True)
class _Told:
    """How long a rank says that it saved, or waited."""

    rank: int
    seconds: float
    event: LogEvent


def make_serial_saves(view: LogView) -> Iterator[Case]:
    """Make the case of a job whose ranks wait while one of them saves.

    Ranks that ran into a time limit while they waited are told of as H118.
    """
    if any(is_said(event) for event in view.list_signatures(*WAITS)):
        return
    told = [*_list_told(view)]
    saves = [one for one in told if not _WAIT.search(one.event.text)]
    waits = [one for one in told if _WAIT.search(one.event.text)]
    savers = {one.rank for one in saves}
    long = [one for one in saves if one.seconds >= _LEAST_S]
    if len(savers) != 1 or not long:
        yield from _make_tabled(read_last_table(view))
        return
    saver = savers.pop()
    felt = [one for one in waits if one.rank != saver and any(_is_of(one, save) for save in long)]
    share = _find_share(long)
    if felt and not _is_little(view, long, share):
        seconds = median(one.seconds for one in long)
        lines = [*long[-2:], *felt[-3:]]
        yield _make_case(saver, seconds, [one.event for one in lines], share)


def _list_told(view: LogView) -> Iterator[_Told]:
    for event in view.list_signatures("progress.took", "progress.waited"):
        seconds = event.groups.get("s")
        if seconds is None or not is_said(event):
            continue
        if not (_SAVE.search(event.text) or _WAIT.search(event.text) or "GB" in event.text):
            continue
        named = _RANK.search(event.text)
        rank = event.rank if event.rank >= 0 else int(named[1]) if named else -1
        if 0 <= rank <= MAX_RANK:
            unit = event.groups["unit"]
            scale = _UNITS["ms" if unit == "ms" else unit[0]]
            yield _Told(rank, float(seconds) * scale, event)


def _is_of(wait: _Told, save: _Told) -> bool:
    """Tell whether a wait is one for a save: as long, and over when that is."""
    least, most = (share * save.seconds for share in _LIKE)
    if not least <= wait.seconds <= most:
        return False
    if wait.event.time and save.event.time:
        return abs(wait.event.time.ns - save.event.time.ns) <= _SLACK_NS
    return True


def _find_share(saves: Sequence[_Told]) -> float | None:
    """Return which share of the time saves take, None where the times do not tell."""
    times = [one.event.time.ns for one in saves if one.event.time is not None]
    gaps = [(later - earlier) / _NS_PER_S for earlier, later in pairwise(times)]
    if not gaps or min(gaps) <= 0:
        return None
    return min(1.0, median(one.seconds for one in saves) / median(gaps))


def _is_little(view: LogView, saves: Sequence[_Told], share: float | None) -> bool:
    """Tell whether saves take little of the time, by their distance or by all of the log."""
    if share is not None:
        return share < _LEAST_SHARE
    total = sum(one.seconds * one.event.count for one in saves)
    files = [file for file in view.files if file.artifact == saves[0].event.artifact]
    span = max(((file.last_ns - file.first_ns) / _NS_PER_S for file in files), default=0.0)
    return total < _LEAST_SHARE * span


def _make_case(
    rank: int, seconds: float, lines: Sequence[LogEvent], share: float | None = None
) -> Case:
    part = f", {share:.0%} of the time" if share else ""
    return Case(
        code=codes.SERIAL_CHECKPOINT,
        summary=f"{name_ranks([rank])} alone saves checkpoints: one takes {seconds:.0f} s{part}, "
        "and the others wait for it; the rank is not slow",
        tier=NOTE,
        lines=tuple(lines[:_MAX_LINES]),
        time=find_time(lines),
        details={"rank": rank},
    )


def _make_tabled(times: Times) -> Iterator[Case]:
    """Make the case of a table in which one rank has all the time of saves."""
    for phase, by_rank in times.items():
        small = phase.lower()
        if not any(word in small for word in ("save", "ckpt", "checkpoint")):
            continue
        saver = max(by_rank, key=lambda rank: by_rank[rank].ms)
        most = by_rank[saver].ms
        rest = [told.ms for rank, told in by_rank.items() if rank != saver]
        is_alone = len(by_rank) >= _LEAST_RANKS and max(rest) <= _OWN_PART * most
        has_waits = any(is_wait(other) for other in times)
        if is_alone and has_waits and is_felt(times, saver, most):
            yield _make_case(saver, most / 1000, [by_rank[saver].event])
            return
