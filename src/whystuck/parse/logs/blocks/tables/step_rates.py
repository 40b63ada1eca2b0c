"""How fast a job makes its steps: the figures that training loops print of one step after another.

`Train throughput/batches_per_sec: 0.48`, `tps: 5,023`, `1.21it/s`, `elapsed time per iteration
(ms): 812.4`. Only texts of the size that people paste are looked through.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine
from whystuck.parse.logs.steady_steps import STEP

_MOST_RATES = 1024
_MAX_WIDTH = 1000
# The number of a step may stand so far above what is told of it.
_NEAR_LINES = 4
_HINT = re.compile(rb"_per_sec|PerSec|/s\b|/sec\b|s/it\b|\btps:|[Tt]ime per |(?:step|iter)_time")
_VALUE = r"(?P<value>\d[\d,]{0,14}(?:\.\d{1,6})?(?![\d.]))"
# What is made in a second: the name before the figure, or the unit behind it.
_NAMED = re.compile(
    r"(?<![\w.])(?P<name>(?:[A-Z]?[a-z_ ]{1,30}/)?(?:batch(?:es)?|tok(?:en)?s?|samples?|steps?"
    r"|iter(?:ation)?s?|Curr[A-Z][a-z]{2,12})?(?:_per_sec(?:ond)?|/s(?:ec)?|PerSec)|tps)"
    rf"['\"]?\s?[=:]\s{{0,3}}{_VALUE}"
)
_UNIT = re.compile(
    rf"(?<![\w.,]){_VALUE}\s?(?P<name>(?:it|iters?|steps?|batch(?:es)?|tok(?:en)?s?|samples?|seqs?"
    r"|sequences?|images?|imgs?)/s(?:ec)?)\b"
)
# How long one takes.
_TIME = re.compile(
    r"(?<![\w.])(?P<name>elapsed time per iteration \((?:ms|s)\)"
    r"|(?:step|iter(?:ation)?)[_ ]time(?:_ms|_s| ?\((?:ms|s)\))?"
    r"|time per (?:step|iteration)(?: ?\((?:ms|s)\))?)"
    rf"['\"]?\s?[=:]\s{{0,3}}{_VALUE}"
)
_TIME_UNIT = re.compile(rf"(?<![\w.,]){_VALUE}\s?(?P<name>s/(?:it|step|iter|batch))\b")
_RATES = (_NAMED, _UNIT)
# Bars of what is made ready before the first step, and of other programs; means follow late.
_OTHERS = re.compile(
    r"(?i)tokeniz|preprocess|download|loading|map[ :(]|generating|filter|extract|saving|upload"
    r"|eval|valid|warm-?up|compil"
)
# Other ways to tell it: `[batch=40/900]`, `iteration      40/     900 |`
_COUNT = re.compile(r"\b(?:batch[=:] ?|iteration {1,12})(\d{1,9})\b")
_RANK = re.compile(r"(?<![a-z_])rank[ _=:#]{0,2}(\d{1,7})\b", re.IGNORECASE)


def find_step_rates(data: bytes, row: int) -> Iterator[TabledSeen]:
    """Find what a text says of the pace of steps, each with the number of its step.

    Args:
        data: The text.
        row: The number of its first line.
    """
    if _HINT.search(data) is None:
        return
    found, step, last = 0, "", -_NEAR_LINES
    for at, whole in enumerate(data.decode("utf-8", errors="replace").split("\n")):
        # Of a bar of progress, its last state is the one that stays.
        line = whole.rstrip("\r").rpartition("\r")[2][:_MAX_WIDTH]
        if number := _find_step(line):
            step, last = number, at
        if not step or at - last > _NEAR_LINES or _OTHERS.search(line):
            continue
        for groups in _list_rates(line):
            found += 1
            if found > _MOST_RATES:
                return
            said = _RANK.search(line)
            own = said[1] if said and int(said[1]) <= MAX_RANK else ""
            told = groups | {"step": step, "own": own}
            yield TabledSeen("table.step_rate", row + at, LogLine(line.strip()), told)


def _find_step(line: str) -> str:
    told = (match[1] or match[2] for match in STEP.finditer(line))
    count = _COUNT.search(line)
    return next(filter(None, told), "") or (count[1] if count else "")


def _list_rates(line: str) -> Iterator[dict[str, str]]:
    """Yield the figures of a line; those that are times as what is made in one unit of it."""
    for pattern in (*_RATES, _TIME, _TIME_UNIT):
        match = pattern.search(line)
        value = float(match["value"].replace(",", "")) if match else 0.0
        if match is None or value <= 0:
            continue
        is_time = pattern not in _RATES
        rate = 1.0 / value if is_time else value
        yield {"name": match["name"], "told": match["value"], "rate": repr(rate)}
