"""Whether ranks gave up on an op that was only slow: a time limit shorter than what is legal."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from whystuck.diagnose.algorithms.ops.progress import slice_rank
from whystuck.diagnose.algorithms.ops.waits import NO_ROW, Wait
from whystuck.diagnose.context.facts import Facts
from whystuck.diagnose.context.suspects.suspicion import get_activity, is_moving
from whystuck.evidence.finding import Confidence

_NS_PER_S = 1e9
_MS_PER_S = 1e3
_LIMIT = re.compile(
    r"(?:Timed out waiting |[Tt]imeout\(ms\)=|timeout of |after )(\d+) ?ms|"
    r"Timeout\(ms\)=(\d+)"
)
_MAX_LOOKED_AT = 8


@dataclass(frozen=True)
class ShortLimit:
    """A limit that ended an op which would have come to its end.

    ``longest_s`` is the longest that this call took before, ``late_s`` how long after the others
    the last rank came; each is None when unknown. ``late`` are the ranks that the others waited
    for, ``doing`` is what they did.
    """

    wait: Wait
    limit_s: float
    longest_s: float | None
    late_s: float | None
    late: tuple[int, ...]
    confidence: Confidence


def find_short_limit(facts: Facts) -> ShortLimit | None:
    """Find an op that ran into a limit which it normally comes near, or that peers still worked on.

    Args:
        facts: The evidence.

    Returns:
        The limit, or None when nothing ended by one, or the op would not have come to its end.
    """
    waits = [wait for wait in facts.waits.pending if wait.rank in facts.exceptions.timed_out]
    if not waits:
        return None
    wait = min(waits, key=lambda one: (one.seq, one.rank))
    limit_s = _find_limit(facts, wait)
    if not limit_s:
        return None
    longest_s, late_s = _find_longest(facts, wait), _find_late(facts, wait)
    late = tuple(sorted(wait.missing)) or _find_last(facts, wait)
    policy = facts.policy
    came_later = late_s is not None and late_s > 0
    is_near = longest_s is not None and longest_s >= policy.near_limit_share * limit_s
    is_short = limit_s <= policy.short_limit_s
    if not came_later and not is_near and not (is_short and _all_work(facts, late)):
        return None
    # At work for many times as long as ever before: it may as well compute for ever.
    is_endless = bool(longest_s) and limit_s > policy.long_gap_factor * (longest_s or 0.0)
    sure = Confidence.CERTAIN if came_later else Confidence.LIKELY
    is_open = not came_later and not is_near and is_endless
    return ShortLimit(
        wait, limit_s, longest_s, late_s, late, Confidence.POSSIBLE if is_open else sure
    )


def _find_limit(facts: Facts, wait: Wait) -> float:
    """Return the limit of an op in seconds: as recorded, else as the error says."""
    if wait.row != NO_ROW and int(facts.ops.table.timeout_ms[wait.row]) > 0:
        return int(facts.ops.table.timeout_ms[wait.row]) / _MS_PER_S
    found = _LIMIT.search(facts.exceptions.by_rank[wait.rank].message)
    return int(found[1] or found[2]) / _MS_PER_S if found else 0.0


def _find_longest(facts: Facts, wait: Wait) -> float | None:
    """Find how long this call took at most before, on the ranks that waited in it."""
    if wait.row == NO_ROW:
        return None
    table = facts.ops.table
    site, form = int(table.site[wait.row]), int(table.form[wait.row])
    longest_ns = 0
    for rank in sorted(wait.group.rows_by_rank)[:_MAX_LOOKED_AT]:
        own = slice_rank(table, rank)
        created_ns = table.created_ns[own]
        same = (table.site[own] == site) & (table.form[own] == form) & table.done[own]
        # What a rank issues next cannot come before a blocking call is over.
        spent_ns = np.append(np.diff(created_ns), 0)
        completed_ns = table.completed_ns[own]
        spent_ns = np.where(completed_ns > 0, completed_ns - created_ns, spent_ns)
        longest_ns = max(longest_ns, int(spent_ns[same].max(initial=0)))
    return longest_ns / _NS_PER_S if longest_ns else None


def _find_late(facts: Facts, wait: Wait) -> float | None:
    """Find by how much the last rank missed the limit of those that had given up."""
    times_ns = _find_times(facts, wait)
    if len(times_ns) < len(wait.group.members) or wait.row == NO_ROW:
        return None
    spread_s = (max(times_ns.values()) - min(times_ns.values())) / _NS_PER_S
    return spread_s - _find_limit(facts, wait)


def _find_last(facts: Facts, wait: Wait) -> tuple[int, ...]:
    times_ns = _find_times(facts, wait)
    return (max(times_ns, key=lambda rank: times_ns[rank]),) if times_ns else ()


def _find_times(facts: Facts, wait: Wait) -> dict[int, int]:
    """Return when each member issued the op."""
    table = facts.ops.table
    times_ns = {}
    for rank, rows in wait.group.rows_by_rank.items():
        index = int(np.searchsorted(table.seq[rows], wait.seq))
        if index < len(rows) and int(table.seq[rows[index]]) == wait.seq:
            times_ns[rank] = int(table.created_ns[rows[index]])
    return times_ns


def _all_work(facts: Facts, ranks: tuple[int, ...]) -> bool:
    """Tell whether all ranks that others wait for were still at work."""
    return bool(ranks) and all(_works(facts, rank) for rank in ranks)


def _works(facts: Facts, rank: int) -> bool:
    if (
        rank in facts.exits.dead
        or rank in facts.waits.waiting
        or rank not in facts.processes.activities
    ):
        return False
    return is_moving(facts, get_activity(facts, rank))
