"""Process groups as connections show them: gloo links each pair of members of each group once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from whystuck.evidence.live import ProcessSample

_Pair = tuple[int, int]


@dataclass(frozen=True)
class Mesh:
    """How many groups each two ranks share; empty when connections do not tell.

    One group holds all ranks. ``is_single`` says that there is no other.
    """

    shared: Mapping[_Pair, int]

    @property
    def is_single(self) -> bool:
        """Whether all ranks are in one group, and in no other."""
        return bool(self.shared) and set(self.shared.values()) == {1}

    @property
    def is_uniform(self) -> bool:
        """Whether every group holds all ranks."""
        return bool(self.shared) and len(set(self.shared.values())) == 1

    def find_other_members(self, rank: int) -> frozenset[int]:
        """Find the members of the one group of a rank that does not hold all ranks.

        Returns:
            The members; empty when there is no such group, or more than one.
        """
        if not self.shared or min(self.shared.values()) != 1:
            return frozenset()
        mates = {rank} | {
            one if other == rank else other
            for (one, other), count in self.shared.items()
            if rank in (one, other) and count > 1
        }
        pairs = combinations(sorted(mates), 2)
        is_one = len(mates) > 1 and all(self.shared.get(pair) == 2 for pair in pairs)  # noqa: PLR2004 - all, and these
        return frozenset(mates) if is_one else frozenset()


def find_mesh(processes: Iterable[ProcessSample], ranks: Sequence[int]) -> Mesh:
    """Count the connections between the ranks of a job.

    Args:
        processes: Looks at processes, with their connections; the last of a rank counts.
        ranks: All ranks of the job.

    Returns:
        The mesh; empty unless each rank is linked to each other one.
    """
    last = {one.rank: one for one in processes if not one.worker}
    owner = {
        (link.local, link.remote): rank for rank, one in last.items() for link in one.connections
    }
    stores = _find_stores(owner)
    shared: Counter[_Pair] = Counter()
    for (local, remote), rank in owner.items():
        peer = owner.get((remote, local))
        if peer is not None and rank < peer and not {local, remote} & stores:
            shared[rank, peer] += 1
    expected = set(combinations(sorted(ranks), 2))
    return Mesh(dict(shared) if set(shared) == expected else {})


def _find_stores(owner: Mapping[tuple[str, str], int]) -> set[str]:
    """Find the addresses of key-value stores: a rank that serves one is a client of it, too."""
    return {
        end
        for (local, remote), rank in owner.items()
        if owner.get((remote, local)) == rank
        for end in (local, remote)
    }
