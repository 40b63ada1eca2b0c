"""The table of what was seen in the tensors of ops, in the same words for every format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whystuck.evidence.sections import ValueRow
from whystuck.report.communication import Table, render_table
from whystuck.safe_text.escaping import show_line

_MAX_ROWS = 10
_NAMES = 4
_LEAST_SHOWN = 0.0001
_HEADER = (
    "op", "group", "side", "type", "elements", "NaN", "overflow", "underflow", "zero", "most",
)  # fmt: skip


def lay_out_values(values: Sequence[ValueRow]) -> Table | None:
    """Put shares into words: a line for each kind of op, over all ranks.

    Args:
        values: The rows of a report.

    Returns:
        The table; None when no more was counted than that all values are finite.
    """
    if not any(row.nan or row.overflow or row.underflow is not None for row in values):
        return None
    kinds: dict[tuple[str, ...], list[ValueRow]] = {}
    for row in values:
        kinds.setdefault((row.op, row.group, row.side, row.dtype), []).append(row)
    lines = [_lay_out_kind(kind, rows) for kind, rows in list(kinds.items())[:_MAX_ROWS]]
    notes = ["shares of elements; overflow: Inf, underflow: subnormal; most: the rank with most"]
    if len(kinds) > _MAX_ROWS:
        notes.append(f"and {len(kinds) - _MAX_ROWS} more kinds of op: `--format json` has all")
    return Table("values in the tensors of ops:", _HEADER, tuple(lines), tuple(notes))


def render_values(values: Sequence[ValueRow]) -> Iterator[str]:
    """Yield the lines of the table as text."""
    table = lay_out_values(values)
    if table is not None:
        yield from render_table(table, _NAMES)


def _lay_out_kind(kind: tuple[str, ...], rows: Sequence[ValueRow]) -> tuple[str, ...]:
    elements = sum(row.elements for row in rows)
    most, least = max(rows, key=_weigh), min(rows, key=_weigh)
    stands_out = _weigh(most) > _weigh(least)
    return (
        *(show_line(name) for name in kind),
        str(elements),
        _format_share(sum(row.nan * row.elements for row in rows) / elements),
        _format_share(sum(row.overflow * row.elements for row in rows) / elements),
        _format_share(_average([row.underflow for row in rows])),
        _format_share(_average([row.zero for row in rows])),
        f"rank {most.rank} {_format_share(sum(_weigh(most)))}" if stands_out else "-",
    )


def _weigh(row: ValueRow) -> tuple[float, float]:
    """Return what is not finite, and what is too small where all of it is finite."""
    not_finite = row.nan + row.overflow
    return not_finite, 0.0 if not_finite else row.underflow or 0.0


def _average(shares: Sequence[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return sum(known) / len(known) if known else None


def _format_share(share: float | None) -> str:
    if share is None:
        return "-"
    return f"{share:.2%}" if not share or share >= _LEAST_SHOWN else f"{share:.0e}"
