"""C202 host-out-of-memory and C206 device-out-of-memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from whystuck.diagnose.cases.parts import (
    find_exceptions,
    find_time,
    is_said,
    list_ranks,
    name_job,
    place_exceptions,
)
from whystuck.diagnose.log_view import LogView
from whystuck.diagnose.story import ALOOF, LINKED, OUTSIDE, OWN, Case
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs import LogEvent
from whystuck.evidence.ranks import name_ranks, parse_ranks

_PID = re.compile(r"(?:Killed process|reaped process|pid[=( s)]*?)[ =]?(\d+)")
_COMM = re.compile(r"Killed process \d+ \(([^)]*)\)|task=([^,]+),")
_WORKER_PIDS = re.compile(r"worker \(pid\(?s?\)? ([\d, ]+)\)")
_RSS = re.compile(r"anon-rss:(\d+)kB")
_TASK = re.compile(r"tasks? ([\d,-]+): Out Of Memory")
# What a rank or a worker of its loader is called; the kernel cuts names to 15 characters.
_RANK_COMM = re.compile(r"python|^pt_|ray::|^torch|deepspeed")
_TRIED = re.compile(r"Tried to allocate ([\d.]+ \w+)")
_CAPACITY = re.compile(r"total capacity of ([\d.]+ \w+) of which ([\d.]+ \w+) is free")
_SIGKILL = 9


def make_host_memory(view: LogView) -> Iterator[Case]:
    """Make the cases of host memory that ran out: as a machine tells it, else as ranks do."""
    told = [*_make_kernel_kills(view), *_make_slurm(view), *_make_pods(view)]
    yield from told
    if not any(case.support for case in told):
        yield from _make_own(view)


def _make_kernel_kills(view: LogView) -> Iterator[Case]:
    by_owner: dict[tuple[int, str], list[LogEvent]] = {}
    for event in view.list_signatures("oom.kernel"):
        if is_said(event):
            rank = _find_owner(view, event)
            by_owner.setdefault((rank, event.node), []).append(event)
    limits = list(view.list_signatures("oom.limit"))
    for (rank, node), events in by_owner.items():
        # The line with the process says more than the one with the constraint.
        events.sort(key=lambda event: "Killed process" not in event.text)
        near = [event for event in limits if event.artifact == events[0].artifact]
        time = find_time(events)
        who = name_ranks([rank]) if rank >= 0 else "a process that is no known rank"
        what = "the memory limit of its cgroup" if "cgroup" in events[0].text else "host memory"
        on = f" on {node}" if node else ""
        is_own = rank >= 0 and view.is_felt(time) is not False
        yield Case(
            code="C202",
            summary=f"the kernel killed {who}{on}: {what} was used up",
            tier=OUTSIDE,
            ranks=(rank,) if rank >= 0 else (),
            nodes=(node,) if node else (),
            lines=(*events, *near[:1]),
            time=time,
            confidence=Confidence.CERTAIN if rank >= 0 else Confidence.POSSIBLE,
            details=_describe_kill(events[0], near),
            remedies=_advise(node, near),
            support=LINKED if is_own else ALOOF,
            is_foreign=True,
        )


def _find_owner(view: LogView, event: LogEvent) -> int:
    """Return the rank whose process or loader worker the kernel killed, or -1."""
    match = _PID.search(event.text)
    pid = int(event.groups.get("pid") or (match[1] if match else 0))
    rank = view.find_rank_of_pid(pid, event.node)
    if rank is not None:
        return rank
    for item in view.exceptions:
        if pid in _list_worker_pids(item.message):
            return item.rank
    for line in view.list_signatures("py.dataloader_killed"):
        if pid in _list_worker_pids(line.text):
            return line.rank
    return _find_killed(view, event)


def _list_worker_pids(text: str) -> set[int]:
    match = _WORKER_PIDS.search(text)
    return {int(pid) for pid in re.findall(r"\d+", match[1])} if match else set()


def _find_killed(view: LogView, event: LogEvent) -> int:
    """Find whom the kernel killed where a container counts its processes on its own."""
    comm = _COMM.search(event.text)
    name = next((part for part in comm.groups() if part), "") if comm else ""
    if not _RANK_COMM.search(name):
        return -1
    here = view.list_ranks_on(event.node) if event.node else view.ranks
    killed = {item.rank for item in view.exits if item.signal == _SIGKILL or item.code == 137}  # noqa: PLR2004
    killed &= here
    return killed.pop() if len(killed) == 1 else -1


def _describe_kill(event: LogEvent, limits: list[LogEvent]) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if match := _RSS.search(event.text):
        details["rss_bytes"] = int(match[1]) * 1024
    for line in limits[:1]:
        if (limit := line.groups.get("limit") or "").isdecimal():
            details["limit_bytes"] = int(limit) * 1024
    return details


def _advise(node: str, limits: list[LogEvent]) -> tuple[str, ...]:
    ssh = f"ssh {node} " if node else ""
    steps = [f"see who used the memory: `{ssh}dmesg -T | grep -A40 'invoked oom-killer'`"]
    limit = (limits[0].groups.get("limit") or "") if limits else ""
    if limit.isdecimal():
        steps.append(f"the limit was {int(limit) / 1048576:.1f} GiB: raise it, or use less")
    return tuple(steps)


def _make_slurm(view: LogView) -> Iterator[Case]:
    events = list(view.list_signatures("slurm.oom"))
    if not events:
        return
    ranks: set[int] = set()
    for event in events:
        if match := _TASK.search(event.text):
            ranks |= parse_ranks(match[1])
    telling = sorted(events, key=lambda event: _TASK.search(event.text) is None)
    nodes = {event.node for event in telling if event.node and _TASK.search(event.text)}
    who = name_ranks(ranks) if ranks else "a task of the step"
    job = name_job(view)
    yield Case(
        code="C202",
        summary=f"Slurm says that {who} ran out of host memory",
        tier=OUTSIDE,
        ranks=tuple(sorted(ranks)),
        nodes=tuple(sorted(nodes)),
        lines=tuple(telling),
        time=find_time(telling),
        confidence=Confidence.CERTAIN if ranks else Confidence.LIKELY,
        remedies=(
            f"compare use and limit: `sacct -j {job} --format=JobID,State,MaxRSS,ReqMem,NodeList`",
        ),
    )


def _make_pods(view: LogView) -> Iterator[Case]:
    for event in view.list_signatures("k8s.oomkilled"):
        ranks = view.find_ranks_of(event)
        yield Case(
            code="C202",
            summary=f"the container of {name_ranks(ranks) if ranks else event.node or 'a pod'} "
            "passed its memory limit and was killed",
            tier=OUTSIDE,
            ranks=tuple(sorted(ranks)) if len(ranks) == 1 else (),
            nodes=(event.node,) if event.node else (),
            lines=(event,),
            time=event.time,
            confidence=Confidence.CERTAIN,
            remedies=(
                f"see its limit, and raise it: `kubectl describe pod {event.node or 'POD'}`",
            ),
            scope=ranks,
        )


def _make_own(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that say themselves that they got no memory."""
    events = [
        event
        for event in (*view.list_signatures("mem.host_alloc"), *_list_killed_workers(view))
        if is_said(event)
    ]
    if not events:
        return
    ranks = list_ranks(events)
    everywhere = view.is_everywhere(ranks)
    exceptions = find_exceptions(view, events)
    yield Case(
        code="C202",
        summary=f"{'all ranks' if everywhere else name_ranks(ranks) if ranks else 'a rank'} "
        + ("lost a loader worker to SIGKILL" if _is_worker(events[0]) else "got no host memory"),
        tier=OWN,
        ranks=() if everywhere else ranks,
        lines=tuple(events),
        exceptions=exceptions,
        where=place_exceptions(exceptions),
        time=find_time(events),
        remedies=("look for the out-of-memory killer: `dmesg -T | grep -i 'killed process'`",),
    )


def _is_worker(event: LogEvent) -> bool:
    return event.signature == "py.dataloader_killed"


def _list_killed_workers(view: LogView) -> Iterator[LogEvent]:
    """Yield lines of loader workers that SIGKILL ended: nobody but the kernel does that."""
    for event in view.list_signatures("py.dataloader_killed"):
        if "Killed" in event.text:
            yield event


def make_device_memory(view: LogView) -> Iterator[Case]:
    """Make the case of device memory that ran out on some ranks, or on all of them."""
    events = [event for event in view.list_signatures("cuda.oom") if is_said(event)]
    if not events:
        return
    exceptions = find_exceptions(view, events)
    ranks = list_ranks(events)
    everywhere = view.is_everywhere(ranks)
    first = next((event for event in events if "Tried to allocate" in event.text), events[0])
    details: dict[str, Any] = {}
    if match := _TRIED.search(first.text):
        details["tried"] = match[1]
    if match := _CAPACITY.search(first.text):
        details |= {"capacity": match[1], "free": match[2]}
    tried = f" while it asked for {details['tried']}" if "tried" in details else ""
    who = f"{len(ranks)} of {len(view.ranks)} ranks" if everywhere else name_ranks(ranks)
    yield Case(
        code="C206",
        summary=f"{who if ranks else 'a rank'} ran out of device memory{tried}"
        + (": the batch is too large, no rank is special" if everywhere else ""),
        tier=OWN,
        ranks=() if everywhere else ranks,
        lines=(first, *(event for event in events if event is not first)),
        exceptions=exceptions,
        where=place_exceptions(exceptions[:1] if everywhere else exceptions),
        time=find_time(events),
        details=details,
    )
