"""C202 host-out-of-memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.stacks.frames import describe_place
from whystuck.diagnose.logs.cases.parts import (
    find_exceptions,
    find_time,
    is_said,
    list_first,
    list_ranks,
    name_job,
    place_exceptions,
)
from whystuck.diagnose.logs.story import ALOOF, LINKED, OUTSIDE, OWN, Case
from whystuck.diagnose.logs.view import LogView, is_same_host
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks, parse_ranks

_PID = re.compile(r"(?:Killed process|reaped process|pid[=( s)]*?)[ =]?(\d+)")
_COMM = re.compile(r"Killed process \d+ \(([^)]{0,100})\)|task=([^,]{1,100}),")
_WORKER_PIDS = re.compile(r"worker \(pid\(?s?\)? ([\d, ]+)\)")
_RSS = re.compile(r"anon-rss:(\d+)kB")
_TASK = re.compile(r"tasks? ([\d,-]+): Out Of Memory")
# What a rank or a worker of its loader is called; the kernel cuts names to 15 characters.
_RANK_COMM = re.compile(r"python|^pt_|ray::|^torch|deepspeed")
# torch calls the main thread of a rank `pt_main_thread`, and a worker `pt_data_worker`.
_LOADER_COMM = "pt_data"
_UNKNOWN_END = "exited unexpectedly"
_RAY_HOST = re.compile(r"at node \(ID: \w{1,80}, IP: ([\d.a-fA-F:]{2,45})\)")
_TASK_REASON = "Out Of Memory"
_SIGKILL = 9
# A loader looks after its workers every few seconds.
_SOON_NS = 300_000_000_000
# What Ray tells of the worker that it ended, and of its host.
_RAY_PID = re.compile(r"\bpid=(\d{1,9}), memory used\b")
_RAY_NODE = re.compile(r"\(IP: ([\d.a-fA-F:]{2,45}), ")
_OOM_KILLED = "OOMKilled"
# Between the reason and the exit code, in the description of a pod.
_REASON_LINES = 3


def make_host_memory(view: LogView) -> Iterator[Case]:
    """Make the cases of host memory that ran out: as a machine tells it, else as ranks do."""
    told = [*_make_kernel_kills(view), *_make_slurm(view), *_make_pods(view)]
    yield from told
    if not any(case.support for case in told):
        yield from _make_own(view)


def _make_kernel_kills(view: LogView) -> Iterator[Case]:
    by_owner: dict[tuple[int, str], list[LogEvent]] = {}
    owners = _Owners(view)
    for event in view.list_signatures("oom.kernel"):
        if is_said(event):
            rank = owners.find(event)
            by_owner.setdefault((rank, event.node), []).append(event)
    limits = list(view.list_signatures("oom.limit"))
    owned = list_first(list(by_owner.items()), lambda item: find_time(item[1]))
    for (rank, node), events in owned:
        # The line with the process says more than the one with the constraint.
        events.sort(key=lambda event: "Killed process" not in event.text)
        near = [event for event in limits if event.artifact == events[0].artifact]
        time = find_time(events)
        who = name_ranks([rank]) if rank >= 0 else "a process that is no known rank"
        what = "the memory limit of its cgroup" if "cgroup" in events[0].text else "host memory"
        on = f" on {node}" if node else ""
        comm = _find_comm(events[0])
        if rank >= 0 and comm.startswith(_LOADER_COMM):
            who = f"a loader worker of {who}"
        is_own = rank >= 0 or bool(_RANK_COMM.search(comm) and view.has_job_logs)
        is_own = is_own and view.is_felt(time) is not False
        yield Case(
            code=codes.HOST_OUT_OF_MEMORY,
            summary=f"the kernel killed {who}{on}: {what} was used up",
            tier=OUTSIDE,
            ranks=(rank,) if rank >= 0 else (),
            nodes=(node,) if node else (),
            lines=(*events, *near[:1]),
            time=time,
            confidence=_weigh(rank, is_sure=bool(node) or owners.is_counted(events[0])),
            details=_describe_kill(events[0], near),
            remedies=_advise(node, near),
            support=LINKED if is_own else ALOOF,
            is_foreign=True,
        )


def _weigh(rank: int, *, is_sure: bool) -> Confidence:
    """Tell how sure it is whom the kernel killed, where its log may be that of another host."""
    if rank < 0:
        return Confidence.POSSIBLE
    return Confidence.CERTAIN if is_sure else Confidence.LIKELY


class _Owners:
    """Finds whose process the kernel killed; what all kills share is worked out once."""

    def __init__(self, view: LogView) -> None:
        self._view = view
        self._killed_by_node: dict[str, int] = {}

    def is_counted(self, event: LogEvent) -> bool:
        """Return whether the number of the process tells whose it is."""
        pid = _read_pid(event)
        is_rank = self._view.find_rank_of_pid(pid, event.node) is not None
        return is_rank or pid in self._rank_by_worker

    def find(self, event: LogEvent) -> int:
        """Return the rank whose process or loader worker the kernel killed, or -1."""
        pid = _read_pid(event)
        rank = self._view.find_rank_of_pid(pid, event.node)
        if rank is None:
            rank = self._rank_by_worker.get(pid)
        if rank is not None:
            return rank
        if (worker := self._find_loader(event)) >= 0:
            return worker
        # A container may count its processes on its own.
        return self._find_killed(event.node) if _RANK_COMM.search(_find_comm(event)) else -1

    @cached_property
    def _rank_by_worker(self) -> Mapping[int, int]:
        """The rank of each loader worker that an exception or a line names."""
        told = [(item.rank, item.message) for item in self._view.exceptions]
        lines = self._view.list_signatures("py.dataloader_killed")
        told += [(line.rank, line.text) for line in lines]
        found: dict[int, int] = {}
        for rank, text in told:
            for pid in _list_worker_pids(text):
                found.setdefault(pid, rank)
        return found

    def _find_loader(self, event: LogEvent) -> int:
        """Return the one rank that lost a loader worker to SIGKILL, where that is what was killed.

        In its container, the worker has another number than for the kernel.
        """
        if not _find_comm(event).startswith(_LOADER_COMM):
            return -1
        lines = [line for line in _list_killed_workers(self._view) if line.rank >= 0]
        near = {line.rank for line in lines if not _is_elsewhere(self._view, line, event)}
        return near.pop() if len(near) == 1 else -1

    @cached_property
    def _killed(self) -> frozenset[int]:
        """The ranks that are known to have ended by SIGKILL."""
        return frozenset(
            item.rank
            for item in self._view.exits
            if item.signal == _SIGKILL or item.code == 137  # noqa: PLR2004
        )

    def _find_killed(self, node: str) -> int:
        """Return the one rank of a host that may have been killed, or -1."""
        if node not in self._killed_by_node:
            view = self._view
            # A kernel that nobody names is that of the only host there is.
            is_only = not node and len(view.hosts) <= 1
            here = view.list_ranks_on(node) or view.list_possible_ranks_on(node)
            here = view.ranks if is_only else here
            # A rank that says nothing more, while the others of its host do, is as good.
            left = (self._killed & here) or (here - view.told_ranks)
            self._killed_by_node[node] = next(iter(left)) if len(left) == 1 else -1
        return self._killed_by_node[node]


def _read_pid(event: LogEvent) -> int:
    match = _PID.search(event.text)
    return int(event.groups.get("pid") or (match[1] if match else 0))


def _is_elsewhere(view: LogView, line: LogEvent, kill: LogEvent) -> bool:
    """Tell whether a rank lost a worker at another time, or on another host, than the kernel's."""
    gap = view.clocks.bound_gap(kill.time, line.time) if kill.time and line.time else None
    if gap is not None and (gap[0] > _SOON_NS or gap[1] < -_SOON_NS):
        return True
    host = line.node or view.node_by_rank.get(line.rank, "")
    others = view.hosts if kill.node in view.hosts else frozenset[str]()
    return bool(host) and host in others and not is_same_host(host, kill.node)


def _list_worker_pids(text: str) -> set[int]:
    match = _WORKER_PIDS.search(text)
    return {int(pid) for pid in re.findall(r"\d+", match[1])} if match else set()


def _find_comm(event: LogEvent) -> str:
    match = _COMM.search(event.text)
    return next((part for part in match.groups() if part), "") if match else ""


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
    ends = tuple(item for item in view.exits if item.reason == _TASK_REASON and item.rank >= 0)
    if not events and not ends:
        return
    ranks: set[int] = set()
    for event in events:
        if match := _TASK.search(event.text):
            ranks |= parse_ranks(match[1])
    telling = sorted(events, key=lambda event: _TASK.search(event.text) is None)
    nodes = {event.node for event in telling if event.node and _TASK.search(event.text)}
    ranks |= {item.rank for item in ends}
    nodes |= {item.node for item in ends} - {""}
    # Tasks share the memory of their host: who of several was killed is chance.
    is_shared = len(ranks) > 1 and len(nodes) == 1
    who = name_ranks(ranks) if ranks else "a task of the step"
    job = name_job(view)
    yield Case(
        code=codes.HOST_OUT_OF_MEMORY,
        summary=f"Slurm says that {who} ran out of host memory"
        + f" on {min(nodes)}" * (len(nodes) == 1),
        tier=OUTSIDE,
        ranks=() if is_shared else tuple(sorted(ranks)),
        nodes=tuple(sorted(nodes)),
        victims=tuple(sorted(ranks)) if is_shared else (),
        scope=frozenset(ranks),
        lines=tuple(telling),
        exits=ends,
        time=find_time(telling, ends),
        confidence=Confidence.CERTAIN if ranks else Confidence.LIKELY,
        remedies=(
            f"compare use and limit: `sacct -j {job} --format=JobID,State,MaxRSS,ReqMem,NodeList`",
        ),
    )


def _make_pods(view: LogView) -> Iterator[Case]:
    by_owner: dict[tuple[frozenset[int], str], list[LogEvent]] = {}
    for event in list_first(list(view.list_signatures("k8s.oomkilled")), lambda one: one.time):
        by_owner.setdefault(_find_owner(view, event), []).append(event)
    named = {one.artifact for owner, events in by_owner.items() if any(owner) for one in events}
    told = view.node_by_rank.keys()
    for (ranks, node), events in by_owner.items():
        # Another command tells of the same pod.
        if not (ranks or node) and events[0].artifact in named:
            continue
        yield Case(
            code=codes.HOST_OUT_OF_MEMORY,
            summary=f"the container of {name_ranks(ranks) if ranks else node or 'a pod'} "
            "passed its memory limit and was killed",
            tier=OUTSIDE,
            ranks=tuple(sorted(ranks)) if len(ranks) == 1 else (),
            nodes=(node,) if node else (),
            lines=tuple(events),
            time=events[0].time,
            # What people say of the numbers of pods may be wrong.
            confidence=Confidence.CERTAIN if ranks <= told else Confidence.LIKELY,
            remedies=(f"see its limit, and raise it: `kubectl describe pod {node or 'POD'}`",),
            scope=ranks,
        )


def _find_owner(view: LogView, event: LogEvent) -> tuple[frozenset[int], str]:
    """Return the ranks and the pod that a line about a container tells of."""
    ranks, node = view.find_ranks_of(event), view.find_node_of(event)
    if not node:
        node = _find_pod(view, event)
        ranks = view.list_ranks_on(node)
    return frozenset(ranks), node


def _find_pod(view: LogView, event: LogEvent) -> str:
    """Return the pod of which a description tells a reason, with its end in the next lines."""
    return next(
        (
            item.node
            for item in view.exits
            if item.artifact == event.artifact
            and item.reason == _OOM_KILLED
            and 0 <= item.row - event.row <= _REASON_LINES
        ),
        "",
    )


def _make_own(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that say themselves that they got no memory."""
    events = [
        event
        for event in (
            *view.list_signatures("mem.host_alloc", "ray.memory"),
            *_list_killed_workers(view),
        )
        if is_said(event)
    ]
    exceptions = find_exceptions(view, events, codes.HOST_OUT_OF_MEMORY)
    exceptions = tuple(item for item in exceptions if _UNKNOWN_END not in item.message)
    if not events and not exceptions:
        return
    hosts = _list_ray_hosts(events)
    struck = {rank for host in hosts if len(on := view.list_ranks_on(host)) == 1 for rank in on}
    texts = [*(event.text for event in events), *(item.message for item in exceptions)]
    ended = _list_ray_ranks(view, texts)
    struck = ended or struck
    hosts |= {found[1] for found in map(_RAY_NODE.search, texts) if found}
    ranks = tuple(sorted({*list_ranks(events), *list_ranks(exceptions), *struck}))
    everywhere = view.is_everywhere(ranks)
    is_worker = any("DataLoader worker" in item.text for item in events)
    is_worker = is_worker or any("DataLoader worker" in item.message for item in exceptions)
    who = "all ranks" if everywhere else name_ranks(ranks) if ranks else "a rank"
    place = place_exceptions(exceptions[:1] if everywhere else exceptions)
    yield Case(
        code=codes.HOST_OUT_OF_MEMORY,
        summary=f"{who} "
        + ("lost a loader worker to SIGKILL" if is_worker else "got no host memory")
        + (f" in {describe_place(place[0])}" if place else ""),
        tier=OWN,
        ranks=() if everywhere else ranks,
        nodes=() if everywhere else tuple(sorted(hosts)),
        lines=tuple(events),
        exceptions=exceptions,
        where=place,
        time=find_time(events, exceptions),
        details=_find_limits(view, ranks),
        remedies=("look for the out-of-memory killer: `dmesg -T | grep -i 'killed process'`",),
    )


def _list_ray_hosts(events: Sequence[LogEvent]) -> set[str]:
    """Return the hosts on which Ray ended workers, as its daemon there says."""
    told = [event for event in events if event.signature == "ray.memory"]
    found = ((event, _RAY_HOST.search(event.text)) for event in told)
    return {match[1] if match else event.node for event, match in found} - {""}


def _list_ray_ranks(view: LogView, texts: Sequence[str]) -> set[int]:
    """Return the ranks of the workers that Ray says it ended."""
    found = set[int]()
    for text in texts:
        host = _RAY_NODE.search(text)
        for pid in _RAY_PID.findall(text):
            rank = view.find_rank_of_pid(int(pid), host[1] if host else "")
            found |= set() if rank is None else {rank}
    return found


def _find_limits(view: LogView, ranks: tuple[int, ...]) -> dict[str, Any]:
    """Return the limits that `ulimit` had set for the first of some ranks, in bytes."""
    for series in view.evidence.memory:
        if series.rank in ranks and (limit := series.address_limit or series.data_limit):
            most = max((point.virtual for point in series.points), default=0)
            return {"limit_bytes": limit, "virtual_bytes": most}
    return {}


def _list_killed_workers(view: LogView) -> Iterator[LogEvent]:
    """Yield lines of loader workers that SIGKILL ended: nobody but the kernel does that."""
    for event in view.list_signatures("py.dataloader_killed"):
        if "Killed" in event.text:
            yield event
