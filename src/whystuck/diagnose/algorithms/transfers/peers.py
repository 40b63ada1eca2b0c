"""Sends and receives that no recorder has seen: what a look into each rank tells of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from whystuck.diagnose.algorithms.ops.groups import GroupOps
from whystuck.diagnose.algorithms.ops.waits import NO_ROW, Wait
from whystuck.evidence.live import PeerCount, PeerWait

_OTHER_HALF = {"send": "recv", "recv": "send"}
_BARRIER = "barrier"
# So often a line has named one peer before another one is a departure.
_MIN_USES = 2


@dataclass(frozen=True)
class Stray:
    """A rank that once named another peer at a line where it has always named one.

    ``wait`` is that of the peer which it left out; ``used`` is the one of the other peer.
    """

    rank: int
    wait: PeerWait
    used: PeerCount
    usual: PeerCount


def find_strays(waits: Iterable[PeerWait], counts: Sequence[PeerCount]) -> tuple[Stray, ...]:
    """Find ranks whose last send or receive at a line was with another peer than all before.

    Args:
        waits: What the threads of ranks are in.
        counts: How many sends and receives each rank has posted so far.

    Returns:
        One value for each rank that has left out a peer so.
    """
    posted: dict[tuple[int, str, str], list[PeerCount]] = {}
    for one in counts:
        posted.setdefault((one.rank, one.kind, one.group), []).append(one)
    found: dict[int, Stray] = {}
    for wait in waits:
        if not (wait.is_main and wait.sure) or wait.kind not in _OTHER_HALF:
            continue
        other = _OTHER_HALF[wait.kind]
        mine = posted.get((wait.peer, other, wait.group), [])
        usual = next((one for one in mine if one.peer == wait.rank), None)
        if usual is None or not usual.site or not _MIN_USES <= usual.count == wait.count - 1:
            continue
        strayed = [one for one in mine if one.peer != wait.rank and one.site == usual.site]
        if len(strayed) == 1 and strayed[0].count == 1:
            found.setdefault(wait.peer, Stray(wait.peer, wait, strayed[0], usual))
    return tuple(found[rank] for rank in sorted(found))


def find_seen_waits(
    waits: Sequence[PeerWait], counts: Iterable[PeerCount], groups: Iterable[GroupOps]
) -> tuple[Wait, ...]:
    """Find the sends, receives and monitored barriers that main threads are blocked in.

    Args:
        waits: What the threads of ranks are in.
        counts: How many sends and receives each rank has posted so far.
        groups: The groups that are known.

    Returns:
        One wait for each of these calls whose peer is known.
    """
    known = {group.name: group for group in groups}
    posted = {(one.rank, one.kind, one.peer, one.group): one.count for one in counts}
    counted = frozenset(one[0] for one in posted)
    halves = frozenset((one.rank, one.kind, one.peer) for one in waits)
    met: dict[str, set[int]] = {}
    for wait in waits:
        if wait.kind == _BARRIER:
            met.setdefault(wait.group, set()).add(wait.rank)
    found = []
    for wait in waits:
        if not wait.is_main or not wait.sure:
            continue
        group = known.get(wait.group) or GroupOps(wait.group, "", frozenset(), {})
        if wait.kind == _BARRIER:
            found.append(_make(wait, group, group.members - met[wait.group]))
        elif wait.kind in _OTHER_HALF and wait.peer >= 0:
            is_there = _is_posted(wait, halves, posted, counted)
            found.append(_make(wait, group, frozenset() if is_there else frozenset({wait.peer})))
    return tuple(found)


def _is_posted(
    wait: PeerWait,
    halves: frozenset[tuple[int, str, int]],
    posted: Mapping[tuple[int, str, int, str], int],
    counted: frozenset[int],
) -> bool:
    """Tell whether the peer has posted the other half: by its counts, else by where it is."""
    other = _OTHER_HALF[wait.kind]
    if wait.count and wait.peer in counted:
        return posted.get((wait.peer, other, wait.rank, wait.group), 0) >= wait.count
    return (wait.peer, other, wait.rank) in halves


def _make(wait: PeerWait, group: GroupOps, missing: frozenset[int]) -> Wait:
    arrow = {"send": "to", "recv": "from"}.get(wait.kind, "")
    op = f"{wait.kind} {arrow} rank {wait.peer}" if arrow else "monitored_barrier"
    return Wait(
        wait.rank,
        group,
        0,
        NO_ROW,
        missing,
        is_p2p=wait.kind in _OTHER_HALF,
        op=op,
        site=wait.site,
        artifact=wait.artifact,
    )
