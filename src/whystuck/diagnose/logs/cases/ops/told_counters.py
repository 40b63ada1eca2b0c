"""H101 and H102 by the counters of ranks alone, where no watchdog names the op that it gave up.

A rank that asks the others for dumps has each of them print its last numbers in the group of all.
The op behind the last one that is over is the one that a rank waits in.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.told_ops import ToldGroup, ToldOp, ToldStatus
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.ranks import name_ranks

_MAX_LINES = 6
_PAIR = 2
# What an op is called of which only the number is known.
_SOME_OP = "op"
_SOURCE = re.compile(r"collective timeout from (?:this local rank|\s{0,4}rank (\d{1,7}))")


def list_counted_ops(group: ToldGroup) -> list[ToldOp]:
    """List the op that each rank waits in by its counters, where all that are told of wait."""
    if not group.name or any(_is_idle(one) for one in group.statuses.values()):
        return []
    return [
        ToldOp(one.rank, _SOME_OP, _count(one.completed) + 1, one.event, is_member=one.is_member)
        for _, one in sorted(group.statuses.items())
    ]


def judge_counters(view: LogView, group: ToldGroup, groups: Sequence[ToldGroup]) -> Case | None:
    """Find ranks that issued nothing behind what is over, while others wait in a later op.

    Args:
        view: The logs.
        group: A group in which no rank says which op it waits in.
        groups: All groups: who waits in another one is not absent by itself.
    """
    idle = [one for one in group.statuses.values() if _is_idle(one)]
    waiting = [one for one in group.statuses.values() if not _is_idle(one)]
    if not group.name or not idle or not waiting:
        return None
    first = min(_count(one.completed) for one in waiting) + 1
    elsewhere = _list_waiting(groups, group) | _list_sources(group)
    if any(_count(one.enqueued) >= first or one.rank in elsewhere for one in idle):
        return None
    ranks = tuple(sorted(one.rank for one in idle))
    victims = tuple(sorted(one.rank for one in waiting))
    # Of ranks that are not shown, most may be with those that did not come.
    is_known = 2 * len(waiting) > max(len(view.ranks), len(group.statuses))
    last = max(_count(one.enqueued) for one in idle)
    events = [one.event for one in (*idle, *waiting)]
    where = "" if group.name == "0" else f" of group {group.name}"
    return Case(
        code=codes.RANK_NEVER_JOINED,
        summary=f"{name_ranks(ranks)} did not come to op {first}{where}, in which "
        f"{name_ranks(victims)} waited: the last op issued there is {last}, and it is over",
        tier=PARTED,
        ranks=ranks if is_known else (),
        victims=victims if is_known else (),
        lines=tuple(events[:_MAX_LINES]),
        time=find_time(events),
        confidence=Confidence.LIKELY if is_known else Confidence.POSSIBLE,
        details={"state": "unknown", "missing": list(ranks), "ready": list(victims)},
    )


def _count(number: int) -> int:
    """Return the number of an op: torch counts from 1 on, and prints -1 where there is none."""
    return max(0, number)


def _is_idle(status: ToldStatus) -> bool:
    return status.enqueued == status.completed


def _list_waiting(groups: Sequence[ToldGroup], but: ToldGroup) -> set[int]:
    """Return the ranks that wait in other groups."""
    others = [group for group in groups if group is not but]
    counted = {one.rank for group in others for one in group.statuses.values() if not _is_idle(one)}
    return counted | {rank for group in others for rank in group.ops}


def _list_sources(group: ToldGroup) -> set[int]:
    """Return the ranks whose own time limit had all print: what they waited in is of any group."""
    found = set[int]()
    for one in group.statuses.values():
        if told := _SOURCE.search(one.event.text):
            found.add(int(told[1]) if told[1] else one.rank)
    return found
