"""S306 by the counters of a group of processes: its quota of the processor is used up."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.slow.quota_owners import (
    QuotaOwner,
    find_quota_owner,
    find_slow_block,
    read_row_owner,
)
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

# Of the periods in which the group ran; below, a burst now and then is normal.
_LEAST_SHARE = 0.25
_LEAST_PERIODS = 100
# Rows from one counter of a group to the next; all files have them one below the other.
_MOST_APART = 1
_MAX_LINES = 6
_COUNTS = re.compile(r"\bnr_(periods|throttled)\b[ :=\"]{1,4}(\d{1,15})\b")


@dataclass(frozen=True)
class _Count:
    """In how many of its periods a group was held up, and whose group it is."""

    share: float
    lines: tuple[LogEvent, ...]
    owner: QuotaOwner


def make_quotas(view: LogView) -> Iterator[Case]:
    """Make the case of processes that are held up in most periods, as cpu.stat tells."""
    counts = [one for pair in _list_pairs(view) if (one := _count(view, pair)) is not None]
    counts += _list_rows(view)
    held = [one for one in counts if one.share >= _LEAST_SHARE]
    if not held:
        return
    worst = max(held, key=lambda one: one.share)
    ranks, nodes = _find_owners(view, counts, held)
    where = f" of {' and '.join(nodes[:4])}" if nodes else ""
    who = f" ({name_ranks(ranks)})" if ranks else ""
    yield Case(
        code=codes.CPU_STARVED,
        summary=f"the quota of the processor{where} was used up in {100 * worst.share:.0f} % of "
        "all periods: loaders and launches of kernels wait for it on all ranks of the "
        f"container{who}",
        tier=NOTE,
        ranks=ranks,
        nodes=nodes,
        lines=tuple(line for one in [worst, *held] for line in one.lines)[:_MAX_LINES],
        details={"throttled_share": worst.share},
        remedies=(
            "raise the limit of the container (in Kubernetes `resources.limits.cpu`)",
            "or start fewer workers and threads: OMP_NUM_THREADS, num_workers",
        ),
    )


def _find_owners(
    view: LogView, counts: Sequence[_Count], held: Sequence[_Count]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the ranks and hosts of the groups that are held up; nobody where one is not known.

    Where several are told and all of them are held up, none is odd.
    """
    owners = [one.owner for one in held]
    is_common = len(held) == len(counts) > 1
    if is_common or not all(owner.node or owner.ranks for owner in owners):
        return (), ()
    nodes = tuple(sorted({owner.node for owner in owners} - {""}))
    if all(owner.ranks for owner in owners):
        return tuple(sorted({rank for owner in owners for rank in owner.ranks})), nodes
    places = [one.owner.node for one in counts]
    is_told = "" not in places and len(set(places)) == len(places) > len(held)
    return find_slow_block(view, places, set(nodes)) if is_told else (), nodes


def _list_pairs(view: LogView) -> Iterator[dict[str, LogEvent]]:
    """Yield the counters of each group that somebody printed; one text may show several."""
    pairs: dict[tuple[str, str, int], dict[str, LogEvent]] = {}
    last: LogEvent | None = None
    for event in view.list_signatures("cgroup.throttle"):
        key = event.artifact, event.groups.get("pod") or event.node, event.rank
        told = dict.fromkeys(_read_counts(event), event)
        pair = pairs.setdefault(key, {})
        # Of nobody known, what does not stand next to each other is of two groups.
        is_near = last is not None and event.row - last.row <= _MOST_APART
        is_own = key[1] or event.rank >= 0 or is_near
        if told.keys() & pair.keys() or not is_own:
            yield pair
            pair = pairs[key] = {}
        pair |= told
        last = event
    yield from pairs.values()


def _count(view: LogView, pair: dict[str, LogEvent]) -> _Count | None:
    """Read the counters of one group, None where one is missing or it hardly ran."""
    if not {"periods", "throttled"} <= pair.keys():
        return None
    counts = _read_counts(pair["periods"]) | _read_counts(pair["throttled"])
    periods = counts["periods"]
    if periods < _LEAST_PERIODS:
        return None
    told = pair["throttled"], pair["periods"]
    lines = told if told[0] is not told[1] else told[:1]
    return _Count(counts["throttled"] / periods, lines, find_quota_owner(view, told[0]))


def _read_counts(event: LogEvent) -> dict[str, int]:
    """Read the counters in a line: of `cpu.stat`, or as cAdvisor gives them to Prometheus."""
    if which := event.groups.get("of"):
        what = "throttled" if "throttled" in which else "periods"
        return {what: int(event.groups["number"])}
    return {what: int(count) for what, count in _COUNTS.findall(event.text)}


def _list_rows(view: LogView) -> list[_Count]:
    """Return the counters of the last table of them."""
    rows = list(view.list_signatures("table.throttle"))
    last = rows[-1].groups["table"] if rows else ""
    found = []
    for row in rows:
        told = row.groups
        if told["table"] == last and int(told["periods"]) >= _LEAST_PERIODS:
            share = int(told["throttled"]) / int(told["periods"])
            found.append(_Count(share, (row,), read_row_owner(view, row)))
    return found
