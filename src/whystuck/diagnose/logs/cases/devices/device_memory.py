"""C206 device-out-of-memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.raised import select_own
from whystuck.diagnose.logs.cases.parts import (
    find_exceptions,
    find_time,
    is_said,
    list_ranks,
    place_exceptions,
)
from whystuck.diagnose.logs.story import ALOOF, LINKED, OWN, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_TRIED = re.compile(r"Tried to allocate ([\d.]+ \w+)")
_CAPACITY = re.compile(r"total capacity of ([\d.]+ \w+) of which ([\d.]+ \w+) is free")
# A size that no device has: memory was overwritten, or the process was being torn down.
_ABSURD = re.compile(r"Tried to allocate (?:more than 1EB|\d{7,}(?:\.\d+)? GiB|[\d.]+ [PE]iB)")
_HOLDS = re.compile(r"\bProcess (\d{1,9}) has ([\d.]{1,9} [KMG]iB) memory in use")
# Whose memory it is, by the number that the process itself has for it.
_DEVICE = re.compile(r"\b(?:GPU|NPU|XPU|MLU) (\d{1,3})(?:;| has a total)")
_FEW = 2
# Memory in use, beside that of a device with nothing on it.
_FILLED_MIB, _FILLED_TIMES = 500.0, 10.0
_MIB = {"KiB": 1 / 1024, "MiB": 1.0, "GiB": 1024.0}


def make_device_memory(view: LogView) -> Iterator[Case]:
    """Make the case of device memory that ran out on some ranks, or on all of them."""
    events = [event for event in view.list_signatures("cuda.oom") if is_said(event)]
    exceptions = find_exceptions(view, events, codes.DEVICE_OUT_OF_MEMORY)
    exceptions = tuple(item for item in exceptions if not _ABSURD.search(item.message))
    if not events and not exceptions:
        return
    texts = [*(event.text for event in events), *(item.message for item in exceptions)]
    ranks = tuple(sorted({*list_ranks(events), *list_ranks(exceptions)}))
    ranks = ranks or _find_ranks_of_devices(view, texts)
    everywhere = view.is_everywhere(ranks)
    # The line with the sizes says most.
    events.sort(key=lambda event: "Tried to allocate" not in event.text)
    details = _describe_sizes(texts)
    is_survived = not exceptions and _are_survived(view, events)
    tried = f" while it asked for {details['tried']}" if "tried" in details else ""
    who = f"{len(ranks)} of {len(view.ranks)} ranks" if everywhere else name_ranks(ranks)
    other = _find_other(view, texts)
    if other:
        pid, held = other
        details |= {"process": pid, "held": held}
        why, remedies = f": process {pid} holds {held} of that device", _advise(pid)
    else:
        why, remedies = ": the batch is too large, no rank is special" if everywhere else "", ()
    yield Case(
        code=codes.DEVICE_OUT_OF_MEMORY,
        summary=f"{who if ranks else 'a rank'} ran out of device memory{tried}" + why,
        tier=OWN,
        # Where a stranger holds the memory, that is the device to look at.
        ranks=() if everywhere else ranks,
        lines=tuple(events),
        exceptions=exceptions,
        where=place_exceptions(exceptions[:1] if everywhere else exceptions),
        time=find_time(events, exceptions),
        details=details,
        remedies=remedies,
        support=ALOOF if is_survived else LINKED,
    )


def count_filled(view: LogView) -> int:
    """Count the devices whose memory is in use, where a tool shows most others to be empty."""
    used = {
        (event.groups.get("host") or "", event.groups["index"]): float(event.groups["memory"])
        for event in view.list_signatures("table.device")
        if event.groups.get("memory")
    }
    least = max(_FILLED_MIB, _FILLED_TIMES * min(used.values(), default=0.0))
    filled = sum(value >= least for value in used.values())
    return filled if 2 * filled < len(used) else 0


def _find_ranks_of_devices(view: LogView, texts: Sequence[str]) -> tuple[int, ...]:
    """Return the ranks whose devices are full, where other lines of one host tell whose each is.

    Of one device alone this tells nothing: each rank may see no other, and call it 0.
    """
    told = {key: rank for file in view.files for key, rank in file.rank_by_device.items()}
    known = {device: rank for (_, device), rank in told.items()}
    numbers = {int(match[1]) for text in texts if (match := _DEVICE.search(text))}
    is_one_host = len({host for host, _ in told}) == 1
    if not is_one_host or len(known) < _FEW or not numbers <= known.keys():
        return ()
    return tuple(sorted(known[number] for number in numbers))


def _are_survived(view: LogView, events: Sequence[LogEvent]) -> bool:
    """Return whether lines that no traceback ends with came before other failures of their log."""
    last: dict[tuple[str, int], int] = {}
    for item in select_own(view.exceptions):
        # A line of no rank may be of any.
        for rank in {item.rank, -1}:
            key = item.artifact, rank
            last[key] = max(last.get(key, 0), item.row)
    return all(last.get((event.artifact, event.rank), 0) > event.row for event in events)


def _describe_sizes(texts: Sequence[str]) -> dict[str, Any]:
    details: dict[str, Any] = {}
    for text in texts:
        if match := _TRIED.search(text):
            details["tried"] = match[1]
            if match := _CAPACITY.search(text):
                details |= {"capacity": match[1], "free": match[2]}
            break
    return details


def _find_other(view: LogView, texts: Sequence[str]) -> tuple[int, str] | None:
    """Return the process of no rank that holds what a rank lacks, and how much that is.

    In a container the driver has other numbers for processes: there the message does not tell which
    of them is the rank itself.
    """
    for text in texts:
        asked = _TRIED.search(text)
        if asked is None or "this process has" not in text:
            continue
        for pid, held in _HOLDS.findall(text):
            is_rank = view.find_rank_of_pid(int(pid)) is not None
            if not is_rank and _count_mib(held) >= _count_mib(asked[1]):
                return int(pid), held
    return None


def _count_mib(size: str) -> float:
    value, unit = size.split()
    return float(value) * _MIB[unit] if unit in _MIB else 0.0


def _advise(pid: int) -> tuple[str, ...]:
    return (
        f"see whose process it is: `ps -o user,lstart,cmd -p {pid}`",
        "end it, or take another device",
    )
