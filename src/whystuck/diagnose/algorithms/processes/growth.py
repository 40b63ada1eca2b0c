"""Whether a file grew, or a process wrote, while somebody looked at it again and again."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from whystuck.evidence.logs.lines import LogEvent

# Two sizes may be of two files of one name; what still grows at the third look is being written.
# Where one command looks twice at one place, it is one file.
_LOOKS, _LOOKS_APART = 3, 2
_DAY_S = 86_400
# What a process writes in each second, in kB, where it writes more than a log.
_LEAST_KB = 1000
# A log grows as well, whoever writes it.
_CHECKPOINT = re.compile(
    r"\.(?:pt|pth|bin|ckpt|safetensors|distcp|tar|npz|h5|msgpack)\b|ckpt|checkpoint|global_step"
    r"|(?:^|[/_.-])(?:save|state|weights)",
    re.IGNORECASE,
)
# Indices and caches of data that a program builds before it trains.
_INDEX = re.compile(r"idx|index|indices|\.npy$|\.arrow$|mmap|cache|tokeni[sz]ed", re.IGNORECASE)
_LOG = re.compile(r"\.(?:log|out|err|txt|json|jsonl|csv)$")


@dataclass(frozen=True)
class Growth:
    """A file that grew at each look; ``mb_per_s`` is 0 where the looks have no times."""

    file: str
    mb_per_s: float
    last: LogEvent


def find_growth(events: Iterable[LogEvent]) -> Growth | None:
    """Find the one file that was larger at each look than before, the last look included.

    Or of which more parts were written each time.
    """
    looks: dict[tuple[str, str], list[LogEvent]] = {}
    parts: dict[tuple[str, str, int], list[LogEvent]] = {}
    for event in events:
        if event.signature == "progress.part":
            key = event.artifact, event.groups["file"], event.rank
            parts.setdefault(key, []).append(event)
        name = event.groups.get("file", "") if event.signature == "table.size" else ""
        if _CHECKPOINT.search(name) and not _LOG.search(name):
            looks.setdefault((event.artifact, name), []).append(event)
    grown = [one for told in looks.values() if (one := _measure(told)) is not None]
    grown += [one for told in parts.values() if (one := _count_parts(told)) is not None]
    return grown[0] if len(grown) == 1 else None


def find_index_growth(events: Iterable[LogEvent]) -> Growth | None:
    """Find an index of data that was larger at each look than before, the last look included."""
    looks: dict[tuple[str, str], list[LogEvent]] = {}
    for event in events:
        name = event.groups.get("file", "") if event.signature == "table.size" else ""
        if _INDEX.search(name) and not _LOG.search(name):
            looks.setdefault((event.artifact, name), []).append(event)
    # A whole path is that of one file.
    grown = [
        _measure(told, _LOOKS_APART if name.startswith("/") else _LOOKS)
        for (_, name), told in looks.items()
    ]
    return next((one for one in grown if one is not None), None)


def find_writing(events: Iterable[LogEvent], pid: int) -> Growth | None:
    """Find that a process had written more at each look, the last look included."""
    told = [
        event
        for event in events
        if event.signature == "table.written" and pid > 0 and event.groups["pid"] == str(pid)
    ]
    rates = [int(one.groups["rate"]) for one in told if "rate" in one.groups]
    if len(rates) >= _LOOKS:
        is_busy = min(rates) >= _LEAST_KB
        return Growth("", round(sum(rates) / len(rates) / 1000, 2), told[-1]) if is_busy else None
    return _measure([one for one in told if "bytes" in one.groups])


def _count_parts(told: list[LogEvent]) -> Growth | None:
    have = [int(one.groups["have"]) for one in told]
    is_done = have[-1] >= int(told[-1].groups["all"])
    if len(have) < _LOOKS or have != sorted(set(have)) or is_done:
        return None
    return Growth(told[-1].groups["file"], 0.0, told[-1])


def _measure(told: list[LogEvent], looks: int = _LOOKS) -> Growth | None:
    sizes = [int(one.groups["bytes"]) for one in told]
    apart = [int(one.groups.get("apart", "0")) for one in told]
    least = _LOOKS_APART if all(apart[1:]) else looks
    if len(sizes) < least or sizes != sorted(set(sizes)):
        return None
    first, last = (int(one.groups["s"]) for one in (told[0], told[-1]))
    span_s = (last - first) % _DAY_S if min(first, last) >= 0 else sum(apart[1:]) * all(apart[1:])
    rate = (sizes[-1] - sizes[0]) / span_s / 1e6 if span_s else 0.0
    return Growth(told[-1].groups.get("file", ""), round(rate, 2), told[-1])
