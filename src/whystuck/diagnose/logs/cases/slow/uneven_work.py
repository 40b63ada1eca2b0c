"""S308 by what ranks print of each step: who has more work takes longer, and nobody is slow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import StatisticsError, correlation, fmean, linear_regression, median

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time
from whystuck.diagnose.logs.cases.slow.slowest_lines import (
    MS,
    WORK,
    changes,
    is_by_work,
    list_phases,
    list_slowest,
)
from whystuck.diagnose.logs.cases.slow.time_tables import MOST_S
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import MAX_RANK, name_ranks

_MAX_LINES = 6
_LEAST_RANKS, _LEAST_LINES = 3, 9
# Fewer lines and steps tell it where another rank is the slowest in the next step.
_FEW_LINES, _FEW_STEPS, _SURE = 6, 2, 0.99
# Of a table with one row of each rank, all must have one rate.
_LEAST_TABLE, _ONE_RATE = 4, 1.08
# Work explains the times where they lie on one line, and no rank is off it by so much of the mean.
_CORRELATED, _OFF = 0.97, 0.06
# In most steps, the slowest rank takes this much longer than the middle one: others wait for it.
_UNEVEN, _MOST = 1.15, 0.5
_LEAST_MS = 5.0
_RANK = re.compile(r"\b(?:rank|rk|worker|r)[ _=:#]{0,2}(\d{1,7})\b", re.IGNORECASE)
_TIME = re.compile(
    r"\b(?:fwd|forward|bwd|backward|compute|update|train|actor)[A-Za-z_/+-]{0,30}(?: time)?"
    r"[ =:]{1,4}(\d{1,9}(?:\.\d{1,6})?) ?(ms|us|s)\b"
)


@dataclass(frozen=True)
class _Told:
    """What a rank did in a step, and how long it took."""

    rank: int
    work: int
    ms: float
    event: LogEvent


def make_uneven_work(view: LogView) -> Iterator[Case]:
    """Make the case of steps whose slowest rank is the one that had most to do."""
    told = list_uneven(view)
    if not told:
        yield from _make_from_slowest(view)
        return
    rounds = _part(told)
    last = [max(one, key=lambda each: each.ms) for one in rounds]
    slowest = sorted({each.rank for each in last})
    worst = max(last, key=lambda each: each.ms)
    middle, least = median(each.ms for each in told), min(each.ms for each in told)
    usual = f"the median is {middle:.0f} ms"
    if worst.ms < _UNEVEN * middle:
        usual = f"the least is {least:.0f} ms"
    yield Case(
        code=codes.IMBALANCE,
        summary=f"ranks have unequal work: the time of a step follows how much a rank has to do, "
        f"up to {worst.ms:.0f} ms for {worst.work} where {usual}; no rank is "
        f"slow ({name_ranks(slowest)} {'was' if len(slowest) == 1 else 'were'} last in "
        f"{len(rounds)} step{'s' * (len(rounds) > 1)})",
        tier=NOTE,
        lines=tuple(each.event for each in last[:_MAX_LINES]),
        time=find_time([each.event for each in told]),
        details={"caused_by_rank": {}},
    )


def _make_from_slowest(view: LogView) -> Iterator[Case]:
    """Make the case of lines that name the slowest rank of each step, which had most to do."""
    told = list_slowest(view)
    if not is_by_work(told):
        return
    ranks = sorted({one.rank for one in told})
    is_other = changes(one.rank for one in told)
    worst = max(told, key=lambda one: one.ms)
    yield Case(
        code=codes.IMBALANCE,
        summary=f"ranks have unequal work: the slowest of each step has most to do, up to "
        f"{worst.work:.0f} in {worst.ms:.0f} ms where {worst.usual_work:.0f} in "
        f"{worst.usual_ms:.0f} ms is usual; no rank is slow ("
        f"{'another one was last each time' if is_other else name_ranks(ranks) + ' had most'})",
        tier=NOTE,
        lines=tuple(one.event for one in told[:_MAX_LINES]),
        time=find_time([one.event for one in told]),
        details={"caused_by_rank": {}},
    )


def list_uneven(view: LogView) -> list[_Told]:
    """Return what ranks print of their steps, where work explains the time of each.

    Returns:
        Nothing where ranks are alike, where they print no work, or where one is slow for its work.
    """
    rows = (*list_phases(view), *view.list_signatures("progress.work"))
    events = sorted(rows, key=lambda one: (one.artifact, one.row))
    told = [one for event in events if (one := _read(event)) is not None]
    tables = [_read_table(table) for table in _list_tables(view)]
    told = max([told, *tables, _join(tables)], key=len)
    if len(told) == len({one.rank for one in told}) and _has_one_rate(told):
        return told
    ranks = {one.rank for one in told}
    if len(ranks) < _LEAST_RANKS or len(told) < (_FEW_LINES if _moves(told) else _LEAST_LINES):
        return []
    work, times = [float(one.work) for one in told], [one.ms for one in told]
    try:
        slope, base = linear_regression(work, times)
        least = _CORRELATED if len(told) >= _LEAST_LINES else _SURE
        is_explained = slope > 0 and correlation(work, times) >= least
    except StatisticsError:
        return []  # all have the same work
    off = {
        rank: fmean(one.ms - base - slope * one.work for one in told if one.rank == rank)
        for rank in ranks
    }
    is_fair = max(map(abs, off.values())) <= _OFF * fmean(times)
    return told if is_explained and is_fair and _is_uneven(told) else []


def _list_tables(view: LogView) -> list[list[LogEvent]]:
    """Return the rows of each table that tells how much ranks had to do."""
    found: dict[tuple[str, str], list[LogEvent]] = {}
    for event in view.list_signatures("table.work"):
        found.setdefault((event.artifact, event.groups["table"]), []).append(event)
    return list(found.values())


def _join(tables: Sequence[list[_Told]]) -> list[_Told]:
    """Return the rows of all tables as those of steps, where each has a row of the same ranks."""
    ranks = [sorted(one.rank for one in table) for table in tables]
    logs = {one.event.artifact for table in tables for one in table}
    is_same = all(one == ranks[0] and len(set(one)) == len(one) for one in ranks)
    return [one for table in tables for one in table] if is_same and len(logs) == 1 else []


def _read_table(rows: Sequence[LogEvent]) -> list[_Told]:
    bare = [float(row.groups["bare"]) for row in rows if "bare" in row.groups]
    scale = MS["s"] if bare and max(bare) < MOST_S else 1.0
    return [
        _Told(
            int(row.groups["own"]),
            int(float(row.groups["work"])),
            float(row.groups["took"]) * (scale if "bare" in row.groups else 1.0),
            row,
        )
        for row in rows
    ]


def _has_one_rate(told: Sequence[_Told]) -> bool:
    """Tell whether ranks, of each of which one row tells, took as long for the same work."""
    rates = [one.ms / one.work for one in told if one.work]
    if len(told) < _LEAST_TABLE or len(rates) < len(told) or min(rates) <= 0:
        return False
    times = [one.ms for one in told]
    is_late = max(times) > max(_UNEVEN * median(times), median(times) + _LEAST_MS)
    return is_late and max(rates) <= _ONE_RATE * min(rates)


def _is_uneven(told: Sequence[_Told]) -> bool:
    rounds = _part(told)
    late = 0
    for one in rounds:
        times = [each.ms for each in one]
        # Where few have less to do, it is the most of them that are waited for.
        usual = min(median(times), fmean(times))
        late += max(times) > max(_UNEVEN * usual, usual + _LEAST_MS)
    least = _FEW_STEPS if _moves(told) else _LEAST_RANKS
    return len(rounds) >= least and late > _MOST * len(rounds)


def _moves(told: Sequence[_Told]) -> bool:
    """Return whether no rank is the slowest of two steps."""
    last = [max(one, key=lambda each: each.ms).rank for one in _part(told)]
    return len(last) >= _FEW_STEPS and len(set(last)) == len(last)


def _part(told: Sequence[_Told]) -> list[list[_Told]]:
    """Part lines into steps, in which each rank prints one; those that lack ranks are left out."""
    rounds: list[list[_Told]] = [[]]
    for one in told:
        if any(one.rank == other.rank for other in rounds[-1]):
            rounds.append([])
        rounds[-1].append(one)
    count = len({one.rank for one in told})
    return [one for one in rounds if len(one) == count]


def _read(event: LogEvent) -> _Told | None:
    text = event.text
    work, time = WORK.search(text), _TIME.search(text)
    said = _RANK.search(text)
    rank = event.rank if event.rank >= 0 or said is None else int(said[1])
    if work is None or time is None or not 0 <= rank <= MAX_RANK or event.count > 1:
        return None
    return _Told(rank, int(work[1] or work[2]), float(time[1]) * MS[time[2]], event)
