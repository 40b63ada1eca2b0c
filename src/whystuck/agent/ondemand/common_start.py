"""When ranks of several nodes begin a trace: an iteration that none of them has reached yet."""

from __future__ import annotations

import math
from collections.abc import Iterable

from whystuck.evidence.agent import ProcessEntry, TraceRequest

LEAD_S = 8.0
"""Until all ranks of all nodes know of a request: they ask every 5 s unless told otherwise."""
ROUNDUP = 100
"""Ranks whose steps are not known begin at the next multiple of it, and so do latecomers."""


def choose_start(
    first: Iterable[ProcessEntry],
    second: Iterable[ProcessEntry],
    watched_s: float,
    request: TraceRequest,
) -> tuple[int, int]:
    """Choose an iteration that no rank has begun when the last of them knows of the request.

    Args:
        first: Processes as they were.
        second: The same a moment later; their steps tell how fast they are.
        watched_s: How much later that is.
        request: Which of them count.

    Returns:
        The iteration, or -1 when the steps of a rank are not known, and the multiple that ranks
        begin at which are late.
    """
    before = {(one.node, one.pid): one for one in first}
    pairs = [
        (before[one.node, one.pid], one)
        for one in second
        if (one.node, one.pid) in before and one.rank >= 0 and is_wanted(one, request)
    ]
    rates = [_count_steps(*pair) / watched_s for pair in pairs]
    if not pairs or min(rates) <= 0:
        return -1, ROUNDUP
    ahead = [
        new.steps + math.ceil(rate * LEAD_S) for (_, new), rate in zip(pairs, rates, strict=True)
    ]
    return max(ahead) + 2, max(2, math.ceil(2 * max(rates)))


def has_steps(entries: Iterable[ProcessEntry], request: TraceRequest) -> bool:
    """Return whether the steps of all ranks are known, so that watching them tells something."""
    wanted = [one for one in entries if one.rank >= 0 and is_wanted(one, request)]
    return bool(wanted) and all(one.steps >= 0 for one in wanted)


def is_wanted(one: ProcessEntry, request: TraceRequest) -> bool:
    """Return whether a request is for the rank of a process."""
    return not request.ranks or one.rank in request.ranks


def _count_steps(old: ProcessEntry, new: ProcessEntry) -> int:
    return new.steps - old.steps if old.steps >= 0 and new.steps >= 0 else 0
