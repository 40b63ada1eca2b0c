"""When processes will ask for work next, from when they asked before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from whystuck.agent.ondemand.stepping import NS_A_SECOND

# That of Kineto without a configuration file.
_DEFAULT_NS = 5 * NS_A_SECOND
_MIN_NS = NS_A_SECOND // 2
_NEAR_NS = NS_A_SECOND // 10


class Pace:
    """The polls of one process."""

    def __init__(self) -> None:
        """Begin without any."""
        self._last_ns = 0
        self._interval_ns = 0

    def note(self, time_ns: int) -> None:
        """Take the time of a poll."""
        gap_ns = time_ns - self._last_ns
        if self._last_ns and gap_ns >= _MIN_NS:
            # One that was lost makes a gap twice as long; the shorter of two is the interval.
            known = self._interval_ns or gap_ns
            self._interval_ns = min(gap_ns, known) if gap_ns < 2 * known else known
        self._last_ns = time_ns

    @property
    def interval_ns(self) -> int:
        """How far apart its polls are, as far as that is known."""
        return self._interval_ns or _DEFAULT_NS

    def next_ns(self, now_ns: int) -> int:
        """Return when it will ask next."""
        interval_ns = self.interval_ns
        if not self._last_ns:
            return now_ns + interval_ns
        # One that was due a moment ago comes now. Of two that ask at the same time each would
        # else take the other for the one that has just asked.
        missed = max(0, now_ns - self._last_ns - _NEAR_NS) // interval_ns
        return max(now_ns, self._last_ns + (missed + 1) * interval_ns)


def all_told_ns(paces: Iterable[Pace], now_ns: int) -> int:
    """Return when all of some processes will have asked for work."""
    return max((pace.next_ns(now_ns) for pace in paces), default=now_ns)


def is_first_of_all(asking: Pace, others: Sequence[Pace], now_ns: int) -> bool:
    """Tell whether all of some processes are told soonest when the one that asks now is the first.

    Args:
        asking: The one that asks for work at this moment.
        others: The others that are to be told.
        now_ns: The time.

    Returns:
        False when it is better to wait for another one, as those that asked shortly before this
        one will not ask again for long.
    """
    interval_ns = max((pace.interval_ns for pace in (asking, *others)), default=_DEFAULT_NS)
    waits_ns = [0, *(pace.next_ns(now_ns) - now_ns for pace in others)]
    spreads_ns = [max((wait - first) % interval_ns for wait in waits_ns) for first in waits_ns]
    return spreads_ns[0] <= min(spreads_ns) + _NEAR_NS
