"""S306 by the counters of a group of processes: its quota of the processor is used up."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.stragglers import find_slow_ranks
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import MAX_RANK, name_ranks

# Of the periods in which the group ran; below, a burst now and then is normal.
_LEAST_SHARE = 0.25
_LEAST_PERIODS = 100
# Rows from one counter of a group to the next; all files have them one below the other.
_MOST_APART = 1
_MAX_LINES = 6
# Pods of a set are numbered from 0 on.
_ORDINAL = re.compile(r"-(\d{1,5})$")


@dataclass(frozen=True)
class _Count:
    """In how many of its periods a group was held up."""

    share: float
    lines: tuple[LogEvent, ...]
    # Empty where nothing tells the pod or the host, and -1 where none tells the rank.
    place: str
    rank: int = -1


def make_quotas(view: LogView) -> Iterator[Case]:
    """Make the case of processes that are held up in most periods, as cpu.stat tells."""
    counts = [one for pair in _list_pairs(view) if (one := _count(pair)) is not None]
    counts += _list_rows(view)
    held = [one for one in counts if one.share >= _LEAST_SHARE]
    if not held:
        return
    worst = max(held, key=lambda one: one.share)
    ranks = _find_ranks(view, counts, held)
    nodes = sorted({one.place for one in held} - {""}) if len(held) < len(counts) else []
    where = f" of {' and '.join(nodes)}" if nodes else ""
    who = f" ({name_ranks(ranks)})" if ranks else ""
    yield Case(
        code=codes.CPU_STARVED,
        summary=f"the quota of the processor{where} was used up in {100 * worst.share:.0f} % of "
        f"all periods: loaders and launches of kernels wait for it on all ranks of the "
        f"container{who}",
        tier=NOTE,
        ranks=ranks,
        nodes=tuple(nodes),
        lines=tuple(line for one in [worst, *held] for line in one.lines)[:_MAX_LINES],
        details={"throttled_share": worst.share},
        remedies=(
            "raise the limit of the container (in Kubernetes `resources.limits.cpu`)",
            "or start fewer workers and threads: OMP_NUM_THREADS, num_workers",
        ),
    )


def _find_ranks(view: LogView, counts: Sequence[_Count], held: Sequence[_Count]) -> tuple[int, ...]:
    """Return the ranks of the groups that are held up, where others are not; empty if unknown."""
    if len(held) < len(counts) and all(one.rank >= 0 for one in counts):
        return tuple(sorted(one.rank for one in held))
    places = [one.place for one in counts]
    mine = {one.place for one in held}
    if len(held) == len(counts) or "" in places or len(set(places)) < len(places):
        return ()
    known = [view.list_ranks_on(place) or _count_out(view, place) for place in sorted(mine)]
    if all(known):
        return tuple(sorted(frozenset().union(*known)))
    return _find_slow_block(view, places, mine)


def _count_out(view: LogView, place: str) -> frozenset[int]:
    """Return the ranks of a pod by its number, where somebody says how they are counted."""
    number = _ORDINAL.search(place)
    told = [event.groups for event in view.list_signatures("table.rank_formula")]
    if number is None or len({one["count"] for one in told}) != 1:
        return frozenset()
    count = int(told[0]["count"])
    first = count * int(number[1])
    return frozenset(range(first, first + count)) if first <= MAX_RANK else frozenset()


def _find_slow_block(
    view: LogView, places: Sequence[str], mine: AbstractSet[str]
) -> tuple[int, ...]:
    """Return the ranks that are slow, where they are those of the pods by the order of both."""
    slow = find_slow_ranks(view)
    count = len(view.ranks) // len(places)
    if (
        not slow
        or count * len(places) != len(view.ranks)
        or view.ranks != set(range(len(view.ranks)))
    ):
        return ()
    numbers = [at for at, place in enumerate(places) if place in mine]
    block = {count * at + rank for at in numbers for rank in range(count)}
    return slow if block == set(slow) else ()


def _list_pairs(view: LogView) -> Iterator[dict[str, LogEvent]]:
    """Yield the counters of each group that somebody printed; one text may show several."""
    pair: dict[str, LogEvent] = {}
    last: LogEvent | None = None
    for event in view.list_signatures("cgroup.throttle"):
        is_near = last is not None and last.artifact == event.artifact
        is_near = is_near and last is not None and event.row - last.row <= _MOST_APART
        if event.groups["what"] in pair or not is_near:
            yield pair
            pair = {}
        pair[event.groups["what"]] = last = event
    yield pair


def _count(pair: dict[str, LogEvent]) -> _Count | None:
    """Read the counters of one group, None where one is missing or it hardly ran."""
    if not {"periods", "throttled"} <= pair.keys():
        return None
    periods, held = (int(pair[what].groups["count"]) for what in ("periods", "throttled"))
    if periods < _LEAST_PERIODS:
        return None
    lines = pair["throttled"], pair["periods"]
    return _Count(held / periods, lines, lines[0].node)


def _list_rows(view: LogView) -> list[_Count]:
    """Return the counters of the last table of them."""
    rows = list(view.list_signatures("table.throttle"))
    last = rows[-1].groups["table"] if rows else ""
    found = []
    for row in rows:
        told = row.groups
        if told["table"] == last and int(told["periods"]) >= _LEAST_PERIODS:
            share = int(told["throttled"]) / int(told["periods"])
            found.append(_Count(share, (row,), told["place"], int(told.get("own") or -1)))
    return found
