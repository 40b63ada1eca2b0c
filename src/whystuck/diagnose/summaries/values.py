"""What was counted in the tensors of ops, as shares: what is not finite comes first."""

from __future__ import annotations

from collections.abc import Iterable

from whystuck.evidence.ops.inspection import Inspection, Shares
from whystuck.evidence.sections import ValueRow

_MAX_ROWS = 5000


def list_values(inspections: Iterable[Inspection]) -> list[ValueRow]:
    """Return the shares of each rank and kind of op, the most telling first."""
    rows = [_make_row(one) for inspection in inspections for one in inspection.shares if one.count]
    return sorted(rows, key=_weigh)[:_MAX_ROWS]


def _make_row(one: Shares) -> ValueRow:
    def share(count: int) -> float | None:
        return count / one.counted if one.counted else None

    return ValueRow(
        rank=one.rank,
        op=one.name,
        group=one.group,
        side=one.side,
        dtype=one.dtype,
        elements=one.count,
        nan=one.nan / one.count,
        overflow=one.inf / one.count,
        underflow=share(one.subnormal),
        saturated=share(one.saturated),
        zero=share(one.zero),
    )


def _weigh(row: ValueRow) -> tuple[float, float, str, str, str, str, int]:
    small = row.underflow or 0.0
    return -(row.nan + row.overflow), -small, row.op, row.group, row.side, row.dtype, row.rank
