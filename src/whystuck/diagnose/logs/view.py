"""What the logs of one evidence tell together: who runs where, and what each has to say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import chain

from whystuck.diagnose.logs.begins import find_begins
from whystuck.diagnose.logs.clocks import Clocks
from whystuck.diagnose.logs.owners import Owner, choose_ranks, is_address, list_owners
from whystuck.evidence.live import ExitRecord, FatalStack, PythonException
from whystuck.evidence.logs.lines import LogEvent, LogFile, LogTime
from whystuck.evidence.model import Evidence
from whystuck.evidence.ranks import parse_ranks

# Below this share of the ranks, what several ranks say is not said by all.
_EVERYWHERE = 0.75
_LOG_SOURCES = {"log", "launcher log"}
_MACHINE_KINDS = {"kernel", "service", "scheduler", "events"}
_NS_PER_MS, _NS_PER_S = 1_000_000, 1_000_000_000
# A machine that breaks is felt within this, after the time limits of collectives are taken off.
_FELT_NS = 900 * _NS_PER_S
_LATE_NS = 30 * _NS_PER_S
# What is asked of all events about all failures takes 1 s for so many pairs.
_MOST_COMPARED = 1_000_000
# `pod/NAME`, and a row of `kubectl get pods`.
_POD = re.compile(
    r"\bpods?/(?:\S{1,300}/)?(?P<pod>[a-z0-9][\w.-]*)"
    r"|^(?P<row>[a-z0-9][\w.-]{0,200})\s{1,40}\d{1,3}/\d{1,3}\s{1,20}[A-Z]"
)
_WORKER = re.compile(r"(?:^|-)worker-(\d{1,5})$")
# Peers that a line names, by the signature of the line and the group that holds them.
_VOTES = {
    "c10d.monitored_barrier": "ranks",
    "c10d.desync": "ranks",
    "c10d.desync_behind": "ranks",
    "hccl.timeout": "peer",
}
_WORLD_GROUP = "hccl_world_group"


class LogView:
    """The logs of one evidence, in the last attempt of its launcher. Computed on first use.

    ``events``, ``exceptions`` and ``exits`` are those of the last attempt, without what the job
    survived; ``earlier`` are the known lines of the attempts before. Exceptions and exits that
    whystuck recorded itself are among them.
    """

    def __init__(self, evidence: Evidence) -> None:
        """Look at the logs, exceptions and exits of one evidence."""
        self.evidence = evidence
        logs = evidence.logs
        self.files: tuple[LogFile, ...] = logs.files
        self.last_attempt = max((event.attempt for event in logs.events), default=0)
        self.earlier = tuple(item for item in logs.events if item.attempt < self.last_attempt)
        last = [item for item in logs.events if item.attempt >= self.last_attempt]
        last = [item for item in last if not item.is_past or item.role == "context"]
        self._compared = 0
        self._begins = find_begins(last)
        self.events = tuple(item for item in last if self._is_of_this_run(item))

    @cached_property
    def exceptions(self) -> tuple[PythonException, ...]:
        """Uncaught tracebacks of the last attempt, and exceptions that the probe recorded."""
        return tuple(
            item
            for item in self.evidence.exceptions
            if item.source not in _LOG_SOURCES
            or (
                item.attempt >= self.last_attempt
                and not item.is_caught
                and self._is_of_this_run(item)
            )
        )

    def _is_of_this_run(self, item: LogEvent | PythonException | ExitRecord) -> bool:
        return not item.row or item.row > self._begins.get(item.artifact, 0)

    @cached_property
    def exits(self) -> tuple[ExitRecord, ...]:
        """Ends of processes in the last attempt, as logs and whystuck tell them."""
        return tuple(
            item
            for item in self.evidence.exits
            if item.source not in _LOG_SOURCES
            or (item.attempt >= self.last_attempt and self._is_of_this_run(item))
        )

    @cached_property
    def told_ranks(self) -> frozenset[int]:
        """Ranks that say that something is wrong, or whose end is known."""
        found = {event.rank for event in self.events if event.role != "context"}
        found |= {item.rank for item in self.exceptions} | {item.rank for item in self.fatals}
        return frozenset(found | {item.rank for item in self.exits if item.code or item.signal})

    @cached_property
    def fatals(self) -> tuple[FatalStack, ...]:
        """Stacks of fatal signals in the last attempt."""
        return tuple(
            item
            for item in self.evidence.fatals
            if item.attempt >= self.last_attempt or not item.row
        )

    @cached_property
    def _tellers(self) -> tuple[ExitRecord | PythonException | LogEvent, ...]:
        return (*self.exits, *self.exceptions, *self.events)

    def list_events(self, code: str, *roles: str) -> Iterator[LogEvent]:
        """Yield the known lines of one code, of some roles or of all, as the logs have them."""
        for event in self.events:
            if event.code == code and (not roles or event.role in roles):
                yield event

    def list_signatures(self, *names: str) -> Iterator[LogEvent]:
        """Yield the lines of some signatures; a name that ends with a dot stands for a family."""
        for event in self.events:
            if event.signature in names or event.signature.partition(".")[0] + "." in names:
                yield event

    @cached_property
    def ranks(self) -> frozenset[int]:
        """All ranks of the job, those that only a file or a header tells of included."""
        found = set(self.evidence.topology.ranks) | set(self.node_by_rank)
        for file in self.files:
            found |= file.ranks
        found |= {item.rank for item in self._tellers}
        return frozenset(found | set(range(self.world_size))) - {-1}

    @cached_property
    def world_size(self) -> int:
        """The number of ranks, 0 when nothing tells."""
        told = max((file.world_size for file in self.files), default=0)
        return max(told, self.evidence.topology.world_size)

    @cached_property
    def node_by_rank(self) -> Mapping[int, str]:
        """The host of each rank that anything tells of."""
        found: dict[int, str] = {}
        for file in self.files:
            if file.node:
                told = file.ranks | set(file.bus_by_rank) | set(file.pid_by_rank)
                found |= dict.fromkeys(told - {-1}, file.node)
        for item in self._tellers:
            if item.node and item.rank >= 0:
                found.setdefault(item.rank, item.node)
        for file in self.files:
            found |= {rank: node for rank, node in file.node_by_rank.items() if node}
        return found | {
            rank: node for rank, node in self.evidence.topology.node_by_rank.items() if node
        }

    def list_ranks_on(self, node: str) -> frozenset[int]:
        """Return the ranks known to run on a host; none when nothing tells of that host."""
        known = self._ranks_by_host.get(_shorten(node), frozenset()) if node else frozenset()
        return known or self._list_said(node)

    def _list_said(self, node: str) -> frozenset[int]:
        """Return the rank that the pod of a worker has by its number, where somebody says so."""
        shifts = {file.worker_shift for file in self.files if file.worker_shift is not None}
        worker = _WORKER.search(node) if len(shifts) == 1 else None
        return frozenset(int(worker[1]) + shift for shift in shifts if worker)

    @cached_property
    def _ranks_by_host(self) -> Mapping[str, frozenset[int]]:
        found: dict[str, set[int]] = {}
        for rank, node in self.node_by_rank.items():
            found.setdefault(_shorten(node), set()).add(rank)
        return {host: frozenset(ranks) for host, ranks in found.items()}

    def list_possible_ranks_on(self, node: str) -> frozenset[int]:
        """Return the ranks that may run on a host, as nothing tells that they run on another."""
        nodes = self.node_by_rank
        return frozenset(
            rank for rank in self.ranks if not nodes.get(rank) or is_same_host(nodes[rank], node)
        )

    @cached_property
    def raised_ranks(self) -> frozenset[int]:
        """Ranks that raised any exception."""
        return frozenset(item.rank for item in self.exceptions if item.rank >= 0)

    @cached_property
    def ended_ranks(self) -> frozenset[int]:
        """Ranks that ended with a code other than 0."""
        return frozenset(item.rank for item in self.exits if item.code and item.rank >= 0)

    @cached_property
    def hosts(self) -> frozenset[str]:
        """The hosts of ranks."""
        return frozenset(self.node_by_rank.values())

    @cached_property
    def _pids(self) -> Mapping[int, Mapping[str, set[int]]]:
        """The ranks of each process number, by the short names of their hosts."""
        found: dict[int, dict[str, set[int]]] = {}
        tellers = (item for item in self._tellers if item.pid and item.rank >= 0)
        told = (Owner(item.pid, item.node, item.rank) for item in tellers)
        for one in chain(told, list_owners(self.evidence, self.node_by_rank)):
            found.setdefault(one.pid, {}).setdefault(_shorten(one.node), set()).add(one.rank)
        return found

    @cached_property
    def _rank_by_pid(self) -> dict[tuple[int, str], int | None]:
        """What `find_rank_of_pid` has found."""
        return {}

    def find_rank_of_pid(self, pid: int, node: str = "") -> int | None:
        """Return the rank whose process has this number on a host, None when it is nobody's."""
        key = pid, _shorten(node)
        if key not in self._rank_by_pid:
            owners = choose_ranks(self._pids.get(pid, {}), self.evidence, *key)
            self._rank_by_pid[key] = owners.pop() if len(owners) == 1 else None
        return self._rank_by_pid[key]

    @cached_property
    def _buses(self) -> Mapping[str, set[int]]:
        """The ranks whose devices have a bus id."""
        found: dict[str, set[int]] = {}
        for file in self.files:
            for rank, bus in file.bus_by_rank.items():
                found.setdefault(simplify_bus(bus), set()).add(rank)
        for state in self.evidence.devices:
            if state.entry.bus and not state.entry.is_guessed:
                found.setdefault(simplify_bus(state.entry.bus), set()).update(state.entry.ranks)
        for row in self.list_signatures("table.device"):
            owner = self.find_rank_of_device(int(row.groups["index"]), row.node)
            if owner is not None and row.groups.get("bus"):
                found.setdefault(simplify_bus(row.groups["bus"]), set()).add(owner)
        return found

    def find_rank_of_device(self, index: int, node: str) -> int | None:
        """Return the rank that has a device of a host, where lines or people tell it."""
        told = {key: rank for file in self.files for key, rank in file.rank_by_device.items()}
        found = {
            rank
            for (host, one), rank in told.items()
            if one == index and (not host or is_same_host(host, node))
        }
        return found.pop() if len(found) == 1 else index if self._are_devices_ranks else None

    @cached_property
    def _are_devices_ranks(self) -> bool:
        """Whether somebody says that ranks have the numbers of their devices.

        Where that is said of local ranks, those of one host alone are the ranks of the job.
        """
        told = list(self.list_signatures("table.rank_is_device"))
        is_local = any(event.groups.get("of") for event in told)
        rows = {(row.node, row.groups["index"]) for row in self.list_signatures("table.device")}
        hosts = self.hosts | {node for node, _ in rows}
        is_whole = len(hosts - {""}) <= 1 and all(rank < len(rows) for rank in self.ranks)
        return bool(told) and (is_whole or not is_local)

    def find_ranks_of_bus(self, bus: str, node: str) -> frozenset[int]:
        """Return the ranks on a host whose device has this bus id; none when nothing tells."""
        return frozenset(
            rank
            for rank in self._buses.get(simplify_bus(bus), ())
            if not node or is_same_host(self.node_by_rank.get(rank, node), node)
        )

    @cached_property
    def clocks(self) -> Clocks:
        """The clocks of the logs, compared by what several hosts saw together."""
        return Clocks(self.events)

    @cached_property
    def votes(self) -> Counter[int]:
        """How many ranks name another one as the rank that is missing or has failed."""
        named: set[tuple[int, int]] = set()
        for event in self.events:
            if event.signature == "hccl.timeout" and not self._trusts_neighbours:
                continue
            text = event.groups.get(_VOTES.get(event.signature, "")) or ""
            named |= {(event.rank, rank) for rank in parse_ranks(text) if rank != event.rank}
        return Counter(rank for _, rank in named)

    @cached_property
    def _trusts_neighbours(self) -> bool:
        """Whether the ranks for which ranks of HCCL wait may be those that are missing.

        A neighbour may wait as well. It is known to where it says so, by its rank; and HCCL counts
        from the first rank of a group.
        """
        events = [one for one in self.list_signatures("hccl.timeout") if one.groups.get("peer")]
        texts = [one.text for one in events if "group:[" in one.text]
        if any(_WORLD_GROUP not in text for text in texts):
            return False
        is_known = all(one.rank >= 0 for one in events)
        return is_known or len({one.groups["peer"] for one in events}) == 1

    @cached_property
    def _kinds(self) -> Mapping[str, str]:
        return {file.artifact: file.kind for file in self.files}

    def is_of_machine(self, event: LogEvent) -> bool:
        """Tell whether a kernel, a service or a scheduler wrote a line, rather than the job."""
        return self._kinds.get(event.artifact, "") in _MACHINE_KINDS

    @cached_property
    def has_job_logs(self) -> bool:
        """Whether there is any log of a rank or a launcher, or any record of one."""
        told = any(file.kind not in _MACHINE_KINDS for file in self.files)
        return told or bool(self.exceptions or self.exits)

    @cached_property
    def has_records(self) -> bool:
        """Whether whystuck itself recorded how processes failed or ended."""
        told: tuple[ExitRecord | PythonException, ...] = (*self.exceptions, *self.exits)
        is_seen = any(item.source not in _LOG_SOURCES for item in told)
        return is_seen or any(not item.row for item in self.evidence.fatals)

    def find_ranks_of(self, event: LogEvent) -> frozenset[int]:
        """Return the ranks that a line of a machine is about: of its pod, or else of its host."""
        named = [match["pod"] or match["row"] for match in _POD.finditer(event.text)]
        for node in (*named, event.node):
            if node and (ranks := self.list_ranks_on(node)):
                return ranks
        return frozenset()

    def find_node_of(self, event: LogEvent) -> str:
        """Return the pod that a line names, or else the host that it is of."""
        match = _POD.search(event.text)
        return match["pod"] or match["row"] if match else event.node

    def find_event_of(self, item: PythonException) -> LogEvent | None:
        """Return the known line that ends a traceback, None when no signature knows it."""
        if not item.artifact or not item.row:
            return None
        last = item.last_row or item.row
        return self._events_by_row.get((item.artifact, last))

    @cached_property
    def _events_by_row(self) -> Mapping[tuple[str, int], LogEvent]:
        return {(event.artifact, event.row): event for event in self.events}

    @cached_property
    def failure_times(self) -> tuple[LogTime, ...]:
        """When ranks failed or began to wait until a time limit, as their own logs tell."""
        times = [item.time for item in self.exceptions if item.time]
        times += [item.time for item in self.exits if item.time and (item.code or item.signal)]
        for event in self.events:
            if event.time and event.role != "context" and not self.is_of_machine(event):
                waited = event.groups.get("ms") or ""
                back_ns = int(waited) * _NS_PER_MS if waited.isdecimal() else 0
                times.append(replace(event.time, ns=event.time.ns - back_ns))
        # Hundreds of ranks fail in one second; one of each will do.
        kept = {(time.clock, time.ns // _NS_PER_S, time.is_zoned): time for time in times}
        return tuple(kept.values())

    def is_felt(self, time: LogTime | None) -> bool | None:
        """Tell whether something that broke at a time may be behind the failure of the job.

        Returns:
            None when the clocks do not tell, and when there are too many events and failures.
        """
        if time is None:
            return None
        is_known = False
        # The first that is near enough tells: there may be as many failures as events.
        for other in self.failure_times:
            self._compared += 1
            if self._compared > _MOST_COMPARED:
                return None
            gap = self.clocks.bound_gap(time, other)
            if gap is not None and gap[0] <= _FELT_NS and gap[1] >= -_LATE_NS:
                return True
            is_known |= gap is not None
        return False if is_known else None

    def is_everywhere(self, ranks: Iterable[int]) -> bool:
        """Tell whether these are so many ranks of the job that none of them is special."""
        count = len(set(ranks) - {-1})
        return count > 1 and count >= _EVERYWHERE * len(self.ranks)


def is_same_host(one: str, other: str) -> bool:
    """Tell whether two names are of one host; a short name stands for a full one."""
    return bool(one) and _shorten(one) == _shorten(other)


def _shorten(host: str) -> str:
    # An address has no name to cut: all of 10.0.0.0/8 would be one host.
    return host if is_address(host) else host.partition(".")[0].lower()


def simplify_bus(bus: str) -> str:
    """Write a PCI bus id as NCCL does, as one hexadecimal number: ``9b000`` for 0000:9b:00.0."""
    text = bus.strip().lower().removeprefix("pci:").removeprefix("0x")
    # The driver leaves the function out.
    text += "0" if ":" in text and "." not in text else ""
    return text.replace(":", "").replace(".", "").lstrip("0")
