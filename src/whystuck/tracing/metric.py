"""What a metric is: one table, measured from the trace of one rank, or from those of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass

from whystuck.evidence.table import Table
from whystuck.evidence.traces.events import Detail
from whystuck.evidence.traces.options import TraceOptions
from whystuck.evidence.traces.tables import RankTables
from whystuck.tracing.view import TraceView


@dataclass(frozen=True)
class Metric:
    """A table of one rank.

    Attributes:
        name: The name of the table, and of its file.
        columns: Its columns in order; the first is ``rank``.
        measure: Makes it. It gets columns even where there are no rows.
        is_default: Whether it is always made; others only when they are asked for by name.
        is_per_event: Whether its rows grow with the events of the trace. Such a table is written
            rank by rank, and is never held for all ranks.
        detail: The arguments of events that it looks at; others need not be decoded.
        of: Finds what its rows are made of. Of a trace without any it has no rows, and is not
            measured: that would take as long as all else of a small trace. None when it always
            has rows.
    """

    name: str
    columns: tuple[str, ...]
    measure: Callable[[TraceView, TraceOptions], Table]
    is_default: bool = True
    is_per_event: bool = False
    detail: Detail = Detail.LEAN
    of: Callable[[TraceView], Sized] | None = None


def of_devices(view: TraceView) -> Sized:
    """Return what metrics of devices are made of."""
    return view.all_device_rows


@dataclass(frozen=True)
class CrossMetric:
    """Tables over all ranks, made from the tables of each.

    Attributes:
        names: The tables that it makes.
        needs: The tables of a rank that it is made from.
        measure: Makes them; ranks come in ascending order.
        slim: What is left of the tables of a rank that ``measure`` needs, so that the rest need
            not be held for all ranks. ``measure`` takes either.
    """

    names: tuple[str, ...]
    needs: tuple[str, ...]
    measure: Callable[[Sequence[RankTables], TraceOptions], Mapping[str, Table]]
    slim: Callable[[RankTables], RankTables] | None = None
