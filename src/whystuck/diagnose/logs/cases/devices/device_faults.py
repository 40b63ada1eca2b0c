"""C212 device-fault: a kernel of a rank touched what it must not, or failed an assertion."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.stacks.frames import describe_place
from whystuck.diagnose.logs.cases.parts import (
    drop_before_job,
    find_exceptions,
    find_sole_abort,
    find_time,
    is_said,
    list_ranks,
    place_exceptions,
)
from whystuck.diagnose.logs.cases.processes.spared import find_faulted, find_spared
from whystuck.diagnose.logs.story import OWN, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_ERROR = re.compile(r"CUDA error: ([\w -]+)")
_ASSERT = re.compile(
    r"(?<!\S)(\S+\.(?:cu|cuh|h|cpp):\d+): (\w+):?.{0,400}?Assertion [`'\"]"
    r"((?:(?!Assertion ).){0,400}?)[`'\"] failed"
)
_XID = re.compile(r"Xid \((?:PCI:)?([0-9a-fA-F:.]+)\):\s*(\d+)\b[^,\n]{0,300},")
_PID = re.compile(r"pid='?(\d+)")
# Kernels that wait for other ranks, and end themselves by a trap when these do not come in time.
_TRAPS = ("deepep.timeout",)
_TRAPPED = "unspecified launch failure"
# What a runtime of devices prints in the process that it ends; no kernel writes such lines.
_RUNTIME = "rocm."
# A device that breaks is felt within this, after the time limits of collectives are taken off.
_NS_PER_MS = 1_000_000
_LATE_NS, _SOON_NS = 30_000_000_000, 900_000_000_000
# Kernels of collectives fail where a peer does not come: they are victims.
_COMM_KERNEL = re.compile(
    r"hccl|hcom|mc2|moe_?distribute|all_?(?:reduce|gather|to_?all)|reduce_?scatter|broadcast",
    re.IGNORECASE,
)
_SYNCHRONOUS = "CUDA_LAUNCH_BLOCKING=1"


def make_device_fault(view: LogView) -> Iterator[Case]:
    """Make the case of ranks whose device code failed by itself."""
    told = [event for event in view.list_events(codes.DEVICE_FAULT, "cause") if is_said(event)]
    events = drop_before_job(view, _leave_out_older(view, told))
    trapped = frozenset(list_ranks(view.list_signatures(*_TRAPS)))
    own = [
        event
        for event in events
        if _is_of_job(view, event)
        and not (event.rank in trapped and _TRAPPED in event.text)
        and not _COMM_KERNEL.search(event.groups.get("kernel") or "")
    ]
    kernel = [event for event in events if not _is_of_job(view, event)]
    exceptions = tuple(
        item
        for item in find_exceptions(view, own, codes.DEVICE_FAULT)
        if not (item.rank in trapped and _TRAPPED in item.message)
    )
    if not own and not kernel and not exceptions:
        return
    ranks = {*list_ranks(own), *(item.rank for item in exceptions)} - {-1}
    if not ranks:
        ranks = {rank for event in kernel if (rank := _find_rank(view, event)) is not None}
    ranks = ranks or _find_unsigned(view)
    if not own and not exceptions and not ranks:
        return  # a program that is no rank
    ended = find_sole_abort(view, own) if not ranks else None
    ranks = ranks or ({ended.rank} if ended else set())
    everywhere = view.is_everywhere(ranks)
    meaning = next((event.meaning for event in (*own, *kernel)), "")
    where = place_exceptions(exceptions[:1] if everywhere else exceptions)
    texts = [*(event.text for event in own), *(item.message for item in exceptions)]
    details = _describe(view, texts, kernel)
    what = details.get("assertion") or details.get("error") or meaning or "a device fault"
    who = "all ranks" if everywhere else name_ranks(ranks) if ranks else "a rank"
    place = f", seen in {describe_place(where[0])}" if where else ""
    yield Case(
        code=codes.DEVICE_FAULT,
        summary=f"device code of {who} failed: {what}{place}",
        tier=OWN,
        ranks=() if everywhere else tuple(sorted(ranks)),
        nodes=(ended.node,) if ended and ended.node else (),
        exits=(ended,) if ended else (),
        lines=(*own, *kernel),
        exceptions=exceptions,
        where=where,
        time=find_time(own or kernel, exceptions),
        confidence=Confidence.LIKELY,
        details=details,
    )


def _is_of_job(view: LogView, event: LogEvent) -> bool:
    """Tell whether a process of the job wrote a line, also where most lines are of the kernel."""
    return event.signature.startswith(_RUNTIME) or not view.is_of_machine(event)


def _leave_out_older(view: LogView, events: list[LogEvent]) -> list[LogEvent]:
    """Leave out what drivers saw hours before ranks gave up, where one saw more just then.

    Their clocks may be of another zone than those of the job, but all are of the same.
    """
    begun = [
        event.time.ns - int(waited[:12]) * _NS_PER_MS
        for event in view.list_events(codes.COLLECTIVE_TIMEOUT, "cause")
        if event.time and (waited := event.groups.get("ms") or "").isdecimal()
    ]
    broken = [event for event in view.list_events(codes.HARDWARE_ERROR, "cause") if is_said(event)]
    if not any(_is_near(event, begun) for event in broken):
        return events
    return [
        event
        for event in events
        if not (event.signature.startswith("xid.") and event.time) or _is_near(event, begun)
    ]


def _is_near(event: LogEvent, begun: list[int]) -> bool:
    """Tell whether ranks began to wait soon after a line, if all clocks are of one zone."""
    time = event.time
    return time is not None and any(-_LATE_NS <= one - time.ns <= _SOON_NS for one in begun)


def _find_unsigned(view: LogView) -> set[int]:
    """Find whose a fault is that no rank signed: by the kernel, or as its launcher spares it."""
    spared, pid = find_spared(view), find_faulted(view)
    rank = view.find_rank_of_pid(pid) if pid else None
    if rank is not None:
        return {rank}
    if spared is not None and spared.rank >= 0 and pid in (0, spared.pid):
        return {spared.rank}
    # Whom others wait for, and who does not say that it waits.
    named = view.votes.keys() - list_ranks(view.list_events(codes.COLLECTIVE_TIMEOUT, "cause"))
    return set(named) if len(named) == 1 and not pid else set()


def _find_rank(view: LogView, event: LogEvent) -> int | None:
    if (match := _PID.search(event.text)) and (
        rank := view.find_rank_of_pid(int(match[1]), event.node)
    ) is not None:
        return rank
    bus = _XID.search(event.text)
    ranks = view.find_ranks_of_bus(bus[1], event.node) if bus else frozenset()
    return next(iter(ranks)) if len(ranks) == 1 else None


def _describe(view: LogView, texts: list[str], kernel: list[LogEvent]) -> dict[str, Any]:
    details: dict[str, Any] = {}
    for text in texts:
        if match := _ASSERT.search(text):
            details |= {"kernel": match[2], "source": match[1], "assertion": match[3]}
            break
    for text in texts:
        if match := _ERROR.search(text):
            details["error"] = match[1].strip()
            break
    for event in kernel:
        if match := _XID.search(event.text):
            details |= {"xid": int(match[2]), "device": match[1]}
            break
    # A launch that does not wait is reported by a later call.
    told = any(
        _SYNCHRONOUS in event.text
        for event in view.events
        if event.role == "context" and event.signature == "cuda.blocking"
    )
    return details | {"synchronous": told}
