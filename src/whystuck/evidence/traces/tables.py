"""What traces were reduced to: tables of one rank, and tables of all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from whystuck.evidence.finding import Gap
from whystuck.evidence.table import Table


class RankHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Whose trace it was, and how much of it there is.

    ``rank`` is -1 when unknown. ``base_ns`` is the host's clock at the time 0 of the tables;
    ``events`` counts all events, ``device_events`` the work of devices. ``fingerprint`` tells
    traces of other content apart. ``started_ns`` is the first start of an event and ``ended_ns``
    the last end, on the host's clock.
    """

    artifact: str = ""
    rank: int = -1
    world_size: int = 0
    host: str = ""
    vendor: str = "cpu"
    base_ns: int = 0
    events: int = 0
    device_events: int = 0
    groups: dict[str, list[int]] = {}
    fingerprint: str = ""
    gaps: list[Gap] = []
    started_ns: int = 0
    ended_ns: int = 0


@dataclass(frozen=True)
class RankTables:
    """One trace, reduced: made beside the file, small enough to be moved. Keyed by table name."""

    header: RankHeader = field(default_factory=RankHeader)
    tables: Mapping[str, Table] = field(default_factory=dict)


@dataclass(frozen=True)
class TraceSummary:
    """The traces of a job, reduced: ranks in ascending order, and tables over all of them."""

    ranks: tuple[RankHeader, ...] = ()
    tables: Mapping[str, Table] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ranks)

    def get(self, name: str) -> Table:
        """Return a table; one without columns when it was not measured."""
        return self.tables.get(name, Table())
