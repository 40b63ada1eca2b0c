"""Whether a job still went on when somebody looked: its last steps, and what `date` printed then.

A log that ends with steps may be that of a job which hangs ever since. That it does not is known
where the time at which it was looked at stands below them.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from whystuck.parse.logs.lines.times import Stamp, read_stamp

# So many steps show a pace; the first of a job may take long.
_STEPS = 4
# Of two steps at one pace, the longer one takes at most so many times as long.
_EVEN = 2.0
_NS_PER_S = 1_000_000_000
# `Tue Nov 24 14:09:41 UTC 2026`, as `date` prints the time of its host
_DATE = re.compile(
    r"^([A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) "
    r"(?:[A-Z]{3,5}|[+-]\d\d(?:\d\d)?) (\d{4})$"
)
_LONGEST = 40
# The number of a step, by which lines of several ranks are told from several steps.
STEP = re.compile(
    r"\b(?:global_)?(?:step|iteration|iter)s?\b['\"]?[ =:#\[]{0,8}(\d{1,9})"
    r"|[\[| ] {0,8}(\d{1,9})/ {0,8}\d{1,9}(?:\]| \[)"
    r"|\b[Ee]p(?:och)?['\"]?[ =:]{0,3}(\d{1,6}(?:\.\d{1,6})?)",
    re.IGNORECASE,
)


@dataclass(slots=True)
class Pace:
    """The times of the last steps of a log, and the last look at the clock.

    Attributes:
        steps: The row and time of each line of progress.
        looked: The row and time of what `date` printed.
        counted: The row and number of the last steps, each of which is further than the one before.
    """

    steps: deque[tuple[int, Stamp]] = field(default_factory=lambda: deque(maxlen=_STEPS))
    looked: tuple[int, Stamp] | None = None
    counted: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_STEPS))

    def count_step(self, row: int, text: str) -> None:
        """Take the number of a step; one that is not further begins a new count."""
        match = STEP.search(text)
        if match is None:
            return
        self._count(row, float(match[1] or match[2] or match[3]))

    def _count(self, row: int, number: float) -> None:
        last = self.counted[-1][1] if self.counted else -1.0
        if number < last:
            self.counted.clear()
        if number != last:
            self.counted.append((row, number))

    @property
    def since(self) -> int:
        """The line from which on the last steps were made, each further; 0 where too few were."""
        return self.counted[0][0] if len(self.counted) == _STEPS else 0

    @property
    def until(self) -> int:
        """The line of the last step; 0 where too few were made, each further."""
        return self.counted[-1][0] if self.since else 0

    def note_step(self, row: int, stamp: Stamp) -> None:
        """Take a line of progress; ranks that print the same step tell of it once."""
        if not self.steps or stamp.ns != self.steps[-1][1].ns:
            self.steps.append((row, stamp))

    def note_line(self, row: int, text: str) -> None:
        """Take any line, which may be what `date` printed."""
        is_short = len(text) < _LONGEST and text[-1:].isdecimal()
        match = _DATE.match(text) if is_short else None
        stamp = read_stamp("ctime", f"{match[1]} {match[2]}") if match else None
        if stamp is not None:
            self.looked = row, stamp

    @property
    def goes_on(self) -> bool:
        """Whether the last steps came at one pace, and the last just before somebody looked."""
        if self.looked is None or not self.steady_until:
            return False
        row, now = self.looked
        last_row, last = self.steps[-1]
        gaps = self._list_gaps()
        return row > last_row and -_NS_PER_S <= now.ns - last.ns <= max(gaps) + _NS_PER_S

    @property
    def steady_until(self) -> int:
        """The line of the last step, where the last ones came at one pace; 0 where they did not."""
        stamps = [stamp for _, stamp in self.steps]
        if len(stamps) < _STEPS or any(stamp.lack or stamp.is_capture for stamp in stamps):
            return 0
        gaps = self._list_gaps()
        is_even = min(gaps) > 0 and max(gaps) <= _EVEN * min(gaps) + _NS_PER_S
        return self.steps[-1][0] if is_even else 0

    def _list_gaps(self) -> list[int]:
        return [later.ns - earlier.ns for (_, earlier), (_, later) in pairwise(self.steps)]

    def shift(self, rows: int) -> None:
        """Count lines from another start, ``rows`` before."""
        self.steps = _keep((row + rows, stamp) for row, stamp in self.steps)
        self.looked = (self.looked[0] + rows, self.looked[1]) if self.looked else None
        self.counted = deque(((row + rows, number) for row, number in self.counted), _STEPS)

    def add(self, later: Pace) -> None:
        """Take what the next part of the log tells."""
        self.steps.extend(later.steps)
        self.looked = later.looked or self.looked
        for row, number in later.counted:
            self._count(row, number)


def _keep(steps: Iterable[tuple[int, Stamp]]) -> deque[tuple[int, Stamp]]:
    return deque(steps, maxlen=_STEPS)
