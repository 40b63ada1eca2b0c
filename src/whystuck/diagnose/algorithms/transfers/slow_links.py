"""The link between two hosts, or the end of one, over which transfers take longer than elsewhere.

A link slows down all transfers that go over it, and no others. In a ring, all ranks wait for what
comes over the slow link; the receiver behind it is over with the op last, by one turn of the ring,
as it alone waits for the last piece. That tells the link, not which of its ends is slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from whystuck.diagnose.algorithms.times.op_instances import Times
from whystuck.diagnose.algorithms.transfers.flows import SEND, Flow

# So many steps before and after a change, those of the start left out; and how many times longer
# transfers take after it, at least.
_START, _MIN_STEPS, _MIN_RATIO = 5, 16, 1.5
# Nearly all transfers after it take longer than nearly all before.
_LOW, _HIGH = 20, 90
# So many of them surely do; of others no look tells.
_SURE = 70
# Times below this differ by how ops are looked at.
_SHORT_NS = 4e6
# What a step loses by it, at least.
_MIN_LOST_NS, _MIN_LOST_SHARE = 5e6, 0.05
# A flow whose transfers grew by less than this part of what others grew by is not slow, ...
_MAX_FAST = 0.3
# ... if they move so much of the bytes at least.
_MIN_SIZE = 0.25
# Of like flows, the slow one takes so many times longer than the others.
_MIN_APART = 2.0
_FEW_FLOWS = 2
# The last rank of a ring is over so much of a turn after all others, in each part of the time, ...
_MIN_TURN, _PARTS = 0.5, 2
# ... by so many times the error of that.
_MIN_ERRORS = 4.0

# What waits for a slow way back grows by half as much as what goes over it.
_MAX_BACK = 0.75

# From a host, to a host.
Way = tuple[str, str]
# Group, op and ranks of a flow.
_Key = tuple[str, str, tuple[int, ...]]
OUT, IN, BOTH = "out", "in", ""


@dataclass(frozen=True)
class SlowFlow:
    """Transfers that became slow at step ``place``, or were from the start (0)."""

    flow: Flow
    place: int
    before_ns: float
    after_ns: float
    lost_share: float
    ways: frozenset[Way]
    # The sender and the receiver, where the ends of a ring tell them.
    ring_pair: tuple[int, int] | None = None

    @property
    def grown_ns(self) -> float:
        """How much longer the transfers take."""
        return self.after_ns - self.before_ns

    @property
    def pair(self) -> tuple[int, int] | None:
        """The sender and the receiver, None where they are among more members of a group."""
        if self.ring_pair is not None or self.flow.is_among_many:
            return self.ring_pair
        return self.flow.ranks[0], self.flow.ranks[1]


@dataclass(frozen=True)
class SlowLink:
    """A slow link, and what shows it.

    ``pair`` is the sender and the receiver of slow transfers, all there are if ``is_pair``;
    ``hosts`` are those whose end may be the slow one: one where the end is known, none
    where neither end is slow to others. ``direction`` is that of the end: out of it, into it, or
    empty where both are slow, or it is not known. ``slow`` begins with the one that loses most.
    """

    pair: tuple[int, int]
    hosts: tuple[str, ...]
    direction: str
    slow: tuple[SlowFlow, ...]
    fast: tuple[Flow, ...]
    is_pair: bool

    @property
    def worst(self) -> SlowFlow:
        """The flow that loses most."""
        return self.slow[0]


@dataclass(frozen=True)
class _Guess:
    """What may be slow: all ways out of a host, into it, or both; or those between two hosts."""

    hosts: tuple[str, ...]
    direction: str = BOTH

    def affects(self, way: Way) -> bool:
        if len(self.hosts) > 1:
            return way == self.hosts or (self.direction == BOTH and way == self.hosts[::-1])
        (host,) = self.hosts
        is_out, is_in = way[0] == host, way[1] == host
        return (is_out and self.direction != IN) or (is_in and self.direction != OUT)


def find_slow_link(flows: Sequence[Flow], host_by_rank: Mapping[int, str]) -> SlowLink | None:
    """Find the only link that explains which transfers are slow.

    Args:
        flows: The transfers of a job.
        host_by_rank: The network stack of each rank; two of them have a link between them.

    Returns:
        The link; None when no transfers are slow, all are, or more than one link may be slow.
    """
    known = [one for one in flows if len(_list_hosts(one, host_by_rank)) > 1]
    slow = _drop_ways_back(_find_changed(known, host_by_rank))
    if not slow:
        slow = _drop_ways_back(_find_apart(known, host_by_rank))
    if not slow:
        slow = [*_find_skewed(known, host_by_rank)]
    if not slow:
        return None
    worst = max(slow, key=lambda one: one.lost_share)
    listed = {_key(one.flow) for one in slow} | {_turn(one.flow) for one in slow}
    growths = [(one, _measure_growth(one, worst)) for one in known if _key(one) not in listed]
    if any(grown_ns > _MAX_BACK * worst.grown_ns for _, grown_ns in growths):
        return None
    if any(_is_way_back(one, known) for one in slow):
        return None
    fast = [
        one
        for one, grown_ns in growths
        if grown_ns < _MAX_FAST * worst.grown_ns and one.size >= _MIN_SIZE * worst.flow.size
    ]
    guesses = [
        guess
        for guess in _list_guesses(slow)
        if all(any(map(guess.affects, one.ways)) for one in slow)
        and not any(_uses(one, guess, host_by_rank) for one in fast)
    ]
    return _choose(guesses, slow, fast)


def _key(flow: Flow) -> _Key:
    return flow.group, flow.op, flow.ranks


def _turn(flow: Flow) -> _Key:
    """Return the key of the way back in a collective of two ranks."""
    return flow.group, flow.op, flow.ranks[::-1] if flow.op != SEND else ()


def _drop_ways_back(found: Iterable[SlowFlow]) -> list[SlowFlow]:
    """Drop ways that are slow because what goes back waits for what has come over the slow one.

    In an all-reduce of two, what a rank gets last is what the other one made of its own part.
    """
    slow = {_key(one.flow): one for one in found}
    kept = []
    for one in slow.values():
        back = slow.get(_turn(one.flow))
        if back is None or one.grown_ns > _MAX_BACK * back.grown_ns:
            kept.append(one)
    return kept


def _is_way_back(slow: SlowFlow, flows: Iterable[Flow]) -> bool:
    """Return whether the other way of the same op grew more, though no change was found there."""
    turns = (one for one in flows if _key(one) == _turn(slow.flow))
    return any(_MAX_BACK * _measure_growth(one, slow) > slow.grown_ns for one in turns)


def _list_hosts(flow: Flow, host_by_rank: Mapping[int, str]) -> set[str]:
    return {host_by_rank[rank] for rank in flow.ranks if rank in host_by_rank}


def _find_changed(flows: Sequence[Flow], hosts: Mapping[int, str]) -> Iterator[SlowFlow]:
    """Yield flows whose transfers take longer from one step on."""
    for flow in flows:
        place = _find_change(flow.middle_ns)
        before_ns, after_ns = flow.middle_ns[_START:place], flow.middle_ns[place:]
        if not place or np.percentile(after_ns, _LOW) <= np.percentile(before_ns, _HIGH):
            continue
        usual_ns = float(np.median(before_ns))
        # Looks at ops may have become rarer, which makes the middle of what is known grow.
        least_ns = float(np.percentile(flow.low_ns[place:], _SURE))
        if least_ns >= _MIN_RATIO * usual_ns:
            one = _make(flow, place, usual_ns, float(np.median(after_ns)), hosts)
            if one is not None:
                yield one


def _find_change(times_ns: Times) -> int:
    """Return where two levels fit best, of the logarithm: 0 where there are too few steps.

    Where they fit best at less than `_MIN_STEPS` from the end, the second level is new: with steps
    of the first one in it, the way back of a slow transfer could look slower than the transfer.
    """
    known = np.log(times_ns[_START:] + _SHORT_NS)
    count = len(known)
    if count < 2 * _MIN_STEPS:
        return 0
    before = np.arange(1, count)
    sums = np.cumsum(known)[:-1]
    explained = sums**2 / before + (known.sum() - sums) ** 2 / (count - before)
    place = _MIN_STEPS + int(explained[_MIN_STEPS - 1 :].argmax())
    return _START + place if place <= count - _MIN_STEPS else 0


def _find_apart(flows: Sequence[Flow], hosts: Mapping[int, str]) -> Iterator[SlowFlow]:
    """Yield flows whose transfers take longer than those of like flows, all the time."""
    for flow in flows:
        alike = [
            other
            for other in flows
            if other is not flow and (other.is_pair, other.op) == (flow.is_pair, flow.op)
            and len(other.ranks) == len(flow.ranks)
            and _MIN_SIZE <= other.size / max(flow.size, 1) <= 1 / _MIN_SIZE
        ]  # fmt: skip
        if len(alike) < _FEW_FLOWS:
            continue
        least_ns = float(np.median(flow.low_ns))
        # Half of the others or more are fast: one of them may be slow as well.
        usual_ns = float(np.median([np.median(other.high_ns) for other in alike]))
        if least_ns >= _MIN_APART * usual_ns:
            middle_ns = float(np.median(flow.middle_ns))
            one = _make(flow, 0, usual_ns, middle_ns, hosts)
            if one is not None:
                yield one


def _find_skewed(flows: Sequence[Flow], hosts: Mapping[int, str]) -> Iterator[SlowFlow]:
    """Yield rings that one member leaves last all the time."""
    for flow in flows:
        if flow.is_among_many:
            one = _make(flow, 0, 0.0, float(np.median(flow.middle_ns)), hosts)
            if one is not None and one.ring_pair is not None:
                yield one


def _make(
    flow: Flow, place: int, before_ns: float, after_ns: float, hosts: Mapping[int, str]
) -> SlowFlow | None:
    """Return a slow flow, None where it costs little."""
    lost_ns = after_ns - before_ns
    step_ns = float(np.median(np.diff(flow.begin_ns[place:])))
    if lost_ns < max(_MIN_LOST_NS, _MIN_LOST_SHARE * step_ns):
        return None
    ring_pair = _find_ring_pair(flow, place, lost_ns)
    if ring_pair is not None:
        ways = {(hosts[ring_pair[0]], hosts[ring_pair[1]])}
    elif flow.is_pair:
        ways = {(hosts[flow.ranks[0]], hosts[flow.ranks[1]])}
    else:
        ways = set(permutations(sorted(_list_hosts(flow, hosts)), 2))
    ways = {way for way in ways if way[0] != way[1]}
    lost_share = min(1.0, lost_ns / step_ns) if step_ns > 0 else 0.0
    return SlowFlow(
        flow, place, before_ns, after_ns, lost_share, frozenset(ways), ring_pair
    ) if ways else None  # fmt: skip


def _find_ring_pair(flow: Flow, place: int, lost_ns: float) -> tuple[int, int] | None:
    """Return the sender and the receiver of the slow link of a ring, None where nothing tells."""
    if not flow.is_among_many or (flow.backend, flow.op) != ("gloo", "all_reduce"):
        return None
    late_ns = flow.ends_ns - np.median(flow.ends_ns, axis=1, keepdims=True)
    if place:
        # What clocks differ by is the same before.
        late_ns = late_ns - late_ns[:place].mean(axis=0)
    late_ns = late_ns[place:]
    order = np.argsort(late_ns.mean(axis=0))
    last, second = int(order[-1]), int(order[-2])
    skew_ns = late_ns[:, last] - late_ns[:, second]
    usual_ns = float(skew_ns.mean())
    # Each piece takes two turns but one of the ring.
    turn_ns = lost_ns / (2 * (len(flow.ranks) - 1))
    errors_ns = late_ns[:, [last, second]].std(axis=0) / np.sqrt(len(late_ns))
    if usual_ns < max(_MIN_TURN * turn_ns, _MIN_ERRORS * float(np.hypot(*errors_ns))):
        return None
    parts = np.array_split(skew_ns, _PARTS if place else 2 * _PARTS)
    if any(part.mean() < _MIN_TURN * usual_ns for part in parts):
        return None
    # gloo passes each piece on to the rank before.
    return flow.ranks[(last + 1) % len(flow.ranks)], flow.ranks[last]


def _measure_growth(flow: Flow, worst: SlowFlow) -> float:
    """Return by how much the transfers of a flow grew when those of the worst one did."""
    is_after = flow.begin_ns >= worst.flow.begin_ns[worst.place]
    if not is_after.any():
        return 0.0
    after_ns = float(np.median(flow.middle_ns[is_after]))
    if not worst.place:
        return after_ns - worst.before_ns
    before_ns = float(np.median(flow.middle_ns[~is_after])) if not is_after.all() else 0.0
    return after_ns - before_ns


def _uses(flow: Flow, guess: _Guess, hosts: Mapping[int, str]) -> bool:
    """Return whether a flow surely goes over what may be slow."""
    if flow.is_pair:
        return guess.affects((hosts[flow.ranks[0]], hosts[flow.ranks[1]]))
    if len(guess.hosts) == 1:
        # Every member gives and gets.
        return guess.hosts[0] in _list_hosts(flow, hosts)
    if len(flow.ranks) == 2:  # noqa: PLR2004 - both give and get
        ways = [flow.ranks, flow.ranks[::-1]]
    elif (flow.backend, flow.op) == ("gloo", "all_reduce"):
        ways = list(zip((*flow.ranks[1:], flow.ranks[0]), flow.ranks, strict=True))
    else:
        ways = []
    return any(guess.affects((hosts[way[0]], hosts[way[1]])) for way in ways)


def _list_guesses(slow: Sequence[SlowFlow]) -> Iterator[_Guess]:
    ways = sorted(frozenset[Way]().union(*(one.ways for one in slow)))
    for host in sorted({host for way in ways for host in way}):
        for direction in (OUT, IN, BOTH):
            yield _Guess((host,), direction)
    for way in ways:
        yield _Guess(way, OUT)
    for pair in sorted({(min(way), max(way)) for way in ways}):
        yield _Guess(pair)


def _choose(
    guesses: Sequence[_Guess], slow: Sequence[SlowFlow], fast: Sequence[Flow]
) -> SlowLink | None:
    """Choose among what explains all: one pair of hosts, else the end of one host."""
    pairs = {tuple(sorted(guess.hosts)) for guess in guesses if len(guess.hosts) > 1}
    ends = [guess for guess in guesses if len(guess.hosts) == 1]
    hosts = tuple(sorted({guess.hosts[0] for guess in ends}))
    order = sorted(slow, key=lambda one: -one.lost_share)
    pair = next((one.pair for one in order if one.pair is not None), None)
    if pair is None:
        return None
    if len(pairs) == 1:
        (both,) = pairs
        near = tuple(host for host in hosts if host in both)
        return SlowLink(pair, near, BOTH, tuple(order), tuple(fast), is_pair=True)
    if pairs or len(hosts) != 1:
        return None
    directions = {guess.direction for guess in ends} - {BOTH}
    direction = next(iter(directions)) if len(directions) == 1 else BOTH
    return SlowLink(pair, hosts, direction, tuple(order), tuple(fast), is_pair=False)
