"""What people and programs say of a job in sentences: where ranks run, and which share a group."""

from __future__ import annotations

from dataclasses import dataclass, field

from whystuck.parse.logs.line_texts import ToldText
from whystuck.parse.logs.said_places import HostRanks

_MAX_KEPT = 20_000
_MAX_GROUPS = 4096


@dataclass(slots=True)
class SaidFacts:
    """What is said of a job in one log.

    Attributes:
        host_ranks: The ranks of hosts.
        order: The ranks that processes have in the order in which they stand, as a sentence lists
            them; empty where they stand in the order of ranks, None where nobody says so.
        rank_by_pod: The rank of a pod or a host that has one.
        groups: The members of each group, by its name; groups of several ranks may share it.
    """

    host_ranks: set[HostRanks] = field(default_factory=set)
    order: str | None = None
    rank_by_pod: dict[str, set[int]] = field(default_factory=dict)
    groups: dict[str, set[frozenset[int]]] = field(default_factory=dict)

    def note(self, told: ToldText) -> None:
        """Take what a line says."""
        if len(self.host_ranks) < _MAX_KEPT:
            self.host_ranks.update(told.host_ranks)
        self.order = told.order if told.order is not None else self.order
        for pod, rank in told.pod_ranks if len(self.rank_by_pod) < _MAX_KEPT else ():
            self.rank_by_pod.setdefault(pod, set()).add(rank)
        for name, members in told.groups if self._count_groups() < _MAX_GROUPS else ():
            self.groups.setdefault(name, set()).add(members)

    def add(self, later: SaidFacts) -> None:
        """Take what the next part of the log says."""
        self.host_ranks |= later.host_ranks
        self.order = self.order if later.order is None else later.order
        for pod, ranks in later.rank_by_pod.items():
            self.rank_by_pod.setdefault(pod, set()).update(ranks)
        for name, groups in later.groups.items():
            self.groups.setdefault(name, set()).update(groups)

    def _count_groups(self) -> int:
        return sum(map(len, self.groups.values()))
