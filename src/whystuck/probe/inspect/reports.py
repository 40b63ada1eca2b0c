"""Figures of the tensors of ops, as lines of the file."""

from __future__ import annotations

from .tensors import (
    Later,
    count_not_finite,
    describe,
    flatten,
    is_captured,
    measure,
    name_figures,
    size_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .lines import Lines
    from .op import Op
    from .spec import Spec

    Figures = list[tuple[int, dict[str, Any], Any, bool]]

# Where NaN has spread, every op has some: the first ones tell it all.
_MAX_NOT_FINITE = 1000
_MAX_TENSORS = 256


class Reports:
    """Writes what is in the tensors of ops; one for each SPEC."""

    def __init__(self, spec: Spec, lines: Lines, defer: Callable[[Later], None]) -> None:
        self._spec = spec
        self._lines = lines
        self._defer = defer
        self._missed: set[tuple[str, str]] = set()

    def see(self, op: Op, side: str, value: Any) -> None:
        """Measure the tensors of one side of an op, ``in`` or ``out``, and write it."""
        self.put(op, side, self.measure(op, value))

    def measure(self, op: Op, value: Any) -> Figures:
        """Return the figures of tensors, each with its place, and whether they are all of them."""
        found: Figures = []
        if not (op.takes_stats or op.takes_finite):
            return found
        for place, tensor in enumerate(flatten(value)):
            if place >= _MAX_TENSORS:
                self.miss(op, f"it has more than {_MAX_TENSORS} tensors")
                break
            if is_captured(tensor):
                self.miss(op, "it is part of a CUDA graph")
                break
            size = size_of(tensor)
            stats, finite = self._spec.stats, self._spec.finite
            figures, is_full = None, False
            if op.takes_stats and stats is not None and stats.takes_bytes(size):
                figures, is_full = measure(tensor), True
            elif op.takes_finite and finite is not None and finite.takes_bytes(size):
                figures = count_not_finite(tensor)
            if figures is not None:
                found.append((place, describe(tensor), figures, is_full))
        return found

    def put(self, op: Op, side: str, figures: Figures) -> None:
        """Write figures, once they are there."""
        if not figures:
            return

        def write(got: list[list[float]]) -> None:
            rows = [
                self._name(place, about, values, is_full=is_full)
                for (place, about, _, is_full), values in zip(figures, got)
            ]
            self._write(op, side, [row for row in rows if row is not None])

        self._defer(Later([one for _, _, one, _ in figures], write))

    def miss(self, op: Op, reason: str) -> None:
        """Say once of a kind of op why something of it was not looked at."""
        if (op.name, reason) not in self._missed:
            self._missed.add((op.name, reason))
            self._lines.put({"kind": "gap", "name": op.name, "reason": reason})

    def _name(
        self, place: int, about: dict[str, Any], values: list[float], *, is_full: bool
    ) -> dict[str, Any] | None:
        """Give figures their names; None where there is nothing to tell."""
        row = {"place": place, **about}
        if is_full:
            return {**row, **name_figures(values, about["count"])}
        if not any(values):
            return None
        return {**row, "nan": int(values[0]), "inf": int(values[1])}

    def _write(self, op: Op, side: str, rows: list[dict[str, Any]]) -> None:
        if not rows:
            return
        order = {}
        if any(row["nan"] or row["inf"] for row in rows):
            order = op.describe_order()
            self._lines.not_finite += 1
            if self._lines.not_finite > _MAX_NOT_FINITE and not op.takes_stats:
                return
        self._lines.put({"kind": side, **op.describe(), **order, "tensors": rows})
