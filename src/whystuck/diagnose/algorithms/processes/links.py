"""Which pairs of ranks have a connection whose bytes do not arrive."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from whystuck.evidence.live import ProcessSample


@dataclass(frozen=True)
class Link:
    """A connection that the kernel of ``rank`` sends bytes over again and again.

    ``peer`` is the rank at its other end, -1 when it is not known.
    """

    rank: int
    peer: int
    local: str
    remote: str
    unsent_bytes: int
    artifact: str


def find_dead_links(processes: Iterable[ProcessSample]) -> tuple[Link, ...]:
    """Find connections that do not get rid of their bytes in the last look at each process.

    Args:
        processes: Looks at main processes of ranks.

    Returns:
        The links, by rank.
    """
    last: dict[int, ProcessSample] = {}
    for sample in processes:
        known = last.get(sample.rank)
        if not sample.worker and (known is None or sample.taken_ns >= known.taken_ns):
            last[sample.rank] = sample
    owners = {one.local: rank for rank, sample in last.items() for one in sample.connections}
    return tuple(
        Link(
            rank,
            owners.get(one.remote, -1),
            one.local,
            one.remote,
            one.unsent_bytes,
            sample.artifact,
        )
        for rank, sample in sorted(last.items())
        for one in sample.connections
        if one.is_resending and one.unsent_bytes
    )
