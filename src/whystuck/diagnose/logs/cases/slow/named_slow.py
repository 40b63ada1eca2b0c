"""S301 and S302 by tools that compare the work of all devices, and name those that are slow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import MAX_RANK, name_ranks, parse_ranks

_MAX_LINES = 6
# What a tool of NVIDIA's calls slow.
_LEAST_SCORE = 0.75
# `StragglerId(rank=8, node='dgx-014')`
_ID = re.compile(r"StragglerId\(rank=(\d{1,7}), node=['\"]([\w.-]{1,80})['\"]\)")
# Of a host of which only slow ranks are told, and nothing of other hosts, so many next to each
# other are its ranks.
_LEAST_WHOLE = 8


@dataclass
class _Named:
    """Which ranks a tool calls slow, and on which host each rank is of which it tells."""

    slow: set[int] = field(default_factory=set)
    hosts: dict[int, str] = field(default_factory=dict)
    lines: list[LogEvent] = field(default_factory=list)


def make_named(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that a tool calls slow, or of their host where it is all of them."""
    named = _read(view)
    if not named.slow:
        return
    ranks = sorted(named.slow)
    nodes = sorted({named.hosts[rank] for rank in ranks if rank in named.hosts})
    lines, time = tuple(named.lines[:_MAX_LINES]), find_time(named.lines)
    if len(nodes) == 1 and _is_whole(named.slow, named.hosts):
        yield Case(
            code=codes.SLOW_NODE,
            summary=f"the ranks of {nodes[0]} ({name_ranks(ranks)}) are slower than those of other "
            "hosts, as the tool that compares them says",
            tier=NOTE,
            ranks=tuple(ranks),
            nodes=tuple(nodes),
            lines=lines,
            time=time,
        )
        return
    yield Case(
        code=codes.SLOW_RANK,
        summary=f"{name_ranks(ranks)} {'is' if len(ranks) == 1 else 'are'} slower than the others, "
        "as the tool that compares them says",
        tier=NOTE,
        ranks=tuple(ranks),
        nodes=tuple(nodes),
        lines=lines,
        time=time,
    )


def _read(view: LogView) -> _Named:
    found = _Named()
    for event in view.list_signatures("straggler.named"):
        ids = {int(rank): node for rank, node in _ID.findall(event.text)}
        score, rank = event.groups.get("score") or "", event.groups.get("rank") or ""
        if score and rank:
            found.hosts[int(rank)] = event.groups.get("node") or ""
        found.hosts |= ids
        is_slow = not score or float(score) < _LEAST_SCORE
        told = parse_ranks(event.groups.get("ranks") or rank or "") | ids.keys()
        if is_slow and (slow := {one for one in told if one <= MAX_RANK}):
            found.slow |= slow
            found.lines.append(event)
    return found


def _is_whole(slow: set[int], hosts: Mapping[int, str]) -> bool:
    """Tell whether these are most ranks of their one host, and of no other one.

    Tools list the worst and the best, so that not all ranks of a host need be told: how many it has
    is known by the numbers that other hosts have.
    """
    if any(not hosts.get(rank) for rank in slow) or len(slow) < 2:  # noqa: PLR2004
        return False
    (host,) = {hosts[rank] for rank in slow}
    ranks: dict[str, list[int]] = {}
    for rank, name in hosts.items():
        ranks.setdefault(name, []).append(rank)
    others = [max(own) - min(own) + 1 for name, own in ranks.items() if name and name != host]
    own = ranks[host]
    if not others:
        is_row = len(slow) == max(slow) - min(slow) + 1 >= _LEAST_WHOLE
        return is_row and set(own) == slow and min(slow) % len(slow) == 0
    return 2 * len(slow) > max(*others, len(own))
