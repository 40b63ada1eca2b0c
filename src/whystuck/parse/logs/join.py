"""Joins what was found in all logs of a job: whose lines they are, where and when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from whystuck.evidence.logs.lines import UNKNOWN_RANK, LogFile, LogTime
from whystuck.parse.logs.blocks.calls.ras import list_owners
from whystuck.parse.logs.exits import ExitSeen
from whystuck.parse.logs.lines.lines import LogLine, parse_line
from whystuck.parse.logs.lines.members import Members
from whystuck.parse.logs.lines.times import Anchor, Stamp, place_stamp
from whystuck.parse.logs.log_inputs import LogInput
from whystuck.parse.logs.owners.inferred import InferredRanks
from whystuck.parse.logs.owners.known_logs import (
    KnownLog,
    are_ranks,
    find_devices,
    find_own_rank,
    has_launchers,
    list_host_ranks,
    list_ordered,
    list_said_places,
    list_told,
    take_indices,
    take_locals,
    world_of,
)
from whystuck.parse.logs.owners.launches import Launches, list_failed
from whystuck.parse.logs.owners.names import is_hostlike
from whystuck.parse.logs.owners.processes import Processes
from whystuck.parse.logs.owners.short_names import find_short_names

MACHINES = {"kernel", "events", "scheduler", "service"}


@dataclass(slots=True)
class Owner:
    """Whose a line is."""

    rank: int
    node: str
    pid: int
    attempt: int
    time: LogTime | None


class LogIndex:
    """Knows whose each line of some logs is."""

    def __init__(self, sources: Sequence[LogInput]) -> None:
        """Work out what the logs tell of each other."""
        self.logs = [KnownLog(source) for source in sources]
        self.world_size = max((world_of(log.source.part) for log in self.logs), default=0)
        self._launches = Launches(log.source.part for log in self.logs)
        self._launched = self._launches.find_size(list_told(self.logs))
        self.world_size = self.world_size or self._launched
        self.processes = Processes()
        self._rank_by_local: dict[tuple[str, int], set[int]] = defaultdict(set)
        self._hosts = self._find_hosts()
        self._named = find_short_names(sources, self._hosts)
        self._hosts -= self._named.keys()
        for log in self.logs:
            log.kind = log.source.part.facts.find_kind()
            log.tasks_are_ranks = are_ranks(log.source.part)
            log.node = self._find_node(log)
            log.attempt = log.source.name.attempt or 0
        self._find_ranks()
        self._note_processes()
        self._place()

    def find_owner(self, log: KnownLog, line: LogLine, row: int, stamp: Stamp | None) -> Owner:
        """Tell whose a line is.

        Args:
            log: The log it stands in.
            line: The line.
            row: Its number.
            stamp: Its time.
        """
        node = "" if line.node in self._named else line.node
        rank = self.find_rank(log, line)
        if not node and (not line.is_described or log.kind in MACHINES):
            node = self._said_nodes.get(rank, log.node) or self.node_by_rank.get(rank, "")
        clock = node or log.source.artifact
        return Owner(
            rank, node, line.pid, self.find_attempt(log, row), place_stamp(stamp, log.anchor, clock)
        )

    def take_host(self, line: LogLine) -> LogLine:
        """Read a line behind the name of a host that only other lines show to be one."""
        host, mark, rest = line.text.partition(": ")
        if not mark or line.node or host not in self._hosts:
            return line
        inner = parse_line(rest.encode())
        rank = inner.rank if line.rank == UNKNOWN_RANK else line.rank
        return replace(inner, node=host, rank=rank, stamp=inner.stamp or line.stamp)

    def find_rank(self, log: KnownLog, line: LogLine) -> int:
        """Tell the rank that wrote a line."""
        if log.kind in MACHINES:
            return UNKNOWN_RANK
        own = line.rank if line.rank != UNKNOWN_RANK else self._named.get(line.node, UNKNOWN_RANK)
        if own != UNKNOWN_RANK:
            return own
        if line.task != UNKNOWN_RANK and log.tasks_are_ranks:
            return line.task
        if line.local >= 0:
            rank = self.rank_of_local(line.node or log.node, line.local, log)
            if rank != UNKNOWN_RANK:
                return rank
        if line.pid and (rank := self.rank_of_pid(line.node or log.node, line.pid)) >= 0:
            return rank
        return self._members.find_rank(line) if log.rank == UNKNOWN_RANK else log.rank

    def find_attempt(self, log: KnownLog, row: int) -> int:
        """Tell the attempt that a line of a log belongs to."""
        attempt = log.attempt
        for begin, number in log.source.part.facts.restarts:
            if begin < row:
                attempt = max(attempt, number)
        return attempt

    def rank_of_pid(self, node: str, pid: int) -> int:
        """Tell the rank of a process, if only one can be meant."""
        return self.processes.find(node, pid)

    def rank_of_local(self, node: str, local: int, log: KnownLog) -> int:
        """Tell the rank of a local rank of a host."""
        own = log.source.part.facts.rank_by_local.get(local, set())
        found = own or self._rank_by_local.get((node, local), set())
        if found:
            return next(iter(found)) if len(found) == 1 else UNKNOWN_RANK
        # A launcher numbers the ranks of its host one after the other.
        shifts = {rank - known for known, rank in self._list_locals(node, log)}
        placed = self._launches.find_placed(log.source.part)
        if placed is not None and shifts <= {placed}:
            return self._inferred.note(local + placed)
        if not self._is_one_host:
            told = log.source.part.facts.rank_by_place
            is_told = any(host == node for host, _ in told) and len(shifts) == 1
            return (
                self._inferred.note(local + max(0, min(shifts)))
                if node and is_told
                else UNKNOWN_RANK
            )
        if len(shifts) == 1 and min(shifts) > 0:
            return self._inferred.note(local + min(shifts))
        # On the first host, the two are the same.
        is_first = not shifts and not self._inferred.has_other_hosts and self._launches.are_of_one
        is_first = is_first or 0 in shifts
        is_first = is_first and self._is_one_node
        return self._inferred.note(local) if is_first else UNKNOWN_RANK

    def _list_locals(self, node: str, log: KnownLog) -> Iterator[tuple[int, int]]:
        """Yield the local ranks of a host of which the ranks are known."""
        for local, ranks in log.source.part.facts.rank_by_local.items():
            yield from ((local, rank) for rank in ranks)
        for (host, local), ranks in self._rank_by_local.items():
            if host == node:
                yield from ((local, rank) for rank in ranks)

    @cached_property
    def _members(self) -> Members:
        return Members(seen for log in self.logs for seen in log.source.part.events)

    @cached_property
    def _is_one_host(self) -> bool:
        launchers = sum(log.kind in ("merged", "agent") for log in self.logs)
        parts = [log.source.part for log in self.logs]
        tasks = {task for part in parts if has_launchers(part) for task in part.facts.tasks}
        return max(len(self._hosts), launchers, len(tasks)) <= 1

    @cached_property
    def _is_one_node(self) -> bool:
        if not self._is_one_host:
            return False
        others = {one for (host, _), ranks in self._rank_by_local.items() for one in ranks if host}
        return all(rank < 64 for rank in others)  # noqa: PLR2004

    def rank_of_node(self, node: str) -> int:
        """Tell the rank of a host or pod that has only one."""
        ranks = self._ranks_by_node.get(node, set())
        return next(iter(ranks)) if len(ranks) == 1 else UNKNOWN_RANK

    def list_inferred(self) -> frozenset[int]:
        """Return the ranks that no text names."""
        return self._inferred.list_ranks()

    def make_files(self) -> tuple[LogFile, ...]:
        """Describe all logs."""
        return tuple(self._make_file(log) for log in self.logs)

    def _find_hosts(self) -> frozenset[str]:
        found: set[str] = set()
        for log in self.logs:
            part = log.source.part
            found |= set(part.facts.nodes) | {node for node, _ in part.facts.comms if node}
            found |= {seen.node for seen in part.exits if seen.node}
            if log.source.node:
                found.add(log.source.node)
        return frozenset(found)

    def _find_node(self, log: KnownLog) -> str:
        if log.source.node:
            return log.source.node
        hosts = log.source.name.hosts
        nodes = log.source.part.facts.nodes
        for name in hosts:
            if name in self._hosts:
                return name
        if len(nodes) == 1 and log.kind != "scheduler":
            return next(iter(nodes))
        for name in hosts:
            if is_hostlike(name):
                return name
        # The log of a machine lies in the folder of the machine.
        return hosts[1] if log.kind in ("kernel", "service") and len(hosts) > 1 else ""

    def _find_ranks(self) -> None:
        series: dict[str, list[KnownLog]] = defaultdict(list)
        for log in self.logs:
            if log.kind in MACHINES:
                continue
            log.rank = find_own_rank(log.source)
            if log.rank == UNKNOWN_RANK and log.source.name.index is not None:
                series[log.source.name.series].append(log)
        for group in series.values():
            take_indices(group)
        take_locals([log for log in self.logs if log.kind not in MACHINES], self.world_size)
        for log in self.logs:
            if log.rank != UNKNOWN_RANK:
                log.kind = "rank"
            elif not log.kind:
                log.kind = "merged"

    def _note_processes(self) -> None:
        self.node_by_rank: dict[int, str] = {}
        self._ranks_by_node: dict[str, set[int]] = defaultdict(set)
        largest = max(
            (comm.size for log in self.logs for comm in log.source.part.facts.comms.values()),
            default=0,
        )
        for log in self.logs:
            facts = log.source.part.facts
            self._note_comms(log, largest)
            self._note_told(log)
            for rank, node in facts.node_by_rank.items():
                self._note_node(rank, node)
            if log.rank != UNKNOWN_RANK:
                self._note_node(log.rank, log.node)
            for local, ranks in facts.rank_by_local.items():
                self._rank_by_local[log.node, local] |= ranks
            for place, ranks in facts.rank_by_place.items():
                self._rank_by_local[place] |= ranks
            self._note_ends(log)
            for host, first, last in list_host_ranks(log.source.part):
                for rank in range(first, last + 1):
                    self._rank_by_local[host, rank - first].add(rank)
        self._said_nodes = dict(list_said_places(self.logs, self._hosts))
        for rank, node in self._said_nodes.items():
            self._note_node(rank, node)
        self._inferred = InferredRanks(self.logs, self.processes, self.world_size)
        for log in self.logs:
            self._note_guesses(log)

    def _note_told(self, log: KnownLog) -> None:
        """Take which process is which rank, as ranks, people and NCCL's RAS tell."""
        facts = log.source.part.facts
        for (host, pid), rank in facts.workers.items():
            if rank == UNKNOWN_RANK:
                self.processes.doubt(host, pid)
            self.processes.note(host, pid, rank)
            self._note_node(rank, host)
        tabled = log.source.part.tabled
        for row in (one for one in tabled if {"own", "pid"} <= one.groups.keys()):
            host = row.line.node or log.node
            self.processes.note(host, int(row.groups["pid"]), int(row.groups["own"][:7]))
        for pid, ranks in facts.rank_by_pid.items():
            for rank in ranks:
                self.processes.note(log.node, pid, rank, is_said=True)
        for pid, rank in list_ordered(log.source.part):
            self.processes.note(log.node, pid, rank, is_said=True)
        for member in list_owners(log.source.part.ras, self.world_size):
            self.processes.note(member.host, member.pid, member.rank)

    def _note_guesses(self, log: KnownLog) -> None:
        for pid in log.source.part.facts.pids if log.rank != UNKNOWN_RANK else ():
            self.processes.note_guess(log.node, pid, log.rank)
        for pid, rank in self._list_spawned(log):
            self.processes.note_guess(log.node, pid, rank)

    def _list_spawned(self, log: KnownLog) -> Iterator[tuple[int, int]]:
        """Yield the processes that a launcher says it started or ended, with their ranks."""
        part = log.source.part
        ended = [(seen.pid, seen.local) for seen in part.exits if seen.pid and seen.local >= 0]
        rows = [row.groups for row in part.tabled if {"local", "pid"} <= row.groups.keys()]
        ended += [(int(row["pid"]), int(row["local"])) for row in rows]
        for pid, local in (*part.facts.local_by_pid.items(), *ended):
            rank = self.rank_of_local(log.node, local, log)
            if rank != UNKNOWN_RANK:
                yield pid, rank

    def _note_comms(self, log: KnownLog, largest: int) -> None:
        for (host, pid), comm in log.source.part.facts.comms.items():
            # Ranks of smaller communicators are those of their group.
            rank = comm.rank if comm.size == largest else log.rank
            if rank != UNKNOWN_RANK:
                self.processes.note(host, pid, rank)
                self._note_node(rank, host)

    def _note_ends(self, log: KnownLog) -> None:
        for seen in log.source.part.exits:
            self._note_exit(log, seen)
        for rank, local in list_failed(log.source.part):
            self._rank_by_local[log.node, local].add(rank)

    def _note_exit(self, log: KnownLog, seen: ExitSeen) -> None:
        node = seen.node or log.node
        if seen.rank != UNKNOWN_RANK:
            self._note_node(seen.rank, node)
            self.processes.note(node, seen.pid, seen.rank)
            if seen.local >= 0:
                self._rank_by_local[node, seen.local].add(seen.rank)
        elif seen.task != UNKNOWN_RANK and log.tasks_are_ranks:
            self._note_node(seen.task, node)

    def _note_node(self, rank: int, node: str) -> None:
        if node and rank != UNKNOWN_RANK:
            self.node_by_rank.setdefault(rank, node)
            self._ranks_by_node[node].add(rank)

    def _place(self) -> None:
        """Find what places the stamps that lack something."""
        dated = [log.source.part.facts.dated for log in self.logs]
        dates = [stamp.ns for stamp in dated if stamp is not None]
        exits = [
            seen.stamp.ns
            for log in self.logs
            for seen in log.source.part.exits
            if seen.stamp is not None and not seen.stamp.lack
        ]
        anywhere = max([*dates, *exits], default=0)
        for log, stamp in zip(self.logs, dated, strict=True):
            near = stamp.ns if stamp else anywhere or log.source.modified_ns
            boot = log.source.part.facts.boot
            log.anchor = Anchor(near, boot.ns if boot else None)

    def _make_file(self, log: KnownLog) -> LogFile:
        part, source = log.source.part, log.source
        facts = part.facts
        clock = log.node or source.artifact
        first, last = (place_stamp(one, log.anchor, clock) for one in (facts.first, facts.last))
        comms = {
            rank: (key, comm)
            for key, comm in facts.comms.items()
            if (rank := self.processes.find_on(*key)) != UNKNOWN_RANK
        }
        ranks = set(facts.ranks)
        if log.tasks_are_ranks:
            ranks |= set(facts.tasks)
        if log.rank != UNKNOWN_RANK:
            ranks.add(log.rank)
        pids = {rank: key[1] for rank, (key, _) in comms.items()}
        pids |= {rank: pid for pid, rank in self._list_spawned(log) if rank not in pids}
        pids |= {min(own): pid for pid, own in facts.rank_by_pid.items() if len(own) == 1}
        for seen in part.exits:
            if seen.rank != UNKNOWN_RANK and seen.pid:
                pids.setdefault(seen.rank, seen.pid)
        known = ranks | comms.keys() | set(facts.workers.values()) | self._said_nodes.keys()
        known |= facts.node_by_rank.keys()
        return LogFile(
            artifact=source.artifact,
            kind=log.kind,
            rank=log.rank if log.kind == "rank" else UNKNOWN_RANK,
            node=log.node,
            world_size=world_of(part) or self._launched * (log.kind not in MACHINES),
            size_bytes=part.size,
            first_ns=first.ns if first else 0,
            last_ns=last.ns if last else 0,
            ranks=frozenset(ranks) if log.kind not in MACHINES else frozenset(),
            node_by_rank={one: self.node_by_rank[one] for one in known & self.node_by_rank.keys()},
            bus_by_rank=facts.said.find_buses()
            | {rank: comm.bus for rank, (_, comm) in comms.items()},
            pid_by_rank=pids,
            rank_by_device=find_devices(log),
            worker_shift=facts.said.find_shift(),
            loss_ranks=frozenset(facts.losses.keys() - {UNKNOWN_RANK}),
            hosts=frozenset(facts.nodes) - self._named.keys(),
            goes_on=facts.pace.goes_on,
            steps_since=facts.pace.since,
            steps_until=facts.pace.until,
            groups={name: frozenset(sets) for name, sets in facts.said.groups.items()},
            steady_until=facts.pace.steady_until,
            seats={host: frozenset(own) for host, own in facts.said.seats.items()},
        )
