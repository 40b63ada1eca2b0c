"""Figures of the tensors of ops, as lines of the file."""

from __future__ import annotations

import sys

from .checksums import Checksums, as_unsigned
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
    Kind = tuple[str, str, str, str]

# Where NaN has spread, every op has some: the first ones tell it all.
_MAX_NOT_FINITE = 1000
_MAX_TENSORS = 256
# All members of a group have the same result of these.
_AGREED = ("all_reduce", "broadcast", "all_gather")
# Of later ops fewer results are kept, the same ones on all ranks: every tenth from here on, every
# hundredth from ten times as many on. The file has room for a job of weeks.
_KEEP_ALL = 10_000
_COUNTS = ("nan", "inf", "subnormal", "saturated", "zero")
# Sums are written now and then, for a process that is killed, and at the end.
_WRITE_EVERY = 2000
# Groups come and go in some jobs.
_MAX_KINDS = 1000


class Reports:
    """Writes what is in the tensors of ops; one for each SPEC."""

    def __init__(self, spec: Spec, lines: Lines, defer: Callable[[Later], None]) -> None:
        self._spec = spec
        self._lines = lines
        self._defer = defer
        self._missed: set[tuple[str, str]] = set()
        self._checksums = Checksums()
        self._shares = Shares(lines)

    def close(self) -> None:
        """Write the shares of all that was counted."""
        self._shares.write()

    def takes_result(self, op: Op) -> bool:
        """Return whether the result of an op is one that is compared with those of other ranks."""
        wanted = self._spec.results
        if wanted is None or not op.name.startswith(_AGREED):
            return False
        every = 1
        while op.seq >= _KEEP_ALL * every:
            every *= 10
        return op.seq % every == 0 and wanted.takes(op.name, op.group, op.seq)

    def see_result(self, op: Op, value: Any) -> None:
        """Write the checksum of a result, where there is one."""
        self.put_result(op, self.measure_result(op, value))

    def measure_result(self, op: Op, value: Any) -> Any:
        """Return the checksums of the tensors of a result in one tensor, else None."""
        wanted = self._spec.results
        tensors = list(flatten(value)) if op.takes_result and wanted is not None else []
        if not tensors or wanted is None or len(tensors) > _MAX_TENSORS or is_captured(tensors[0]):
            return None
        if not all(_is_plain(one) and wanted.takes_bytes(size_of(one)) for one in tensors):
            return None
        return sys.modules["torch"].stack([self._checksums.sum_up(one) for one in tensors])

    def put_result(self, op: Op, sums: Any) -> None:
        """Write checksums of a result as one, once they are there."""
        if sums is None:
            return
        first = describe(next(flatten(op.outputs or op.inputs)))
        line = {"kind": "result", **op.describe(), "shape": first["shape"], "dtype": first["dtype"]}

        def write(got: list[list[float]]) -> None:
            weighted = (int(one) * (2 * place + 1) for place, one in enumerate(got[0]))
            self._lines.put({**line, "sum": f"{as_unsigned(sum(weighted)):016x}"})

        self._defer(Later([sums], write))

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
            for (_, about, _, is_full), values in zip(figures, got):
                self._shares.add(op, side, about, values, is_full=is_full)
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


def _is_plain(tensor: Any) -> bool:
    """Return whether the elements of a tensor lie in memory as they are."""
    is_strided = tensor.layout == sys.modules["torch"].strided
    return bool(is_strided and tensor.numel() and not tensor.is_quantized)


class Shares:
    """The sums for each side, name, group and type."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        # Elements looked at, those of them whose subnormal numbers were counted, and the counts.
        self._sums: dict[Kind, list[int]] = {}
        self._unwritten = 0

    def add(
        self, op: Op, side: str, about: dict[str, Any], values: list[float], *, is_full: bool
    ) -> None:
        """Add the figures of one tensor; without ``is_full`` these are NaN and Inf only."""
        kind = side, op.name, op.group, str(about["dtype"])
        sums = self._sums.get(kind)
        if sums is None:
            if len(self._sums) >= _MAX_KINDS:
                return
            sums = self._sums[kind] = [0] * (2 + len(_COUNTS))
        sums[0] += about["count"]
        sums[1] += about["count"] if is_full else 0
        for place, value in enumerate(values[: len(_COUNTS)], 2):
            sums[place] += int(value)
        self._unwritten += 1
        if self._unwritten >= _WRITE_EVERY:
            self.write()

    def write(self) -> None:
        """Write all sums so far; later ones take their place."""
        if not self._unwritten:
            return
        self._unwritten = 0
        for (side, name, group, dtype), sums in list(self._sums.items()):
            kind = {"side": side, "name": name, "group": group, "dtype": dtype}
            counts = dict(zip(_COUNTS, sums[2:]))
            self._lines.put(
                {"kind": "shares", **kind, "count": sums[0], "counted": sums[1], **counts}
            )
