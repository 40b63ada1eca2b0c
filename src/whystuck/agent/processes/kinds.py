"""What each process is to its job, told by all that are known; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from whystuck.agent.processes.identify import Identity
from whystuck.evidence.agent import ProcessKind


class Standing(msgspec.Struct, kw_only=True, frozen=True):
    """What is known of a process: its start, its name now, and the rank that its probe tells.

    ``told_rank`` and ``told_world_size`` of -1 are unknown.
    """

    identity: Identity
    name: str = ""
    told_rank: int = -1
    told_world_size: int = -1

    @property
    def rank(self) -> int:
        """The rank that it has, or whose environment it has inherited."""
        return self.told_rank if self.told_rank >= 0 else self.identity.rank

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self.told_world_size if self.told_rank >= 0 else self.identity.world_size

    @property
    def local_rank(self) -> int:
        """Its number on this node, where the launcher's word still holds."""
        is_same = self.told_rank < 0 or self.told_rank == self.identity.rank
        return self.identity.local_rank if is_same else -1


DATA_WORKER = "pt_data_worker"
"""What torch names the main thread of a worker of a data loader."""


def tell_kinds(standings: Iterable[Standing]) -> dict[int, ProcessKind]:
    """Return the kind of each process, by its pid.

    - Launchers have a launcher's command, or a process below them has a rank while they have none
      themselves. A platform may have given them ``RANK``: only a local rank makes one.
    - Helpers are below a process with the same rank. A process that multiprocessing started below
      one whose rank is not torchrun's may be a rank itself: it counts as a plain process.
    - Ranks have a rank; all others are plain processes.
    """
    known = {one.identity.pid: one for one in standings}
    kinds = {pid: _tell_alone(one) for pid, one in known.items()}
    for pid, one in known.items():
        if kinds[pid] is ProcessKind.RANK:
            kinds[pid] = _tell_below(one, known)
    for pid, one in known.items():
        if kinds[pid] is ProcessKind.RANK:
            for parent in one.identity.parents:
                if parent in known and _may_launch(known[parent], one):
                    kinds[parent] = ProcessKind.LAUNCHER
    return kinds


def _tell_alone(one: Standing) -> ProcessKind:
    if one.identity.is_tool or one.name == DATA_WORKER:
        return ProcessKind.HELPER
    if one.identity.is_launcher:
        return ProcessKind.LAUNCHER
    return ProcessKind.RANK if one.rank >= 0 else ProcessKind.PROCESS


def _tell_below(one: Standing, known: Mapping[int, Standing]) -> ProcessKind:
    """Tell whether a process with a rank only has inherited it."""
    for parent in one.identity.parents:
        above = known.get(parent)
        if above is None or above.identity.is_launcher or above.rank != one.rank:
            continue
        if above.identity.local_rank != one.identity.local_rank:
            continue  # a launcher to which a platform gave the rank of its first process
        if one.told_rank >= 0 and above.told_rank < 0:
            continue  # it has joined the job, and what is above it has not
        is_certain = one.identity.is_elastic or not one.identity.is_spawned
        return ProcessKind.HELPER if is_certain else ProcessKind.PROCESS
    return ProcessKind.RANK


def _may_launch(above: Standing, rank: Standing) -> bool:
    if above.told_rank >= 0 or above.identity.is_elastic:
        return False
    # By the environment alone, a local rank is what tells a rank from its launcher.
    return rank.identity.is_elastic or rank.told_rank >= 0
