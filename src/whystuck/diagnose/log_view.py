"""What the logs of one evidence tell together: who runs where, and what each has to say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from whystuck.evidence.live import ExitRecord, PythonException
from whystuck.evidence.logs import LogEvent, LogFile
from whystuck.evidence.model import Evidence

# Below this share of the ranks, what several ranks say is not said by all.
_EVERYWHERE = 0.75
_LOG_SOURCES = {"log", "launcher log"}


class LogView:
    """The logs of one evidence, in the last attempt of its launcher. Computed on first use.

    ``events``, ``exceptions`` and ``exits`` are those of the last attempt; ``earlier`` are the
    known lines of the attempts before. Exceptions and exits that whystuck recorded itself are
    among them.
    """

    def __init__(self, evidence: Evidence) -> None:
        """Look at the logs, exceptions and exits of one evidence."""
        self.evidence = evidence
        logs = evidence.logs
        self.files: tuple[LogFile, ...] = logs.files
        self.last_attempt = max((event.attempt for event in logs.events), default=0)
        self.earlier = tuple(item for item in logs.events if item.attempt < self.last_attempt)
        self.events = tuple(item for item in logs.events if item.attempt >= self.last_attempt)

    @cached_property
    def exceptions(self) -> tuple[PythonException, ...]:
        """Tracebacks of the last attempt, and exceptions that the probe recorded."""
        return tuple(
            item
            for item in self.evidence.exceptions
            if item.attempt >= self.last_attempt or item.source not in _LOG_SOURCES
        )

    @cached_property
    def exits(self) -> tuple[ExitRecord, ...]:
        """Ends of processes in the last attempt, as logs and whystuck tell them."""
        return tuple(
            item
            for item in self.evidence.exits
            if item.attempt >= self.last_attempt or item.source not in _LOG_SOURCES
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
                found |= dict.fromkeys(file.ranks - {-1}, file.node)
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
        return frozenset(
            rank for rank, host in self.node_by_rank.items() if is_same_host(host, node)
        )

    @cached_property
    def _pids(self) -> Mapping[int, tuple[tuple[str, int], ...]]:
        found: dict[int, set[tuple[str, int]]] = {}
        for item in self._tellers:
            if item.pid and item.rank >= 0:
                found.setdefault(item.pid, set()).add((item.node, item.rank))
        for file in self.files:
            for rank, pid in file.pid_by_rank.items():
                found.setdefault(pid, set()).add((self.node_by_rank.get(rank, ""), rank))
        return {pid: tuple(sorted(owners)) for pid, owners in found.items()}

    def find_rank_of_pid(self, pid: int, node: str = "") -> int | None:
        """Return the rank whose process has this number on a host, None when it is nobody's."""
        owners = {
            rank
            for host, rank in self._pids.get(pid, ())
            if not node or not host or is_same_host(host, node)
        }
        return owners.pop() if len(owners) == 1 else None

    def find_ranks_of_bus(self, bus: str, node: str) -> frozenset[int]:
        """Return the ranks on a host whose device has this bus id; none when nothing tells."""
        wanted = simplify_bus(bus)
        return frozenset(
            rank
            for file in self.files
            for rank, known in file.bus_by_rank.items()
            if simplify_bus(known) == wanted
            and (not node or is_same_host(self.node_by_rank.get(rank, node), node))
        )

    def is_everywhere(self, ranks: Iterable[int]) -> bool:
        """Tell whether these are so many ranks of the job that none of them is special."""
        count = len(set(ranks) - {-1})
        return count > 1 and count >= _EVERYWHERE * len(self.ranks)


def is_same_host(one: str, other: str) -> bool:
    """Tell whether two names are of one host; a short name stands for a full one."""
    return bool(one) and one.partition(".")[0].lower() == other.partition(".")[0].lower()


def simplify_bus(bus: str) -> str:
    """Write a PCI bus id as NCCL does, as one hexadecimal number: ``9b000`` for 0000:9b:00.0."""
    text = bus.strip().lower().removeprefix("pci:").removeprefix("0x")
    # The driver leaves the function out.
    text += "0" if ":" in text and "." not in text else ""
    return text.replace(":", "").replace(".", "").lstrip("0")
