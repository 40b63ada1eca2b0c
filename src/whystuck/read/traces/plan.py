"""How traces are read: where, which of several counts, and what is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from whystuck.evidence.table import Table
from whystuck.evidence.traces.options import TraceOptions
from whystuck.read.traces.local import LocalEngine
from whystuck.read.traces.mapping import MapDone, MapTask

# How many files are mapped, and how many there are.
Progress = Callable[[int, int], None]
DUPLICATES = ("newest", "longest")


class Engine(Protocol):
    """Where files are mapped."""

    @property
    def has_our_disk(self) -> bool:
        """Whether whoever maps can write into a folder of ours; else bytes are handed back."""

    def map(self, tasks: Sequence[MapTask]) -> Iterator[tuple[int, MapDone]]:
        """Map files, and yield what came of each as it ends, with the position of its task."""


class RowSink(Protocol):
    """Takes the tables whose rows are too many to hold, rank by rank."""

    def write_rows(self, name: str, table: Table) -> None:
        """Write the rows of one rank below those of the ranks before it."""


@dataclass(frozen=True)
class ReadPlan:
    """How traces are read.

    Attributes:
        options: What is measured.
        engine: Where; processes of this machine when left out.
        partials: A folder or URL where partials are kept: what lies there is not mapped again.
        rank_from: One of `mapping.RANK_SOURCES`.
        duplicates: One of `DUPLICATES`: which of several traces of a rank counts.
        keep_rows: Whether tables with rows for each event are kept in the summary, too.
    """

    options: TraceOptions = field(default_factory=TraceOptions)
    engine: Engine = field(default_factory=LocalEngine)
    partials: str = ""
    rank_from: str = "auto"
    duplicates: str = "newest"
    keep_rows: bool = False
