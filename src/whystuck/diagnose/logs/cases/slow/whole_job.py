"""S304 by the pace of steps that a loop prints: from one step on, all of them take longer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent

_MAX_LINES = 6
# Steps take so many times as long since then. On each side they are alike: they differ by no more
# than a part of that.
_SLOWER, _ALIKE = 1.4, 0.4
# So many figures on each side; more where they differ by more than this.
_LEAST, _MORE, _SAME = 2, 4, 1.05
# The first steps of a job take longer, and one figure may be of steps before and after.
_MOST_FIRST = 2


@dataclass(frozen=True)
class _Range:
    """Some figures that follow each other."""

    least: float
    most: float
    count: int

    def has_fallen_to(self, later: _Range) -> bool:
        """Tell whether later figures are lower than these, and alike among each other."""
        fewest = min(self.count, later.count)
        if fewest < _LEAST or self.least < _SLOWER * later.most:
            return False
        spread = max(self.most / self.least, later.most / later.least)
        is_alike = spread <= 1 + _ALIKE * (self.least / later.most - 1)
        return is_alike and (fewest >= _MORE or spread <= _SAME)


def make_whole_job(view: LogView) -> Iterator[Case]:
    """Make the case of a job whose steps take longer since one of them, until the text ends.

    Steps of one job are told by their numbers, which grow. Where several ranks print their pace,
    that of each must have fallen: nobody is slow alone then.
    """
    series = _list_series(view)
    for (_, name, _), rows in series.items():
        others = [one for (_, other, _), one in series.items() if other == name]
        at = _find_fall([_read(row) for row in rows])
        if not at or not all(_find_fall([_read(row) for row in one]) for one in others):
            continue
        before, after = rows[at - 1], rows[-1]
        yield Case(
            code=codes.WHOLE_JOB_SLOWER,
            summary=f"all ranks are slower since step {rows[at].groups['step']}: {name} "
            f"is {after.groups['told']} there, before it was {before.groups['told']}",
            tier=NOTE,
            lines=(*rows[max(0, at - 2) : at + 2], after)[:_MAX_LINES],
            time=find_time(rows[at:]),
            details={"phase": "", "step": int(rows[at].groups["step"])},
        )
        return


def _list_series(view: LogView) -> dict[tuple[str, str, str], list[LogEvent]]:
    """Return the figures of each name, of the last steps whose numbers grow."""
    found: dict[tuple[str, str, str], list[LogEvent]] = {}
    for row in view.list_signatures("table.step_rate"):
        key = row.artifact, row.groups["name"], row.groups["own"]
        rows = found.setdefault(key, [])
        last = int(rows[-1].groups["step"]) if rows else -1
        step = int(row.groups["step"])
        if step < last:
            rows.clear()  # another run, or the same one from a checkpoint
        if step != last:
            rows.append(row)
    return found


def _read(row: LogEvent) -> float:
    return float(row.groups["rate"])


def _find_fall(rates: Sequence[float]) -> int:
    """Return the place of the first figure of a pace that fell for good; 0 where none did."""
    count = len(rates)
    # The lowest and highest figure from each place on.
    lowest = [*accumulate(reversed(rates), min)][::-1]
    highest = [*accumulate(reversed(rates), max)][::-1]
    for skip in range(_MOST_FIRST + 1):
        before = _Range(inf, 0.0, 0)
        for at in range(skip, count - _LEAST + 1):
            for place in (at, at + 1):
                if count - place < _LEAST or before.least <= _SAME * rates[at]:
                    continue
                if before.has_fallen_to(_Range(lowest[place], highest[place], count - place)):
                    return at
            before = _Range(
                min(before.least, rates[at]), max(before.most, rates[at]), before.count + 1
            )
    return 0
