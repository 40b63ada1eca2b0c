"""S309 by the times of phases of all ranks: each of them waits for its data.

Megatron prints the least and the most time that ranks take for a phase, or that of each rank;
other programs print lines for each rank. That one rank waits for its data is S301.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time
from whystuck.diagnose.logs.cases.saves.slow_storage import describe_storage, list_slow_storage
from whystuck.diagnose.logs.cases.slow.slow_tables import make_starved
from whystuck.diagnose.logs.cases.slow.time_tables import is_wait, read_last_table
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import MAX_RANK

_MAX_LINES = 6
# Of the time of a step, spent on its batch by the rank that waits least.
_LEAST_SHARE = 0.4
# So many reports or lines: the first may be of a cold cache.
_LEAST_REPORTS, _LEAST_LINES, _LAST = 2, 3, 5
_LEAST_RANKS = 2
# A report tells the phases below each other.
_NEAR_ROWS = 2
# Times of a step without a unit are seconds where none is larger.
_LEAST_MS = 50.0
_GREW = 2.0
_DATA = re.compile(
    r"^(?:data(?:$|[_ -]?(?:time|wait|load|fetch|s$|ms$)|loader)|dataload"
    r"|batch[_-](?:gen|wait|fetch|load)|input(?:$|[_ -](?:time|wait))|load[_ ](?:batch|data)"
    r"|next[_ ]batch)",
    re.IGNORECASE,
)
_WHOLE = re.compile(
    r"^(?:(?:step|iter|iteration|total|batch)[_ -]?(?:time|dur(?:ation)?|s|sec|ms)?|time|total)$",
    re.IGNORECASE,
)
# What is a part of another phase counts once.
_PARTS = re.compile(
    r"^(?:fwd|forward|bwd|backward|opt|optim|optimizer|compute|model|comm|sync|allreduce|grad|wait)",
    re.IGNORECASE,
)
_PAIR = re.compile(
    r"\b(?P<name>[A-Za-z][A-Za-z_-]{1,30}(?: (?:time|wait|load|loading))?)\s{0,2}[:=]?\s{0,3}"
    r"(?P<value>\d{1,9}\.\d{1,6}|\d{1,9}(?= ?(?:ms|us)\b))\s?(?P<unit>ms|us|s)?(?![\w.])"
)
# `6.91 s/it (data 6.08 s)`
_EACH = re.compile(r"(?<![\w.])(\d{1,9}(?:\.\d{1,6})?) ?(ms|s)/(?:it|iter|iteration|step|batch)\b")
_SAID = re.compile(r"\brank[ _=:#]{0,2}(\d{1,7})\b", re.IGNORECASE)
_MS = {"s": 1000.0, "us": 0.001}


@dataclass
class _Report:
    """What all ranks took in one step, or in some: the least and the most wait, and a step."""

    least: float
    most: float
    whole: float
    lines: list[LogEvent] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Which share of a step even the rank spends on data that waits least for it."""
        return self.least / self.whole if self.whole else 0.0


def make_starved_phases(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that all wait for their next batch, by times of phases."""
    if any(make_starved(view)):
        return
    reports = _list_ranges(view) or _list_tables(view)
    found = _judge_reports(reports) or _judge_lines(view)
    if found is None:
        return
    now, before = found
    storage = list_slow_storage(view)
    grew = f", before it was {before:.0f} ms" if before else ""
    slow = f"; {describe_storage(storage[0])}" if storage else ""
    yield Case(
        code=codes.STARVED_INPUT,
        summary=f"all ranks wait for data: {100 * now.share:.0f} % of a step "
        f"({_tell_span(now)}{grew}){slow}",
        tier=NOTE,
        lines=(*now.lines[:_MAX_LINES], *storage[:2]),
        time=find_time(now.lines),
        details={"phase": "dataloader"},
    )


def _tell_span(now: _Report) -> str:
    is_one = now.most - now.least < 1
    return f"{now.least:.0f} ms" if is_one else f"{now.least:.0f} to {now.most:.0f} ms"


def _judge_reports(reports: Sequence[_Report]) -> tuple[_Report, float] | None:
    """Find that the last reports show it; what it was before, where that was far less."""
    slow = [*_take_last(reports)]
    if len(slow) < _LEAST_REPORTS:
        return None
    first, now = slow[0], slow[-1]
    early = [one.most for one in reports[: len(reports) - len(slow)]]
    before = median(early) if early else 0.0
    told = _Report(now.least, now.most, now.whole, [*first.lines, *now.lines])
    return told, before if before * _GREW < now.least else 0.0


def _take_last(reports: Sequence[_Report]) -> list[_Report]:
    """Return the last reports that show it, without a gap."""
    found: list[_Report] = []
    for one in reversed(reports):
        if one.share < _LEAST_SHARE:
            break
        found.append(one)
    return found[::-1]


def _list_ranges(view: LogView) -> list[_Report]:
    """Read what Megatron prints of the least and the most of all ranks."""
    events = sorted(
        view.list_signatures("progress.range"),
        key=lambda one: (one.artifact, one.row),
    )
    found: list[_Report] = []
    inner: dict[str, float] = {}
    last = 0
    for event in events:
        phase = event.groups["phase"]
        if event.row - last > _NEAR_ROWS and phase in inner:
            inner = {}
        last = event.row
        inner[phase] = float(event.groups["most"])
        # Megatron tells the forward and the backward before what they are made of.
        whole = inner.get("forward-backward", 0.0)
        if _DATA.match(phase) and whole:
            ends = float(event.groups["least"]), float(event.groups["most"])
            # Lines that are the same are kept once.
            found += [_Report(*ends, whole, [event])] * min(event.count, _LEAST_REPORTS)
    return found


def _list_tables(view: LogView) -> list[_Report]:
    """Read the last table that has the times of each rank."""
    times = read_last_table(view)
    data = next((own for phase, own in times.items() if _DATA.match(phase)), {})
    whole = next((own for phase, own in times.items() if _WHOLE.match(phase)), {})
    parts = [own for phase, own in times.items() if _PARTS.match(phase) or is_wait(phase)]
    if len(data) < _LEAST_RANKS:
        return []
    steps = [
        whole[rank].ms
        if rank in whole
        else told.ms + sum(own[rank].ms for own in parts if rank in own)
        for rank, told in data.items()
    ]
    waits = [told.ms for told in data.values()]
    lines = [told.event for told in data.values()]
    # One table tells of all ranks, and mostly of many steps.
    return [_Report(min(waits), max(waits), max(steps), lines)] * _LEAST_REPORTS


def _judge_lines(view: LogView) -> tuple[_Report, float] | None:
    """Find that the last lines of each rank show it."""
    ranks: dict[int, list[_Report]] = {}
    for event in view.list_signatures("progress.phases", "progress.data_wait"):
        told = _read_line(event)
        if told is not None:
            again = min(event.count, _LEAST_LINES)
            ranks.setdefault(_find_rank(event), []).extend([told] * again)
    if not ranks or sum(map(len, ranks.values())) < _LEAST_LINES:
        return None
    last = [one for told in ranks.values() for one in told[-_LAST:]]
    middles = [median(one.share for one in told[-_LAST:]) for told in ranks.values()]
    if min(middles) < _LEAST_SHARE:
        return None
    waits = [one.least for one in last]
    whole = median(one.whole for one in last)
    lines = [line for one in last for line in one.lines]
    least = min(median(one.least for one in told[-_LAST:]) for told in ranks.values())
    return _Report(least, max(waits), whole, lines), 0.0


def _find_rank(event: LogEvent) -> int:
    said = _SAID.search(event.text)
    rank = event.rank if event.rank >= 0 or said is None else int(said[1])
    return rank if rank <= MAX_RANK else -1


def _read_line(event: LogEvent) -> _Report | None:
    """Read the wait for data in a line, and the step: told as a whole, or as the sum of phases."""
    each = _EACH.search(event.text)
    whole = float(each[1]) * _MS.get(each[2], 1.0) if each else 0.0
    data, parts, has_unit = 0.0, 0.0, each is not None
    for pair in _PAIR.finditer(event.text):
        name, unit = pair["name"], pair["unit"] or ""
        value = float(pair["value"]) * _MS.get(unit, 1.0)
        has_unit |= bool(unit)
        if _DATA.match(name):
            data = data or value
        elif _WHOLE.match(name):
            whole = whole or value
        elif _PARTS.match(name):
            parts += value
    scale = 1.0 if has_unit or max(data, whole, parts) >= _LEAST_MS else 1000.0
    step = whole if whole >= data else data + parts
    if not data or step <= data:
        return None
    return _Report(data * scale, data * scale, step * scale, [event])
